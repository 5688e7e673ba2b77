/** The sample of an empty system: synthetic files in the vendor's own layout, ingested like any other, marked. */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { codeOf } from '../../shared/errors.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { dayKey } from '../../shared/time/days.ts';
import { adapterOf } from '../sources/index.ts';
import { ingestUnits } from './commands/backfill.ts';
import type { Context } from './context.ts';

const DAY_MS = 86_400_000;
/** Small enough for a first start in seconds, large enough for candles worth looking at. */
const SAMPLE_DAYS = 3;

export interface SampleReport {
  readonly dataset: string;
  readonly partitions: number;
  readonly rows: number;
}

/** Loads the sample of every dataset that has no partition and no source location. */
export async function loadSamples(context: Context): Promise<SampleReport[]> {
  const reports: SampleReport[] = [];
  if (!context.settings.SVC_SAMPLE) return reports;
  for (const dataset of DATASETS.values()) {
    if (
      Object.values(dataset.locations)
        .flat()
        .some((name) => context.settings[name] !== undefined)
    )
      continue;
    const there = await context.catalog.partitions(dataset);
    const sampled = there.filter((row) => row.synthetic && row.state === 'proved').length;
    // A first start that was interrupted is made up for.
    if (sampled >= SAMPLE_DAYS || there.some((row) => !row.synthetic)) continue;
    try {
      reports.push(await loadSample(context, dataset));
    } catch (error) {
      // Somebody is publishing real data at this moment: then no sample is wanted.
      if (codeOf(error) !== 'PUBLISHER_LEASE_HELD') throw error;
    }
  }
  return reports;
}

async function loadSample(context: Context, dataset: DatasetDefinition): Promise<SampleReport> {
  const { generateSample } = adapterOf(dataset);
  const directory = join(context.settings.SVC_STATE_DIR, 'sample', dataset.key);
  await mkdir(directory, { recursive: true });
  const lastMs = Math.floor(Date.now() / DAY_MS) * DAY_MS - DAY_MS;
  const from = dayKey(lastMs - (SAMPLE_DAYS - 1) * DAY_MS);
  const to = dayKey(lastMs);
  context.output.note(`loading a synthetic sample of ${dataset.key} (${SAMPLE_DAYS} days)`);
  try {
    await generateSample({ directory, from, to, settings: context.settings });
    let rows = 0;
    let partitions = 0;
    const units = ingestUnits(context, dataset, {
      location: pathToFileURL(`${directory}/`),
      from,
      to,
      granularity: 'daily',
      synthetic: true,
      ownProjector: false,
    });
    for await (const unit of units) {
      if (unit.state !== 'proved') context.output.note(`${unit.partition}  ${unit.state} ${unit.code}: ${unit.reason}`);
      else {
        partitions++;
        rows += unit.rows;
      }
    }
    return { dataset: dataset.key, partitions, rows };
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}
