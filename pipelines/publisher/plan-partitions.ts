/** What a backfill has to do, before it does anything: expected partitions less those that are proved, holes included. */
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { PartitionKind } from '../../shared/registry/types.ts';
import type { DocumentRequest, Source } from '../sources/types.ts';

export type Action =
  /** Not proved: its document is fetched, or an attempt that was interrupted goes on. */
  | 'fetch'
  /** Fetched again on purpose, as a new revision. */
  | 'replace'
  /** Proved, and its source is asked whether it still says the same. */
  | 'compare'
  /** Proved: nothing to do. */
  | 'skip'
  /** Quarantined: nothing is done until an operator acts. */
  | 'held';

export interface PlannedDocument {
  readonly request: DocumentRequest;
  readonly action: Action;
}

/** A partition that is proved and left alone. */
export interface Skipped {
  readonly dataset: string;
  readonly partition: string;
  readonly rows: number;
}

export interface Plan {
  readonly documents: readonly PlannedDocument[];
  readonly skipped: readonly Skipped[];
  /** Partitions by what becomes of them. */
  readonly partitions: Readonly<Record<Action, number>>;
}

export interface PlanOptions {
  readonly source: Pick<Source, 'datasets'>;
  readonly catalog: Catalog;
  readonly synthetic: boolean;
  readonly reingest: boolean;
  /** Ask the sources of what is proved, too. */
  readonly compare: boolean;
}

/**
 * Kinds whose partitions are what they are once they are proved. An issuer may state a day again, and a series gets
 * vintages: what their sources say now has to be asked for.
 */
const FINAL: ReadonlySet<PartitionKind['kind']> = new Set(['file_day', 'height', 'snapshot']);

/** How many keys one question to the catalog names. */
const KEYS_AT_ONCE = 5000;

export async function planOf(requests: readonly DocumentRequest[], options: PlanOptions): Promise<Plan> {
  const known = await knownPartitions(requests, options);
  const documents: PlannedDocument[] = [];
  const skipped: Skipped[] = [];
  const partitions = { fetch: 0, replace: 0, compare: 0, skip: 0, held: 0 };
  for (const request of requests) {
    const units = unitsOf(request, options.source);
    const rows = units.map(({ dataset, key }) => known.get(dataset.number)?.get(key));
    const action = actionOf(units, rows, options);
    documents.push({ request, action });
    partitions[action] += Math.max(1, units.length);
    if (action !== 'skip') continue;
    units.forEach(({ dataset, key }, index) => {
      skipped.push({ dataset: dataset.key, partition: key, rows: rows[index]?.rows ?? 0 });
    });
  }
  return { documents, skipped, partitions };
}

interface Unit {
  readonly dataset: DatasetDefinition;
  readonly key: string;
}

const unitsOf = ({ partitions }: DocumentRequest, { datasets: [first] }: Pick<Source, 'datasets'>): Unit[] =>
  partitions.map(({ dataset = first, key }) => ({ dataset, key }));

function actionOf(
  units: readonly Unit[],
  rows: readonly (PartitionRow | undefined)[],
  { synthetic, reingest, compare }: PlanOptions,
): Action {
  if (reingest) return 'replace';
  const all = (state: PartitionRow['state']) =>
    units.length > 0 && rows.every((row) => row?.state === state && row.synthetic === synthetic);
  if (all('quarantined')) return 'held';
  if (!all('proved')) return 'fetch';
  return compare || !units.every(({ dataset }) => FINAL.has(dataset.partition.kind)) ? 'compare' : 'skip';
}

/** By dataset and key. */
async function knownPartitions(
  requests: readonly DocumentRequest[],
  { source, catalog }: PlanOptions,
): Promise<Map<number, Map<string, PartitionRow>>> {
  const keys = new Map<DatasetDefinition, string[]>();
  for (const request of requests) {
    for (const { dataset, key } of unitsOf(request, source)) {
      const known = keys.get(dataset) ?? [];
      if (known.push(key) === 1) keys.set(dataset, known);
    }
  }
  const found = new Map<number, Map<string, PartitionRow>>();
  for (const [dataset, wanted] of keys) {
    const rows = new Map<string, PartitionRow>();
    for (let first = 0; first < wanted.length; first += KEYS_AT_ONCE) {
      const some = await catalog.partitionsOf(dataset, wanted.slice(first, first + KEYS_AT_ONCE));
      for (const row of some) rows.set(row.partitionKey, row);
    }
    found.set(dataset.number, rows);
  }
  return found;
}

/** Documents one after the other to which the same happens. */
export interface PlannedRun {
  readonly action: Action;
  readonly from: string;
  readonly to: string;
  readonly documents: number;
  readonly partitions: number;
}

/** The plan as people read it. */
export function runsOfPlan({ documents }: Plan): PlannedRun[] {
  const runs: PlannedRun[] = [];
  for (const { request, action } of documents) {
    const last = runs.at(-1);
    const partitions = Math.max(1, request.partitions.length);
    if (last?.action === action) {
      runs[runs.length - 1] = {
        ...last,
        to: request.period,
        documents: last.documents + 1,
        partitions: last.partitions + partitions,
      };
    } else {
      runs.push({ action, from: request.period, to: request.period, documents: 1, partitions });
    }
  }
  return runs;
}
