/**
 * Instruments of exchange A beside its default: many of small days in one backfill, and what they cost; two of full size in one backfill
 * beside twice the default; and small reads of another instrument beside those of the default, at equal rows.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import * as exchangeA from '../pipelines/sources/exchange_a/sample.ts';
import { DAY_MS } from '../shared/dates.ts';
import { datasetOf } from '../shared/registry/index.ts';
import { othersTable } from '../shared/registry/instruments.ts';
import { dayOf, iso } from './days.ts';
import type { Lab } from './lab.ts';
import { timed, timedEach, watch } from './measure.ts';
import { connected, DATASET } from './others.ts';
import { ARROW, ended, QUERY, type Settings, startCommand, startService } from './service.ts';
import { subject } from './subject.ts';

const DEFAULT = 'BTCUSDT';
const FROM_MS = Date.parse('2024-03-01');
const HOUR_MS = 3_600_000;
/** Days of full size come after the small ones. */
const FULL_MS = Date.parse('2024-06-01');
const ROUND_DAYS = 5;

export const instruments = subject({
  name: 'instruments',
  compares: 'many instruments of small days; two of full size in one backfill, beside twice one; small reads of both',
  options: { instruments: 64, days: 30, small: 1000, rows: 1_500_000, requests: 200 },
  rounds: 1,
  smallest: '--instruments 2 --days 2 --small 20 --rows 500 --requests 2',
  async run(lab, { instruments: count, days, small, rows, requests }) {
    const others = Array.from({ length: count }, (_, at) => `X${at}USDT`);
    const folder = join(lab.directory, 'vendor');
    const settings: Settings = {
      SVC_EXCHANGE_A_BASE_URL: pathToFileURL(join(folder, '/')).href,
      SVC_EXCHANGE_A_ALSO: others.join(),
    };
    const run = (...args: readonly string[]) => startCommand(lab.stack.stateDir, [...args, '--json'], settings);
    const backfill = (fromMs: number, last: number, names: string) =>
      run('backfill', DATASET, '--from', dayOf(fromMs), '--to', dayOf(last), '--instrument', names);
    const write = async (
      symbols: readonly string[],
      fromMs: number,
      last: number,
      of: { readonly rowsPerDay: number; readonly firstId: number },
    ) => {
      const plan = exchangeA.consecutiveDays({
        ...{ from: dayOf(fromMs), to: dayOf(last), seed: 7, timeUnit: 'ms', ...of },
      });
      for (const symbol of symbols) {
        for (const day of plan) await exchangeA.writeDay({ directory: folder, symbol, ...day });
      }
    };

    lab.note(`generating ${days} days of ${small.toLocaleString('en-US')} trades of ${count} instruments`);
    const last = FROM_MS + (days - 1) * DAY_MS;
    await write(others, FROM_MS, last, { rowsPerDay: small, firstId: 1 });
    const child = backfill(FROM_MS, last, others.join());
    const watched = watch(child.pid!);
    const ms = await timed(() => ended(child))(1);
    const { peakMib } = watched.stop();
    lab.fact(`backfill of ${count} instruments of ${days} days of ${small} trades, s`, Math.round(ms) / 1000);
    lab.fact(
      'peak memory of its processes, MiB',
      Object.values(peakMib).reduce((sum, one) => sum + one, 0),
    );
    lab.fact('chunks of the table that they share', await chunksOf(lab));
    const status = timed(() => ended(run('status', DATASET, '--instrument', 'all')));
    await status(0);
    lab.fact('status of all of them, ms', Math.round(await status(1)));

    const [one] = others;
    // Of each round: the day of both instruments, two of the default in two commands, and two in one.
    const at = (round: number, day: number) => FULL_MS + (ROUND_DAYS * round + day) * DAY_MS;
    lab.note(`generating days of ${rows.toLocaleString('en-US')} trades`);
    for (let round = 0; round <= lab.rounds; round++) {
      const firstId = 1 + days * small + ROUND_DAYS * round * rows;
      await write([one], at(round, 0), at(round, 0), { rowsPerDay: rows, firstId });
      await write([DEFAULT], at(round, 0), at(round, ROUND_DAYS - 1), { rowsPerDay: rows, firstId });
    }
    const ofDefault = (round: number, from: number, to: number) =>
      ended(backfill(at(round, from), at(round, to), DEFAULT));
    await lab.compare(`a day of ${rows.toLocaleString('en-US')} trades of two instruments in one backfill`, {
      tidemark: timed((round) => ended(backfill(at(round, 0), at(round, 0), `${DEFAULT},${one}`))),
      'twice a day of the default': timed(async (round) => {
        for (const day of [1, 2]) await ofDefault(round, day, day);
      }),
      'two days of the default in one': timed((round) => ofDefault(round, 3, 4)),
    });

    await using service = await startService(lab.stack.databaseUrl, settings);
    const hour = [iso(FULL_MS + 12 * HOUR_MS), iso(FULL_MS + 13 * HOUR_MS)];
    for (const [what, body] of [
      ['the latest 100', { n_rows: 100 }],
      ['an hour as Arrow', { time_range: hour }],
    ] as const) {
      const ask = (instrument: string) =>
        timedEach(requests, () => service.drain(QUERY, { sources: [DATASET], instrument, ...body }, ARROW));
      await lab.compare(`${what} of another instrument`, { tidemark: ask(one), 'of the default': ask(DEFAULT) });
    }
  },
});

async function chunksOf({ stack }: Lab): Promise<number> {
  await using client = await connected(stack.databaseUrl);
  const { rows } = await client.pg.query(
    'select count(*)::int4 as n from timescaledb_information.chunks where hypertable_name = $1',
    [othersTable(datasetOf(DATASET))],
  );
  return rows[0].n;
}
