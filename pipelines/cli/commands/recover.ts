/**
 * `recover`: brings database and log back in step after they were restored to different points. Plans first, then acts.
 * Proved partitions stay proved and served. The checkpoint goes back to the last message that both stores have, and
 * partitions that the log has lost are named, so that they can be ingested again. The log is append-only, so in a log without
 * holes one equal message means that all before it are equal.
 */

import { createHash } from 'node:crypto';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { ClientBase } from 'pg';
import { proofLogOf } from '../../../shared/config/settings.ts';
import { Catalog, record } from '../../../shared/db/catalog.ts';
import { connect } from '../../../shared/db/connect.ts';
import { registeredInstruments } from '../../../shared/db/instruments.ts';
import { lockCoverage } from '../../../shared/db/partition-changes.ts';
import { RunRecorder } from '../../../shared/db/runs.ts';
import type { AttemptRow } from '../../../shared/db/schema.ts';
import { decodeMessage } from '../../../shared/frame/codec.ts';
import { messageAt, streamInfo, streamOptions, subjectOf } from '../../../shared/nats/stream.ts';
import { openCheckpoint } from '../../../shared/proof-log/note.ts';
import { readSigners } from '../../../shared/proof-log/signers.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { type LogVerdict, logVerdict, REWOUND } from '../../projector/log-reader.ts';
import { changeFault, leavesAhead, rewriteChanges } from '../../proof-log/change-publisher.ts';
import { keysOf } from '../../proof-log/sequencer.ts';
import { type Context, openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';
import { selectedDatasets } from '../over-partitions.ts';
import { readText } from './check.ts';
import { lostOf } from './proof-log.ts';

export interface RecoveryPlan {
  readonly dataset: string;
  readonly verdict: LogVerdict['state'];
  /** The verdict as text. */
  readonly finding: string;
  /** Sequence of the last message that both stores have; 0 if there is none. */
  readonly common_sequence: number;
  /** The checkpoint's sequence now; recovery would set it to `common_sequence`. */
  readonly checkpoint_sequence: number;
  /**
   * Proved partitions that the log no longer holds. They stay served, but cannot be replayed until they are ingested
   * again.
   */
  readonly lost: readonly string[];
}

interface LoggedAttempt {
  /** Of its instrument. */
  readonly dataset: DatasetDefinition;
  readonly partition: string;
  readonly attempt: number;
  readonly frames: number;
  readonly sequence: number;
  readonly state: string;
  readonly ingestedAtMs: number | null;
}

export interface RecoverNeeds {
  readonly client: ClientBase;
  readonly connection: NatsConnection;
  readonly dataset: DatasetDefinition;
}

interface Recovery {
  readonly plan: RecoveryPlan;
  /** Ended attempts whose manifest the log no longer holds where the catalog says. */
  readonly gone: readonly LoggedAttempt[];
  /** The same of attempts that wait for their proof. */
  readonly unproved: readonly LoggedAttempt[];
}

/** Computes the recovery without changing anything. */
async function prepare(needs: RecoverNeeds): Promise<Recovery> {
  const { client, connection, dataset } = needs;
  const checkpoint = await new Catalog(client).checkpoint(dataset);
  const verdict = await logVerdict(connection, dataset, checkpoint);
  const plan = {
    dataset: dataset.key,
    verdict: verdict.state,
    finding: verdict.finding,
    checkpoint_sequence: checkpoint?.streamSequence ?? 0,
  };
  if (verdict.state === 'in_step' || verdict.state === 'log_ahead' || verdict.state === 'empty') {
    return { plan: { ...plan, common_sequence: plan.checkpoint_sequence, lost: [] }, gone: [], unproved: [] };
  }
  const all = await withInstruments(client, dataset);
  const ended = await loggedAttempts(client, all, ['proved', 'quarantined', 'refused']);
  const gone = await goneAttempts(needs, ended);
  // They tell nothing of what both stores have: a publisher may have written them since the log lost its tail.
  const published = await loggedAttempts(client, all, ['published']);
  const isHeld = await askEach(needs, published);
  const unproved = published.filter((_, at) => !isHeld[at]);
  const isGone = new Set(gone);
  const common = ended.findLast((one) => !isGone.has(one))?.sequence ?? 0;
  const proved = await client.query<{ partition_key: string; attempt: number }>(
    `select partition_key, attempt from partitions where dataset_id = any ($1) and state = 'proved'`,
    [numbersOf(all)],
  );
  const current = new Map(proved.rows.map((row) => [row.partition_key, row.attempt]));
  const lost = gone.filter(({ partition, attempt }) => current.get(partition) === attempt);
  return {
    plan: { ...plan, common_sequence: common, lost: lost.map(({ partition }) => partition).sort() },
    gone,
    unproved,
  };
}

export const recoveryPlan = async (needs: RecoverNeeds): Promise<RecoveryPlan> => (await prepare(needs)).plan;

/** The plan after any commit of a projector that is under way: it may move the checkpoint. */
async function planAfterCommits(needs: RecoverNeeds): Promise<RecoveryPlan> {
  const { client, dataset } = needs;
  await client.query('begin');
  try {
    await lockAll(client, dataset);
    return await recoveryPlan(needs);
  } finally {
    await client.query('rollback').catch(() => {});
  }
}

/**
 * Sets the checkpoint to where both stores agree, in one transaction with a ledger entry; the projector continues from
 * there.
 */
export async function recover(needs: RecoverNeeds, reason: string): Promise<RecoveryPlan> {
  const { client, connection, dataset } = needs;
  await client.query('begin');
  try {
    // Waits for a projector's commit, and blocks the next one.
    const all = await lockAll(client, dataset);
    const { plan, gone, unproved } = await prepare(needs);
    if (plan.verdict !== 'in_step' && plan.verdict !== 'log_ahead' && plan.verdict !== 'empty') {
      await rewindCheckpoint(client, connection, dataset, plan.common_sequence);
      await client.query(
        `update attempts set manifest_sequence = null, first_sequence = null, updated_at = clock_timestamp()
         where dataset_id = any ($1) and (partition_key, attempt) in (select * from unnest($2::text[], $3::int4[]))`,
        [numbersOf(all), gone.map(({ partition }) => partition), gone.map(({ attempt }) => attempt)],
      );
      // Followed sources ask for what is neither published nor ended.
      for (const { dataset: of, partition, attempt } of unproved) {
        await new Catalog(client).abandonAttempt(of, partition, attempt, 'The log lost its manifest', 'published');
      }
      // Their sequences in the log now belong to other messages or to none.
      await client.query('delete from frames where dataset_id = any ($1) and partition_key = any ($2::text[])', [
        numbersOf(all),
        plan.lost,
      ]);
      const { verdict, finding, common_sequence, checkpoint_sequence } = plan;
      const details = { verdict, finding, common_sequence, checkpoint_sequence };
      await record(client, dataset, '', 'log_recovered', reason, { ...details, lost: plan.lost.length });
      for (const { dataset: of, partition } of gone.filter((one) => plan.lost.includes(one.partition))) {
        await record(client, of, partition, 'log_lost', finding);
      }
    }
    await client.query('commit');
    return plan;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

async function rewindCheckpoint(
  client: ClientBase,
  connection: NatsConnection,
  dataset: DatasetDefinition,
  sequence: number,
): Promise<void> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  const message = sequence > 0 && info ? await messageAt(manager, dataset.key, sequence) : undefined;
  if (!info || !message) {
    await client.query('delete from checkpoints where dataset_id = $1', [dataset.number]);
    return;
  }
  await client.query(
    `update checkpoints set stream_created = $2, stream_sequence = $3, message_sha256 = $4, updated_at = clock_timestamp()
     where dataset_id = $1`,
    [dataset.number, new Date(info.created), sequence, createHash('sha256').update(message.data).digest('hex')],
  );
}

/** The dataset and its other instruments, which share its log. */
const withInstruments = async (client: ClientBase, dataset: DatasetDefinition): Promise<DatasetDefinition[]> => [
  dataset,
  ...(await registeredInstruments(client)).filter(({ base }) => base === dataset),
];

/** Locks the coverage of each, that of the dataset last, as a projector's commit does. */
async function lockAll(client: ClientBase, dataset: DatasetDefinition): Promise<DatasetDefinition[]> {
  const all = await withInstruments(client, dataset);
  for (const one of all.toReversed()) await lockCoverage(client, one);
  return all;
}

const numbersOf = (datasets: readonly DatasetDefinition[]): number[] => datasets.map(({ number }) => number);

/** Attempts in these states that have a manifest sequence, in the order of the log. */
async function loggedAttempts(
  client: ClientBase,
  datasets: readonly DatasetDefinition[],
  states: readonly AttemptRow['state'][],
): Promise<LoggedAttempt[]> {
  const { rows } = await client.query(
    `select dataset_id, partition_key, attempt, frames, manifest_sequence::float8 as sequence, state,
       (manifest->>'ingested_at_ms')::float8 as ingested_at from attempts
     where dataset_id = any ($1) and manifest_sequence is not null and state = any ($2) order by manifest_sequence`,
    [numbersOf(datasets), states],
  );
  return rows.map((row) => ({
    dataset: datasets.find(({ number }) => number === row.dataset_id)!,
    partition: row.partition_key,
    attempt: row.attempt,
    frames: row.frames,
    sequence: row.sequence,
    state: row.state,
    ingestedAtMs: row.ingested_at,
  }));
}

/** Manifests that are asked for at once. */
const ASKED_AT_ONCE = 64;

/** Whether the log holds the manifest of each attempt at the sequence of the catalog. */
async function askEach(
  { connection, dataset }: RecoverNeeds,
  attempts: readonly LoggedAttempt[],
): Promise<readonly boolean[]> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  if (!(await streamInfo(manager, dataset.key))) return attempts.map(() => false);
  const isThere = async ({ partition, attempt, frames, sequence, ingestedAtMs }: LoggedAttempt): Promise<boolean> => {
    const message = await messageAt(manager, dataset.key, sequence);
    if (message?.subject !== subjectOf(dataset.key, partition, attempt, frames)) return false;
    try {
      const { raw } = await decodeMessage(message.data, `${dataset.key} sequence ${sequence}`);
      return (JSON.parse(raw.toString()) as { ingested_at_ms?: number }).ingested_at_ms === ingestedAtMs;
    } catch {
      return false;
    }
  };
  const there: boolean[] = [];
  for (let from = 0; from < attempts.length; from += ASKED_AT_ONCE) {
    there.push(...(await Promise.all(attempts.slice(from, from + ASKED_AT_ONCE).map(isThere))));
  }
  return there;
}

/**
 * Those of the ended attempts whose manifest the log does not hold at the sequence of the catalog. A log without holes holds all
 * manifests before the last common one and none after it, so it is bisected; in one with holes each is asked for.
 */
async function goneAttempts(needs: RecoverNeeds, ended: readonly LoggedAttempt[]): Promise<readonly LoggedAttempt[]> {
  const manager = await jetstreamManager(needs.connection, { checkAPI: false });
  const info = await streamInfo(manager, needs.dataset.key);
  if (!info) return ended;
  const { first_seq: first, num_deleted: holes = 0 } = info.state;
  if (first > 1 || holes > 0) {
    const there = await askEach(needs, ended);
    return ended.filter((_, at) => !there[at]);
  }
  let [there, gone] = [0, ended.length];
  while (there < gone) {
    const middle = Math.floor((there + gone) / 2);
    if ((await askEach(needs, [ended[middle]]))[0]) there = middle + 1;
    else gone = middle;
  }
  return ended.slice(there);
}

/** Most partitions that the text names; `--json` names all. */
const MAX_NAMED = 20;

export async function runRecover(command: ParsedCommand): Promise<number> {
  const datasets = selectedDatasets(command.positionals);
  const dryRun = command.values['dry-run'] === true;
  const reason = (command.values.reason as string | undefined) ?? 'the two stores were not in step';
  await using context = await openContext(command, 'recover');
  const databaseUrl = context.databaseUrls.ingest;
  await using client = await connect({ url: databaseUrl, name: 'tidemark recover' });
  const connection = await context.nats('operator');
  await jetstreamManager(connection);
  const plans: RecoveryPlan[] = [];
  for (const dataset of datasets) {
    const needs = { client, connection, dataset };
    const plan = await (dryRun ? recoveryPlan(needs) : planAfterCommits(needs));
    if (dryRun || !REWOUND.has(plan.verdict)) {
      plans.push(plan);
      continue;
    }
    await using run = await RunRecorder.open({
      databaseUrl,
      kind: 'recover',
      subject: dataset.key,
      datasets: [dataset],
      command: command.line,
      exclusive: true,
    });
    plans.push(await recover(needs, reason));
    await run.end('done');
  }
  const known = command.values.checkpoint as string | undefined;
  const proofLog = await proofLogFinding(context, { client, connection, dryRun, known });
  const changes = await recoverChanges(context, { client, connection, dryRun });
  const changed = plans.filter(({ verdict }) => REWOUND.has(verdict)).length;
  context.output.answer(
    {
      command: 'recover',
      ok: true,
      dry_run: dryRun,
      changed: dryRun ? 0 : changed,
      plans,
      changes,
      proof_log: proofLog,
    },
    () => [describe(plans, dryRun), ...describeChanges(changes), ...describeProofLog(proofLog)].join('\n\n'),
  );
  return EXIT.DONE;
}

/** How the stream of changes was found, and how many changes it was filled with from the catalog; null: it was left. */
interface ChangesRecovery {
  readonly finding: string | null;
  readonly rewritten: number | null;
  /** It holds leaves that the catalog lost. */
  readonly kept?: boolean;
}

async function recoverChanges(
  { settings }: Pick<Context, 'settings'>,
  { client, connection, dryRun }: Pick<RecoverNeeds, 'client' | 'connection'> & { readonly dryRun: boolean },
): Promise<ChangesRecovery> {
  const needs = { client, manager: await jetstreamManager(connection), jetstream: jetstream(connection) };
  const finding = (await changeFault(needs)) ?? null;
  if (finding === null) return { finding, rewritten: null };
  // What the stream has alone is all that is left of these leaves.
  const { rows } = await client.query('select size from proof_head');
  if ((await leavesAhead(needs.manager, Number(rows[0]?.size ?? 0))).length > 0)
    return { finding, rewritten: null, kept: true };
  if (dryRun) return { finding, rewritten: null };
  return { finding, rewritten: await rewriteChanges(connection, needs, streamOptions(settings)) };
}

interface KnownCheckpoint {
  readonly client: ClientBase;
  readonly connection: NatsConnection;
  readonly dryRun: boolean;
  /** File of a checkpoint that somebody kept. */
  readonly known: string | undefined;
}

/**
 * What the proof log lost that one of its stores has, or a follower knows; null: nothing. The size that a follower knows is kept, so
 * that nothing smaller is signed.
 */
async function proofLogFinding(
  { settings }: Pick<Context, 'settings'>,
  { client, connection, dryRun, known }: KnownCheckpoint,
): Promise<string | null> {
  const place = proofLogOf(settings);
  const signers = await readSigners(place);
  if (!signers) return null;
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const key = signers.current.verifier;
  const needs = { folder: place.folder, key, streamed: (size: number) => leavesAhead(manager, size) };
  const { kind, from, to } = await lostOf(client, needs);
  const held = kind === 'nothing' ? from : to;
  if (known !== undefined) {
    const note = await readText(known);
    const { size } = openCheckpoint(note, await keysOf(place.folder, key));
    if (size > held) {
      if (!dryRun) await client.query('update proof_head set known_size = $1 where known_size < $1', [size]);
      return `${known} is a checkpoint of ${size} leaves, and no store of the proof log has more than ${held}: they were restored from a backup. Restore the newer tiles, such as those of the mirror of whoever kept it`;
    }
  }
  if (kind === 'nothing') return null;
  const [who, has] =
    kind === 'both'
      ? ['database and folder lack', 'the stream of changes has']
      : [`the ${kind} lacks`, 'the other has'];
  return `${who} ${to - from} leaves from ${from} on, which ${has}`;
}

const describeProofLog = (finding: string | null): string[] =>
  finding === null
    ? []
    : [
        `proof log: ${finding}; then run ./tidemark proof-log restored --reason ... until it says that nothing is lost. Until then nothing is signed. Never begin another log: followers know this one`,
      ];

function describeChanges({ finding, rewritten, kept }: ChangesRecovery): string[] {
  if (finding === null) return [];
  const done =
    rewritten === null
      ? kept === true
        ? 'left as it is, for the leaves that the catalog lost'
        : 'would be filled again from the catalog'
      : `filled again with ${rewritten} from the catalog`;
  return [`stream of changes: ${finding}; ${done}`];
}

function describe(plans: readonly RecoveryPlan[], dryRun: boolean): string {
  const rows = plans.map((plan) => [
    plan.dataset,
    plan.verdict,
    plan.checkpoint_sequence,
    plan.common_sequence,
    plan.lost.length,
  ]);
  const lines = [
    table(['dataset', 'verdict', 'checkpoint', dryRun ? 'would become' : 'now', 'lost from the log'], rows),
  ];
  for (const { dataset, lost } of plans.filter((plan) => plan.lost.length > 0)) {
    const named = lost.slice(0, MAX_NAMED).join(' ');
    const more = lost.length > MAX_NAMED ? ` and ${lost.length - MAX_NAMED} more` : '';
    lines.push(
      '',
      `${dataset}: served as before, but lost from the log; run \`./tidemark reingest\` for ${named}${more}`,
    );
  }
  return lines.join('\n');
}
