import { jetstreamManager } from '@nats-io/jetstream';
import { withClient } from '../../../shared/db/connect.ts';
import { conflictsWith, readPins } from '../../../shared/db/pinned-settings.ts';
import { latestRuns, openRuns, type RunRow } from '../../../shared/db/runs.ts';
import { assert, explain, TidemarkError } from '../../../shared/errors.ts';
import { DATASETS, type DatasetDefinition, datasetOf } from '../../../shared/registry/index.ts';
import { listedRanges } from '../../../shared/status/instruments.ts';
import {
  type ColumnstoreTable,
  type DatasetState,
  type Lag,
  type LakeFacts,
  type ProofLogFacts,
  readState,
} from '../../../shared/status/state.ts';
import { verifyCheckpoint } from '../../projector/log-reader.ts';
import { type Context, openContext } from '../context.ts';
import { namedInstruments } from '../instruments.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, table } from '../output.ts';

/** Settings whose values the first proof pinned. `given`: the other value that one has now, with which nothing is read. */
type Pinned = readonly { readonly setting: string; readonly value: string; readonly given: string | null }[];

/** The status of a dataset, as `status` answers it. @param fault why nothing can be projected: the log is not the one that was */
export function datasetStatus(
  { dataset, overview, ranges, details }: DatasetState,
  pinned: Pinned,
  fault: string | null,
) {
  assert(details, 'an operator sees the details');
  const { unproved, lateArrivals, offsetBreaks, referencedMessages } = details;
  const { dataset: key, ...rest } = overview;
  return {
    dataset: key,
    instrument: dataset.instrument,
    ...rest,
    pinned,
    proved_ranges: ranges.proved,
    gaps: ranges.gaps,
    offset_breaks: offsetBreaks,
    unproved: unproved.map(({ updatedAt, ...row }) => ({ ...row, updated_at_utc: updatedAt.toISOString() })),
    late_arrivals: lateArrivals.map(({ at, ...row }) => ({ ...row, at_utc: at.toISOString() })),
    log: overview.log && {
      ...overview.log,
      fault,
      /** Frames of attempts that never got a manifest; they cost space and nothing else. */
      unreferenced_messages: Math.max(0, overview.log.messages - referencedMessages),
    },
  };
}

async function pinnedOf({ pool, settings, given }: Context, dataset: DatasetDefinition): Promise<Pinned> {
  const pins = await readPins(pool, [dataset]);
  const conflicts = conflictsWith(pins, settings, given);
  return pins.map((pin) => ({
    setting: pin.setting,
    value: pin.value,
    given: conflicts.find((one) => one.pin === pin)?.given ?? null,
  }));
}

const logFaultOf = async ({ catalog, nats }: Context, dataset: DatasetDefinition): Promise<string | null> =>
  await verifyCheckpoint(await nats(), dataset, await catalog.checkpoint(dataset)).then(() => null, explain);

type Status = ReturnType<typeof datasetStatus>;

export async function runStatus(command: ParsedCommand): Promise<number> {
  const { runs, open, limit } = command.values;
  if (runs === true) return await showRuns(command);
  if (open === true || limit !== undefined) throw new TidemarkError('USAGE', '--open and --limit are of --runs');
  const asked = command.positionals[0];
  const { instrument } = command.values as { instrument?: string };
  const chosen = asked === undefined ? [...DATASETS.values()] : [datasetOf(asked)];
  await using context = await openContext(command, 'status');
  const datasets = new Set(await namedInstruments(context, chosen, { instrument, wherever: asked === undefined }));
  const others = await context.catalog.instruments(chosen);
  const instruments = others.filter((one) => datasets.has(one));
  const { statuses, columnstore, proofLog, lakes } = await withClient(context.pool, (client) =>
    readState(client, async () => jetstreamManager(await context.nats(), { checkAPI: false }), {
      detailed: true,
      instruments,
      listed: (one) => listedRanges(context.settings, one),
    }),
  );
  const all: Status[] = [];
  for (const one of statuses.filter(({ dataset }) => datasets.has(dataset))) {
    const { dataset, overview } = one;
    const fault = overview.log && (await logFaultOf(context, dataset));
    all.push(datasetStatus(one, await pinnedOf(context, dataset), fault));
  }
  const unshown = await unshownOf(context, others, datasets);
  const ok = all.every((status) => status.partitions.quarantined === 0 && !status.log?.fault) && unshown.isGood;
  const answer = {
    command: 'status',
    ok,
    datasets: all,
    ...unshown.answer,
    columnstore: columnstore ?? null,
    proof_log: proofLog,
    lakes,
  };
  context.output.answer(answer, () =>
    [
      ...all.map(describeStatus),
      ...unshown.lines,
      ...(columnstore ?? []).map(describeColumns),
      describeProofLog(proofLog),
      ...lakes.map(describeLake),
    ].join('\n\n'),
  );
  return ok ? 0 : 1;
}

/** Other instruments that are not shown are counted, so that a quarantine of theirs is not overlooked. */
async function unshownOf(
  { pool }: Context,
  others: readonly DatasetDefinition[],
  shown: ReadonlySet<DatasetDefinition>,
) {
  const left = others.filter((one) => !shown.has(one));
  if (left.length === 0) return { isGood: true, answer: {}, lines: [] };
  const { rows } = await pool.query<{ id: number; proved: number; quarantined: number; rows: number }>(
    `select dataset_id as id, (count(*) filter (where state = 'proved'))::float8 as proved,
       (count(*) filter (where state = 'quarantined'))::float8 as quarantined,
       coalesce(sum(rows) filter (where state = 'proved'), 0)::float8 as rows
     from partitions where dataset_id = any ($1) group by 1`,
    [left.map(({ number }) => number)],
  );
  const counts = new Map(rows.map(({ id, ...counted }) => [id, counted]));
  const instruments = left.map(({ key, instrument, number }) => ({
    dataset: key,
    instrument,
    ...(counts.get(number) ?? { proved: 0, quarantined: 0, rows: 0 }),
  }));
  const lines = instruments.map((one) => [one.dataset, one.instrument!, one.proved, one.quarantined, one.rows]);
  return {
    isGood: instruments.every(({ quarantined }) => quarantined === 0),
    answer: { instruments },
    lines: [table(['dataset', 'instrument', 'proved', 'quarantined', 'rows'], lines)],
  };
}

const describeStretch = (range: Status['gaps'][number]) =>
  `${range.source}  ${range.from} .. ${range.to}  (${range.from_utc} .. ${range.to_utc_exclusive})`;

/** For people. A list that is cut says how many more there are. */
export function describeStatus(status: Status): string {
  const { partitions, log } = status;
  const unproved = partitions.publishing + partitions.published + partitions.quarantined;
  const lines = [
    `${status.dataset}${status.instrument === undefined ? '' : ` ${status.instrument}`}${status.synthetic ? '  (synthetic sample)' : ''}`,
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

const failedText = ({ failed_unit: failed }: Pick<RunRow, 'failed_unit'>): string =>
  failed === null ? '' : `${failed.dataset} ${failed.partition}: ${failed.code}: ${failed.reason}`;

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
            run.fault ?? failedText(run),
          ]),
        ),
  );
  return EXIT.DONE;
}
