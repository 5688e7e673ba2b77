/**
 * Decides what is published: what a backfill does with each of its documents (planOf), and what the publisher does with a
 * document, with each partition in it and with the attempts at that partition. Every function here is pure. backfill.ts and
 * attempts.ts gather the facts, and attempts.ts carries out the plans.
 */

import type { AttemptRow, PartitionRow } from '../../shared/db/schema.ts';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import type { PartitionKind } from '../../shared/registry/definition.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup, captureKey } from '../../shared/registry/keys.ts';
import type { DocumentRequest, Source } from '../sources/feed-types.ts';

/** What the catalog knows of a partition. */
export type KnownPartition = Pick<
  PartitionRow,
  'partitionKey' | 'state' | 'revision' | 'attempt' | 'synthetic' | 'manifest' | 'reason'
>;

/** What the command asks for. */
export interface Intent {
  readonly synthetic: boolean;
  /** An operator gave a reason to replace what is proved or quarantined. */
  readonly reingest: boolean;
  /** The documents were fetched before. Their names say which capture of a day each of them is. */
  readonly fromArchive: boolean;
}

export type DocumentPlan =
  /** Every partition is quarantined, and an operator has to act. The document is not fetched. */
  | { readonly kind: 'hold'; readonly quarantined: readonly KnownPartition[] }
  /** Every partition is proved from this one document. Another is fetched only if the vendor publishes it now. */
  | { readonly kind: 'ask'; readonly document: DocumentFacts; readonly proved: readonly KnownPartition[] }
  | { readonly kind: 'fetch' };

/** @param partitions those that the document is known to hold. */
export function planDocument(partitions: readonly PlannedPartition[], intent: Intent): DocumentPlan {
  if (intent.reingest || partitions.length === 0) return { kind: 'fetch' };
  const plans = partitions.map((facts) => planPartition({ ...intent, ...facts }));
  const quarantined = plans.flatMap((plan) => (plan.kind === 'hold' ? [plan.quarantined] : []));
  if (quarantined.length === plans.length) return { kind: 'hold', quarantined };
  const proved = partitions.flatMap(({ key, known }) =>
    known.filter((row) => row.partitionKey === key && isProved(row, intent)),
  );
  if (proved.length < partitions.length) return { kind: 'fetch' };
  const document = proved[0].manifest?.document;
  const isOne = proved.every(({ manifest }) => manifest?.document.sha256 === document?.sha256);
  return document && isOne ? { kind: 'ask', document, proved } : { kind: 'fetch' };
}

/** A partition that a document holds, and what the catalog knows of it. */
export interface PlannedPartition {
  readonly key: string;
  readonly isCapture: boolean;
  /** The partition, or all captures of its source and day in the order of their numbers. */
  readonly known: readonly KnownPartition[];
}

type PartitionPlanFacts = PlannedPartition & Intent;

type Attempt = { readonly kind: 'attempt'; readonly key: string };
type Hold = { readonly kind: 'hold'; readonly quarantined: KnownPartition };

export type PartitionPlan =
  /** The partition `key` is published; `planAttempt` decides under which attempt. */
  | Attempt
  | {
      readonly kind: 'compare';
      /** A document that equals one of these is unchanged. */
      readonly proved: readonly KnownPartition[];
      /** What happens to a document that equals none: `refuse` makes it a late arrival. */
      readonly otherwise: { readonly kind: 'refuse' } | Attempt | Hold;
    }
  /** Nothing is published before an operator acts. */
  | Hold;

export function planPartition(facts: PartitionPlanFacts): PartitionPlan {
  const { key, known, reingest } = facts;
  if (facts.isCapture && !facts.fromArchive) return planCapture(facts);
  const row = known.find(({ partitionKey }) => partitionKey === key);
  if (row && isHeld(row, facts) && !reingest) return { kind: 'hold', quarantined: row };
  const publish: Attempt = { kind: 'attempt', key };
  // The facts of a kept capture may also be those of another capture of the day.
  const proved = known.filter((one) => isProved(one, facts));
  if (proved.length === 0 || (reingest && !facts.fromArchive)) return publish;
  const isFinal = row !== undefined && isProved(row, facts) && !reingest;
  return { kind: 'compare', proved, otherwise: isFinal ? { kind: 'refuse' } : publish };
}

/** An issuer may state a day again with other facts. That is another capture and not a late arrival. */
function planCapture(facts: PartitionPlanFacts): PartitionPlan {
  const { key, known } = facts;
  const latest = known.at(-1);
  if (latest === undefined) return { kind: 'attempt', key };
  const proved = known.filter((row) => isProved(row, facts));
  const publishLatest: Attempt = { kind: 'attempt', key: latest.partitionKey };
  if (facts.reingest) {
    // The latest capture is replaced, but not by a document that repeats an earlier capture.
    const earlier = proved.filter((row) => row !== latest);
    return earlier.length > 0 ? { kind: 'compare', proved: earlier, otherwise: publishLatest } : publishLatest;
  }
  if (isHeld(latest, facts)) {
    const hold: Hold = { kind: 'hold', quarantined: latest };
    return proved.length > 0 ? { kind: 'compare', proved, otherwise: hold } : hold;
  }
  if (proved.length === 0) return publishLatest;
  const next: Attempt = { kind: 'attempt', key: nextCapture(latest.partitionKey) };
  return { kind: 'compare', proved, otherwise: latest.state === 'proved' ? next : publishLatest };
}

/** Counts from the latest number: earlier captures may have been retired with the sample that they were part of. */
function nextCapture(latest: string): string {
  const [sourceId, day] = captureGroup(latest).split(':');
  return captureKey(sourceId, day, Number(latest.split(':')[2] ?? 1) + 1);
}

const isProved = (row: KnownPartition, { synthetic }: Intent) => row.state === 'proved' && row.synthetic === synthetic;

/** A quarantined partition of the sample does not block a real one: it is retired with the rest of the sample. */
const isHeld = (row: KnownPartition, { synthetic }: Intent) =>
  row.state === 'quarantined' && row.synthetic === synthetic;

/** What the log holds of an attempt: its manifest, or frames alone, which may be the last messages of the log. */
export type InLog = 'nothing' | 'frames' | 'last_frames' | 'manifest';

export interface AttemptFacts extends Intent {
  readonly key: string;
  /** The sha256 of the document. */
  readonly document: string;
  readonly row: KnownPartition | undefined;
  readonly latest:
    | (Pick<AttemptRow, 'attempt' | 'revision' | 'state'> & { readonly document: string; readonly inLog: InLog })
    | undefined;
  /** The first attempt number above the latest of which the log holds nothing. */
  readonly free: number;
  /** Other partitions that hold heights of this one. */
  readonly overlapping: readonly KnownPartition[];
  /** The revision that this command started for the partition before it had to read the document again. */
  readonly started: number | undefined;
}

export interface NumberedAttempt {
  readonly attempt: number;
  readonly revision: number;
}

export type AttemptPlan =
  /** A new attempt. An interrupted one that cannot be resumed is abandoned. */
  | ({ readonly kind: 'start'; readonly displaced: readonly KnownPartition[] } & NumberedAttempt)
  /** A new attempt at a new revision, which the ledger records. */
  | ({ readonly kind: 'revise'; readonly displaced: readonly KnownPartition[] } & NumberedAttempt)
  /** Continues the interrupted attempt: the writer compares every frame that the log holds and writes the others. */
  | ({ readonly kind: 'resume'; readonly displaced: readonly KnownPartition[] } & NumberedAttempt)
  /** The log holds the manifest, and the projector has not ended the attempt yet. */
  | ({ readonly kind: 'await'; readonly displaced: readonly KnownPartition[] } & NumberedAttempt)
  /** Another partition holds some of the heights, and a height is proved once. */
  | { readonly kind: 'refuse'; readonly other: KnownPartition };

const ENDED: ReadonlySet<string> = new Set(['proved', 'quarantined', 'refused']);

export function planAttempt(facts: AttemptFacts): AttemptPlan {
  const { latest, row, free, overlapping } = facts;
  const others = overlapping.filter((row) => row.partitionKey !== facts.key && row.synthetic === facts.synthetic);
  const other = others.find((row) => row.state !== 'publishing' && !(row.state === 'quarantined' && facts.reingest));
  if (other) return { kind: 'refuse', other };
  // Another publisher left these unfinished. No publisher can resume them once this partition covers their heights.
  const displaced = others.filter(({ state }) => state === 'publishing');
  const revises = startsRevision(facts);
  const revision = revisionOf(facts, others, revises);
  if (latest?.document === facts.document && latest.revision === revision) {
    const { attempt, state, inLog } = latest;
    const isInLog = (state === 'publishing' || state === 'published') && inLog === 'manifest';
    // Somebody else's attempt, or that of another look at the source, was proved since the partition was decided about.
    const isProvedMeanwhile = !facts.reingest && row?.attempt === attempt && isProved(row, facts);
    if (isInLog || isProvedMeanwhile || (ENDED.has(state) && facts.started === revision)) {
      return { kind: 'await', attempt, revision, displaced };
    }
    // It cannot continue behind another attempt's frames: the projector requires the frames of an attempt in one run.
    if (state === 'publishing' && inLog !== 'frames') return { kind: 'resume', attempt, revision, displaced };
  }
  return { kind: revises ? 'revise' : 'start', attempt: free, revision, displaced };
}

/** Whether the operator's revision is still to be started: an interrupted one was started before. */
function startsRevision({ row, latest, reingest, document, started }: AttemptFacts): boolean {
  if (!reingest || row === undefined || row.state === 'publishing') return false;
  if (latest === undefined) return true;
  const isOpen = latest.state === 'publishing' || latest.state === 'published';
  if (isOpen && latest.revision > row.revision && latest.document === document) return false;
  // The same command started it, and a command asks for one revision, whatever became of its attempt.
  return !(latest.revision === started && (latest.document === document || latest.state === 'abandoned'));
}

function revisionOf({ row, latest }: AttemptFacts, others: readonly KnownPartition[], revises: boolean): number {
  const own = revises ? Math.max(row?.revision ?? 0, latest?.revision ?? 0) + 1 : (latest?.revision ?? 1);
  // A revision displaces quarantined partitions with its heights if it is higher than theirs.
  const quarantined = others.filter(({ state }) => state === 'quarantined').map(({ revision }) => revision);
  return Math.max(own, ...quarantined.map((revision) => revision + 1));
}

/** What a backfill does with a document. */
export type PlannedAction =
  /** Some of it is not proved: it is fetched, or an interrupted attempt is resumed. */
  | 'fetch'
  /** An operator asked for a new revision. */
  | 'replace'
  /** All of it is proved, and the source is asked whether it still publishes the same. */
  | 'compare'
  /** All of it is proved, and nothing is done. */
  | 'skip'
  /** All of it is quarantined, and nothing is done until an operator acts. */
  | 'held';

export interface PlannedDocument {
  readonly request: DocumentRequest;
  readonly action: PlannedAction;
}

/** A proved partition that the backfill leaves alone. */
export interface Skipped {
  readonly dataset: string;
  readonly partition: string;
  readonly rows: number;
}

export interface Plan {
  readonly documents: readonly PlannedDocument[];
  readonly skipped: readonly Skipped[];
  /** The number of partitions by action. */
  readonly partitions: Readonly<Record<PlannedAction, number>>;
}

/** The catalog's rows of a requested partition; of a capture those of every capture of its source and day. */
export type KnownRows = (dataset: DatasetDefinition, key: string) => readonly PartitionRow[];

export interface PlanOptions {
  readonly source: Pick<Source, 'datasets'>;
  readonly synthetic: boolean;
  readonly reingest: boolean;
  /** Asks the sources about proved partitions, too. */
  readonly compare: boolean;
}

/**
 * Kinds of partitions that do not change once they are proved. An issuer may state a day again, and a series gets new
 * vintages, so their sources are always asked.
 */
const FINAL: ReadonlySet<PartitionKind['kind']> = new Set(['file_day', 'height', 'snapshot']);

export function planOf(requests: readonly DocumentRequest[], known: KnownRows, options: PlanOptions): Plan {
  const documents: PlannedDocument[] = [];
  const skipped: Skipped[] = [];
  const partitions = { fetch: 0, replace: 0, compare: 0, skip: 0, held: 0 };
  for (const request of requests) {
    const units = request.partitions.map(({ dataset = options.source.datasets[0], key }) => {
      return { dataset, key, known: known(dataset, key) };
    });
    const action = actionOf(units, options);
    documents.push({ request, action });
    partitions[action] += Math.max(1, units.length);
    if (action !== 'skip') continue;
    for (const { dataset, key, known } of units) {
      skipped.push({ dataset: dataset.key, partition: key, rows: known[0].rows ?? 0 });
    }
  }
  return { documents, skipped, partitions };
}

interface PlannedUnit {
  readonly dataset: DatasetDefinition;
  readonly key: string;
  readonly known: readonly PartitionRow[];
}

function actionOf(units: readonly PlannedUnit[], { synthetic, reingest, compare }: PlanOptions): PlannedAction {
  if (reingest) return 'replace';
  const plans = units.map(({ dataset, key, known }) => {
    const isCapture = dataset.partition.kind === 'capture';
    return planPartition({ key, isCapture, known, synthetic, reingest, fromArchive: false });
  });
  const all = (kind: PartitionPlan['kind']) => plans.length > 0 && plans.every((plan) => plan.kind === kind);
  if (all('hold')) return 'held';
  // A partition that is to be compared is proved.
  if (!all('compare')) return 'fetch';
  return compare || !units.every(({ dataset }) => FINAL.has(dataset.partition.kind)) ? 'compare' : 'skip';
}

/** Consecutive documents with the same action. */
export interface PlannedRun {
  readonly action: PlannedAction;
  readonly from: string;
  readonly to: string;
  readonly documents: number;
  readonly partitions: number;
}

/** The plan in the form in which it is printed. */
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
