/** The sample of an empty system: synthetic documents in the vendors' own layouts, ingested like any other, marked. */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, explain } from '../../shared/errors.ts';
import { outageCode } from '../../shared/outage.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { DAY_MS } from '../../shared/time/days.ts';
import { feeds } from '../sources/index.ts';
import type { Feed, Sample } from '../sources/types.ts';
import type { Context } from './context.ts';
import { ingest } from './ingest.ts';
import { seconds } from './output.ts';
import { isLocated } from './selected-feeds.ts';

export interface SampleReport {
  readonly feed: string;
  readonly partitions: number;
  readonly rows: number;
}

const LONGEST_NAME = Math.max(...[...DATASETS.keys()].map((key) => key.length));

/**
 * Loads the sample of every feed that has no partition and no source location. A sample that cannot be loaded is told, and
 * tried again at the next start; it ends nothing.
 */
export async function loadSamples(context: Context): Promise<SampleReport[]> {
  const reports: SampleReport[] = [];
  if (!context.settings.SVC_SAMPLE) return reports;
  for (const feed of feeds()) {
    const { sample } = feed;
    if (!sample || isLocated(context.settings, feed)) continue;
    try {
      if (await isWanted(context, feed, sample)) reports.push(await loadSample(context, feed, sample));
    } catch (error) {
      if (context.signal.aborted) return reports;
      // Somebody is publishing real data at this moment: then no sample is wanted.
      if (codeOf(error) === 'PUBLISHER_LEASE_HELD') continue;
      // Whatever it lacks (a server to make it with, room in a store), the service and the other samples go on.
      const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
      context.log.warn({ feed: feed.name, code, fault: explain(error) }, 'the sample could not be loaded');
      context.output.note(`no sample of ${feed.name}: ${explain(error)} [${code}]`);
    }
  }
  return reports;
}

/** Nothing real is there. A first start that was interrupted is made up for. */
async function isWanted({ catalog }: Context, { datasets }: Feed, sample: Sample): Promise<boolean> {
  let complete = true;
  for (const dataset of datasets) {
    const { synthetic, real } = await catalog.counts(dataset);
    if (real > 0) return false;
    if (synthetic < (await sample.partitions())) complete = false;
  }
  return !complete;
}

async function loadSample(context: Context, feed: Feed, sample: Sample): Promise<SampleReport> {
  const { settings, log, signal, output } = context;
  const startedAt = performance.now();
  const directory = join(settings.SVC_STATE_DIR, 'sample', feed.name);
  await mkdir(directory, { recursive: true });
  if (output.terminal) output.progress(`${feed.name}  making a synthetic sample`);
  else output.note(`loading a synthetic sample of ${feed.name}`);
  const loaded = new Map(feed.datasets.map(({ key }) => [key, { partitions: 0, rows: 0 }]));
  try {
    const todayMs = Math.floor(Date.now() / DAY_MS) * DAY_MS;
    const { location, selection } = await sample.make({ directory, settings, todayMs, log, signal });
    const line = './tidemark up (its sample)';
    const request = { kind: 'backfill', line, location, selection, synthetic: true, ownProjector: false } as const;
    for await (const unit of ingest(context, feed, request)) {
      const counts = loaded.get(unit.dataset);
      if (unit.state !== 'proved') output.note(`${unit.partition}  ${unit.state} ${unit.code}: ${unit.reason}`);
      else if (counts) {
        counts.partitions++;
        counts.rows += unit.rows;
      }
    }
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
  if (output.terminal) {
    const lines = [...loaded].map(([dataset, counts]) => lineOf(dataset, counts));
    // Datasets of one feed are loaded together.
    for (const line of lines.slice(0, -1)) output.note(line);
    output.note(`${lines.at(-1)}  ${seconds(performance.now() - startedAt).padStart(7)}`);
  }
  const all = [...loaded.values()];
  return {
    feed: feed.name,
    partitions: all.reduce((sum, { partitions }) => sum + partitions, 0),
    rows: all.reduce((sum, { rows }) => sum + rows, 0),
  };
}

function lineOf(dataset: string, { partitions, rows }: { partitions: number; rows: number }): string {
  const amount = `${partitions} partitions`.padStart(15);
  return `  ${dataset.padEnd(LONGEST_NAME)} ${amount} ${rows.toLocaleString('en-US').padStart(9)} rows, synthetic`;
}
