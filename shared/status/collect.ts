/** Catalog and log together: how all datasets stand. */
import type { JetStreamManager } from '@nats-io/jetstream';
import type { ClientBase } from 'pg';
import { explain } from '../errors.ts';
import { DATASETS, type DatasetDefinition } from '../registry/index.ts';
import { type DatasetFacts, readCatalogFacts } from './catalog-facts.ts';
import { type LogFacts, LogFactsReader } from './log-facts.ts';
import { type Overview, overviewOf } from './overview.ts';
import type { ProvedRanges } from './proved-ranges.ts';

export interface Standing {
  readonly dataset: DatasetDefinition;
  readonly overview: Overview;
  readonly ranges: ProvedRanges;
  readonly facts: DatasetFacts;
}

export interface Collected {
  readonly atMs: number;
  readonly standings: readonly Standing[];
  /** Why the log could not be asked; the catalog is the same without. */
  readonly logFault: string | undefined;
}

/** Asks the catalog first: what is projected meanwhile makes the lag smaller than the catalog has it, never larger. */
export async function collect(
  client: ClientBase,
  manager: () => Promise<JetStreamManager>,
  { logs = new LogFactsReader(), now = Date.now }: { readonly logs?: LogFactsReader; readonly now?: () => number } = {},
): Promise<Collected> {
  const facts = await readCatalogFacts(client);
  const datasets = [...DATASETS.values()];
  let found: (LogFacts | undefined)[] = [];
  let logFault: string | undefined;
  try {
    const asked = await manager();
    found = await Promise.all(datasets.map(({ key }) => logs.read(asked, key)));
  } catch (error) {
    logFault = explain(error);
  }
  const atMs = now();
  return {
    atMs,
    logFault,
    standings: datasets.map((dataset, index) => {
      const ofDataset = facts.get(dataset.number)!;
      return { dataset, facts: ofDataset, ...overviewOf(dataset, ofDataset, found[index], atMs) };
    }),
  };
}
