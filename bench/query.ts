/**
 * Query benchmark. It compares a million native rows as JSON over HTTP with `psql -c "copy (select row_to_json(...)) to
 * stdout"` of the same rows, and the latest 100 rows over HTTP with the same SQL through `pg`. Rounds alternate, after a
 * warm-up that also checks that both sides return the same rows. The time of psql includes its start, some 15 ms. Further
 * parts: the same rows in every representation (representations.ts), small reads during large ones (mixed-load.ts), memory at
 * ten million rows (memory.ts), many clients and many chunks (load.ts).
 *
 * Options: --rows N (1,000,000), --rounds N (7), --latest N (2,000 of each), --processes N (1; serving processes, of `beside`),
 * --only rows|latest|representations|beside|memory|load, --json.
 */
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import type { Stack } from '../shared/stack/stack.ts';
import { benchHarness, type Note } from './harness.ts';
import { LOAD_DEFAULTS, type Load, loadLines, measureLoad } from './load.ts';
import { median, rounded, timed } from './measure.ts';
import { type Memory, measureMemory, memoryLines } from './memory.ts';
import { type MixedLoad, measureMixedLoad, mixedLoadLines } from './mixed-load.ts';
import { optionsOf } from './options.ts';
import {
  DATASET,
  discard,
  drained,
  FROM_MS,
  ingest,
  psqlJson,
  type QueryServer,
  SAME_FIELDS,
  startServer,
  TO_MS,
  WHOLE_DAY,
} from './query-subjects.ts';
import { linesOf, measureRepresentations, type RepresentationFigures } from './representations.ts';

/** The parts that `--only` can select. */
const PARTS = ['rows', 'latest', 'representations', 'beside', 'memory', 'load'] as const;
/** Parts that load rows of their own. */
const NEEDS_NO_DAY: ReadonlySet<string> = new Set(['memory', 'load']);

/** The seven stored columns without conversion: less work than the contract requires. */
const BARE = `select t.* from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS}
  order by t.timestamp, t.trade_id`;
const LATEST = `select t.trade_id, t.timestamp, t.price, t.quantity, t.quote_quantity, t.is_buyer_maker, t.is_best_match
  from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS}
  order by t.timestamp desc, t.trade_id desc limit 100`;

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, rounds, only, ...options } = optionsOf(argv, {
    counts: { rows: [1_000_000, 1], rounds: [7, 1], latest: [2000, 1], processes: [1, 1] },
    choices: { only: PARTS },
  });
  const wants = (part: string) => only === undefined || only === part;
  await using harness = await benchHarness('query');
  const { directory, stack, note } = harness;
  const vendor = join(directory, 'vendor');
  if (!NEEDS_NO_DAY.has(only ?? '')) {
    note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
    await ingest(stack, vendor, { rows });
  }
  const found: Found = { rows };
  if (wants('rows') || wants('latest')) {
    await using server = await startServer(stack);
    if (wants('rows')) {
      await checkSame(stack, server, rows);
      found.large = await measureLarge(stack, server, rounds, note);
    }
    if (wants('latest')) found.latest = await measureLatest(stack, server, options.latest);
    found.peakMib = server.peakMib();
  }
  if (wants('representations')) found.representations = await measureRepresentations(stack, rows, rounds, note);
  if (wants('beside'))
    found.beside = await measureMixedLoad(stack, { latest: LATEST, processes: options.processes }, note);
  if (wants('memory')) found.memory = await measureMemory(stack.databaseUrl, note);
  if (wants('load')) found.load = await measureLoad({ ...LOAD_DEFAULTS, databaseUrl: stack.databaseUrl, note });
  report(found, options.json);
}

interface Found {
  readonly rows: number;
  large?: Awaited<ReturnType<typeof measureLarge>>;
  latest?: Awaited<ReturnType<typeof measureLatest>>;
  peakMib?: number;
  load?: Load;
  representations?: readonly RepresentationFigures[];
  beside?: MixedLoad;
  memory?: Memory;
}

function report(found: Found, json: boolean): void {
  const { rows, large, latest, peakMib, load, representations, beside, memory } = found;
  if (json) {
    const result = {
      bench: 'query',
      rows,
      ratio: large?.ratio,
      rows_as_json: large,
      latest_100: latest,
      serving_peak_mib: peakMib,
      load,
      representations,
      beside,
      memory,
    };
    process.stdout.write(`${JSON.stringify(result)}\n`);
    return;
  }
  const count = rows.toLocaleString('en-US');
  const lines: string[] = [];
  if (large) {
    lines.push(
      `${count} native rows as JSON, medians of ${large.rounds} rounds`,
      `  tidemark over HTTP           ${large.tidemark_s.toFixed(3)} s  (${large.mib} MiB)`,
      `  psql row_to_json, same rows  ${large.psql_s.toFixed(3)} s  ratio ${large.ratio} (${large.ratio_min}..${large.ratio_max})`,
      `  psql row_to_json, bare       ${large.psql_bare_s.toFixed(3)} s  ratio ${large.ratio_bare}`,
    );
  }
  if (latest) {
    lines.push(
      `latest 100 rows, ${latest.requests} of each, one at a time`,
      `  tidemark over HTTP           p50 ${latest.tidemark_p50_ms} ms  p99 ${latest.tidemark_p99_ms} ms`,
      `  the same SQL through pg      p50 ${latest.pg_p50_ms} ms  p99 ${latest.pg_p99_ms} ms  ratio of p50 ${latest.ratio}`,
    );
  }
  if (load) lines.push(...loadLines(load));
  if (peakMib !== undefined) lines.push(`peak memory of the serving process ${peakMib} MiB`);
  if (representations) {
    lines.push(
      `${count} native rows in each representation, over psql row_to_json of the same rows`,
      ...linesOf(representations),
    );
  }
  if (beside) lines.push(...mixedLoadLines(beside));
  if (memory) lines.push(...memoryLines(memory));
  process.stdout.write(`${lines.join('\n')}\n`);
}

async function measureLarge(stack: Stack, server: QueryServer, rounds: number, note: Note) {
  const ours: number[] = [];
  const same: number[] = [];
  const bare: number[] = [];
  let bytes = 0;
  for (let round = 0; round <= rounds; round++) {
    const psql = await timed(() => drained(psqlJson(stack, SAME_FIELDS, 'ignore')));
    const tidemark = await timed(async () => {
      bytes = await discard(await server.post(WHOLE_DAY));
    });
    const psqlBare = await timed(() => drained(psqlJson(stack, BARE, 'ignore')));
    note(
      `psql ${psql.toFixed(3)} s  tidemark ${tidemark.toFixed(3)} s  ratio ${rounded(tidemark / psql, 3)}${round === 0 ? '  (warm-up)' : ''}`,
    );
    if (round === 0) continue;
    ours.push(tidemark);
    same.push(psql);
    bare.push(psqlBare);
  }
  const ratios = ours.map((seconds, round) => seconds / same[round]);
  return {
    rounds,
    tidemark_s: rounded(median(ours), 3),
    psql_s: rounded(median(same), 3),
    psql_bare_s: rounded(median(bare), 3),
    ratio: rounded(median(ratios), 3),
    ratio_min: rounded(Math.min(...ratios), 3),
    ratio_max: rounded(Math.max(...ratios), 3),
    ratio_bare: rounded(median(ours.map((seconds, round) => seconds / bare[round])), 3),
    mib: Math.round(bytes / 2 ** 20),
  };
}

/** Both sides run in this process over one open connection and end with rows as JavaScript objects. */
async function measureLatest(stack: Stack, server: QueryServer, requests: number) {
  const client = new pg.Client({ connectionString: stack.databaseUrl });
  await client.connect();
  const ours: number[] = [];
  const theirs: number[] = [];
  const warmUp = Math.ceil(requests / 4);
  for (let i = 0; i < requests + warmUp; i++) {
    const direct = await timed(async () => {
      if ((await client.query(LATEST)).rows.length !== 100) throw new Error('pg did not find 100 rows');
    });
    const http = await timed(async () => {
      const answer = JSON.parse(String(await buffer(await server.post({ n_rows: 100 }))));
      if (answer.rows.length !== 100) throw new Error('the service did not return 100 rows');
    });
    if (i < warmUp) continue;
    theirs.push(direct * 1000);
    ours.push(http * 1000);
  }
  await client.end();
  const at = (values: number[], share: number) =>
    rounded(values.toSorted((a, b) => a - b)[Math.floor(values.length * share)], 3);
  return {
    requests,
    tidemark_p50_ms: at(ours, 0.5),
    tidemark_p99_ms: at(ours, 0.99),
    pg_p50_ms: at(theirs, 0.5),
    pg_p99_ms: at(theirs, 0.99),
    ratio: rounded(median(ours) / median(theirs), 2),
  };
}

/** Compares the parsed rows of both sides one by one. */
async function checkSame(stack: Stack, server: QueryServer, rows: number): Promise<void> {
  const answer = await server.post(WHOLE_DAY);
  const body = String(await buffer(answer));
  const served = body.slice(body.indexOf('"rows":[{') + 9, body.lastIndexOf('}]')).split('},{');
  if (served.length !== rows) throw new Error(`${served.length} rows were served, ${rows} ingested`);
  const psql = psqlJson(stack, SAME_FIELDS, 'pipe');
  let row = 0;
  for await (const line of createInterface({ input: psql.stdout! })) {
    const ours = JSON.stringify(JSON.parse(`{${served[row++]}}`));
    if (JSON.stringify(JSON.parse(line)) !== ours) throw new Error(`row ${row} differs: ${line} / ${ours}`);
  }
  if (row !== rows) throw new Error(`psql wrote ${row} rows`);
}
