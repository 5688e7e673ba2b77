import { jetstreamManager } from '@nats-io/jetstream';
import { DATASETS, datasetOf } from '../../../shared/registry/index.ts';
import { collect, type Standing } from '../../../shared/status/collect.ts';
import type { Lag } from '../../../shared/status/overview.ts';
import { datasetStatus } from '../../prove/status.ts';
import { type Context, openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';

type Status = Awaited<ReturnType<typeof datasetStatus>>;

export async function runStatus(command: ParsedCommand): Promise<number> {
  const asked = command.positionals[0];
  const datasets = new Set(asked === undefined ? DATASETS.values() : [datasetOf(asked)]);
  await using context = await openContext(command, 'status');
  const needs = { pool: context.pool, catalog: context.catalog, connection: await context.nats() };
  const standings = await standingsOf(context);
  const all: Status[] = [];
  for (const one of standings.filter(({ dataset }) => datasets.has(dataset))) all.push(await datasetStatus(needs, one));
  const ok = all.every((status) => status.partitions.quarantined === 0 && !status.log?.fault);
  context.output.answer({ command: 'status', ok, datasets: all }, () => all.map(describe).join('\n\n'));
  return ok ? 0 : 1;
}

async function standingsOf(context: Context): Promise<readonly Standing[]> {
  const client = await context.pool.connect();
  try {
    const collected = await collect(client, async () => jetstreamManager(await context.nats(), { checkAPI: false }));
    return collected.standings;
  } finally {
    client.release();
  }
}

const describeStretch = (range: Status['gaps'][number]) =>
  `${range.source}  ${range.from} .. ${range.to}  (${range.from_utc} .. ${range.to_utc_exclusive})`;

function describe(status: Status): string {
  const { partitions, log } = status;
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
    ...status.proved_ranges.map((range) => `proved    ${describeStretch(range)}`),
    ...status.gaps.map((gap) => `gap       ${describeStretch(gap)}`),
    ...status.offset_breaks.map(
      (at) => `id break  ${at.before} ends at ${at.last_offset}, ${at.partition} begins at ${at.first_offset}`,
    ),
    ...status.unproved.map(
      (unit) =>
        `${unit.state.padEnd(9)} ${unit.partition} attempt ${unit.attempt}${unit.reason ? `: ${unit.reason}` : ''}`,
    ),
    ...status.late_arrivals.map((late) => `late      ${late.partition} at ${late.at_utc}: ${late.reason}`),
  ];
  if (log?.fault) lines.push(`log       ${log.fault}`);
  if (log) {
    lines.push(
      `log       ${log.messages.toLocaleString('en-US')} messages, ${(log.bytes / 1e6).toFixed(1)} MB of ${(log.max_bytes / 1e9).toFixed(1)} GB; projected to ${log.checkpoint_sequence} of ${log.last_sequence}, lag ${describeLag(log.lag)}; unreferenced ${log.unreferenced_messages}`,
    );
  }
  return lines.join('\n');
}

function describeLag({ frames, events, event_time_seconds: seconds, oldest_seconds: waiting }: Lag): string {
  if (frames === 0) return '0';
  return `${frames} messages, ${events.toLocaleString('en-US')} events, ${Math.round(seconds)} s of event time, waiting for ${Math.round(waiting)} s`;
}
