import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import { conflictsWith, readPins } from '../../../shared/db/pinned-settings.ts';
import { latestRuns, openRuns } from '../../../shared/db/runs.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { DATASETS, type DatasetDefinition, datasetOf } from '../../../shared/registry/index.ts';
import {
  type ColumnstoreTable,
  collect,
  type DatasetStatus,
  type Lag,
  type LakeFacts,
  type ProofLogFacts,
  readColumnstore,
  readLakes,
  readProofLog,
} from '../../../shared/status/collect.ts';
import { verifyCheckpoint } from '../../projector/log-reader.ts';
import { type Context, openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, table } from '../output.ts';

/** The status of a dataset: the figures that monitoring reports too (shared/status), and more for the operator. */
export async function datasetStatus(
  needs: Pick<Context, 'pool' | 'catalog' | 'settings' | 'given'> & { readonly connection: NatsConnection },
  { dataset, overview, ranges }: DatasetStatus,
) {
  const { pool, catalog, connection, settings, given } = needs;
  const pins = await readPins(pool, [dataset]);
  const conflicts = conflictsWith(pins, settings, given);
  const unproved = await catalog.unproved(dataset, 100);
  const late = await catalog.ledger(dataset, 'late_arrival_refused', 20);
  return {
    ...overview,
    /** `given`: the other value that the setting has now, with which nothing is read. */
    pinned: pins.map((pin) => ({
      setting: pin.setting,
      value: pin.value,
      given: conflicts.find((one) => one.pin === pin)?.given ?? null,
    })),
    proved_ranges: ranges.proved,
    gaps: ranges.gaps,
    offset_breaks: hasConsecutiveDays(dataset) ? await offsetBreaks(pool, dataset) : [],
    unproved: unproved.map((row) => ({
      partition: row.partitionKey,
      state: row.state,
      attempt: row.attempt,
      revision: row.revision,
      reason: row.reason,
      updated_at_utc: row.updatedAt.toISOString(),
    })),
    late_arrivals: late.map((row) => ({
      partition: row.partitionKey,
      at_utc: row.at.toISOString(),
      reason: row.reason,
    })),
    log: overview.log && {
      ...overview.log,
      /** Why nothing can be projected, if the log is not the one that was projected. */
      fault: await verifyCheckpoint(connection, dataset, await catalog.checkpoint(dataset)).then(
        () => null,
        (error) => explain(error),
      ),
      /** Frames of attempts that never got a manifest; they cost space and nothing else. */
      unreferenced_messages: Math.max(0, overview.log.messages - (await catalog.referencedMessages(dataset))),
    },
  };
}

const hasConsecutiveDays = ({ partition, offset }: DatasetDefinition) =>
  partition.kind === 'file_day' && offset.contiguous && offset.unique;

/** Adjacent proved days whose ids are not consecutive: the vendor's files lack rows. */
async function offsetBreaks(pool: Pool, dataset: DatasetDefinition) {
  const found = await pool.query(
    `select * from (
       select partition_key, from_ms, manifest->>'first_offset' as first_offset,
         lag(partition_key) over w as before, lag(to_ms) over w as before_to, lag(manifest->>'last_offset') over w as last_offset
       from partitions where dataset_id = $1 and state = 'proved' window w as (order by from_ms)) neighbours
     where before_to = from_ms and first_offset::int8 <> last_offset::int8 + 1 order by from_ms limit 100`,
    [dataset.number],
  );
  return found.rows.map((row) => ({
    before: row.before,
    partition: row.partition_key,
    last_offset: row.last_offset,
    first_offset: row.first_offset,
  }));
}

type Status = Awaited<ReturnType<typeof datasetStatus>>;

export async function runStatus(command: ParsedCommand): Promise<number> {
  const { runs, open, limit } = command.values;
  if (runs === true) return await showRuns(command);
  if (open === true || limit !== undefined) throw new TidemarkError('USAGE', '--open and --limit are of --runs');
  const asked = command.positionals[0];
  const datasets = new Set(asked === undefined ? DATASETS.values() : [datasetOf(asked)]);
  await using context = await openContext(command, 'status');
  const needs = { ...context, connection: await context.nats() };
  const { statuses, columnstore, proofLog, lakes } = await statusesOf(context);
  const all: Status[] = [];
  for (const one of statuses.filter(({ dataset }) => datasets.has(dataset))) all.push(await datasetStatus(needs, one));
  const ok = all.every((status) => status.partitions.quarantined === 0 && !status.log?.fault);
  context.output.answer({ command: 'status', ok, datasets: all, columnstore, proof_log: proofLog, lakes }, () =>
    [
      ...all.map(describeStatus),
      ...(columnstore ?? []).map(describeColumns),
      describeProofLog(proofLog),
      ...lakes.map(describeLake),
    ].join('\n\n'),
  );
  return ok ? 0 : 1;
}

async function statusesOf(context: Context) {
  const client = await context.pool.connect();
  try {
    const collected = await collect(client, async () => jetstreamManager(await context.nats(), { checkAPI: false }));
    const columnstore = (await readColumnstore(client)) ?? null;
    return {
      statuses: collected.statuses,
      columnstore,
      proofLog: await readProofLog(client),
      lakes: await readLakes(client),
    };
  } finally {
    client.release();
  }
}

const describeStretch = (range: Status['gaps'][number]) =>
  `${range.source}  ${range.from} .. ${range.to}  (${range.from_utc} .. ${range.to_utc_exclusive})`;

/** For people. A list that is cut says how many more there are. */
export function describeStatus(status: Status): string {
  const { partitions, log } = status;
  const unproved = partitions.publishing + partitions.published + partitions.quarantined;
  const lines = [
    `${status.dataset}${status.synthetic ? '  (synthetic sample)' : ''}`,
    table(
      ['proved', 'missing', 'publishing', 'published', 'quarantined', 'rows'],
      [
        [
          partitions.proved,
          partitions.missing,
          partitions.publishing,
          partitions.published,
          partitions.quarantined,
          status.rows,
        ],
      ],
    ),
    ...status.pinned.map(
      ({ setting, value, given }) =>
        `pinned    ${setting} to ${value}${given === null ? '' : `; it is set to ${given}, with which nothing is read`}`,
    ),
    ...status.proved_ranges.map((range) => `proved    ${describeStretch(range)}`),
    ...status.gaps.map((gap) => `gap       ${describeStretch(gap)}`),
    ...status.offset_breaks.map(
      (at) => `id break  ${at.before} ends at ${at.last_offset}, ${at.partition} begins at ${at.first_offset}`,
    ),
    ...status.unproved.map(
      (unit) =>
        `${unit.state.padEnd(9)} ${unit.partition} attempt ${unit.attempt}${unit.reason ? `: ${unit.reason}` : ''}`,
    ),
    ...moreOf('partitions that are not proved', unproved - status.unproved.length),
    ...status.late_arrivals.map((late) => `late      ${late.partition} at ${late.at_utc}: ${late.reason}`),
    ...moreOf('late arrivals', status.late_arrivals_total - status.late_arrivals.length),
  ];
  if (log?.fault) lines.push(`log       ${log.fault}`);
  if (log) {
    lines.push(
      `log       ${grouped(log.messages)} messages, ${(log.bytes / 1e6).toFixed(1)} MB of ${(log.max_bytes / 1e9).toFixed(1)} GB; projected to ${log.checkpoint_sequence} of ${log.last_sequence}, lag ${describeLag(log.lag)}; unreferenced ${log.unreferenced_messages}`,
    );
  }
  return lines.join('\n');
}

const moreOf = (what: string, count: number) => (count > 0 ? [`          and ${grouped(count)} more ${what}`] : []);

const describeColumns = ({ table, chunks, compacted_chunks, row_bytes, column_bytes }: ColumnstoreTable) =>
  `columns   ${table}: ${compacted_chunks} of ${chunks} chunks, ${(row_bytes / 1e6).toFixed(1)} MB became ${(column_bytes / 1e6).toFixed(1)} MB`;

const describeLake = ({ folder, files, rows, change, behind, fault }: LakeFacts) =>
  `lake      ${folder}: ${grouped(files)} files, ${grouped(rows)} rows, up to change ${change}, ${behind} behind${fault ? `: ${fault}` : ''}`;

const describeProofLog = ({ size, root, signed_at_utc: at, pending }: ProofLogFacts) =>
  root === null
    ? `proof log no checkpoint yet, ${pending} leaves wait`
    : `proof log ${grouped(size)} leaves, root ${root}, signed ${at}; ${pending} leaves wait`;

function describeLag({ frames, events, event_time_seconds: seconds, oldest_seconds: waiting }: Lag): string {
  if (frames === 0) return '0';
  return `${frames} messages, ${grouped(events)} events, ${Math.round(seconds)} s of event time, waiting for ${Math.round(waiting)} s`;
}

async function showRuns(command: ParsedCommand): Promise<number> {
  if (command.positionals.length > 0) throw new TidemarkError('USAGE', '--runs takes no dataset');
  const limit = Number(command.values.limit ?? 20);
  await using context = await openContext(command, 'status');
  const runs = command.values.open === true ? await openRuns(context.pool) : await latestRuns(context.pool, limit);
  context.output.answer({ command: 'status', ok: true, runs }, () =>
    runs.length === 0
      ? 'Nothing.'
      : table(
          ['run', 'state', 'kind', 'subject', 'done', 'planned', 'failed', 'rows', 'who', 'since', 'fault'],
          runs.map((run) => [
            run.run_id,
            run.state,
            run.kind,
            run.subject,
            run.proved + run.unchanged,
            run.planned ?? '-',
            run.failed + run.refused + run.quarantined,
            run.rows,
            `${run.host}:${run.pid}`,
            run.started_at_utc,
            run.fault ?? '',
          ]),
        ),
  );
  return EXIT.DONE;
}
