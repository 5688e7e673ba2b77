/**
 * Query: a million native rows as JSON over HTTP beside `psql -c "copy (select row_to_json(...)) to stdout"` of the same
 * rows, and the latest 100 rows over HTTP beside the same SQL through `pg` directly. Alternating rounds after a warm-up
 * that also checks that both sides say the same. psql's own start, some 15 ms, is in its time.
 *
 * Options: --rows N (1,000,000), --rounds N (7), --latest N (2,000 of each), --json.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, rm } from 'node:fs/promises';
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { buffer } from 'node:stream/consumers';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { writeDay } from '../pipelines/sources/exchange_a/generate.ts';
import { createLogger } from '../shared/log/logger.ts';
import { acquireStack, type Stack } from '../shared/stack/stack.ts';
import { median, rounded, watch } from './measure.ts';

const ROOT = fileURLToPath(new URL('../', import.meta.url));
const DATASET = 'exchange_a_spot_trades';
const SYMBOL = 'BTCUSDT';
const DAY = '2024-03-01';
const FROM_MS = Date.parse(`${DAY}T00:00:00Z`);
const TO_MS = FROM_MS + 86_400_000;
const API_KEY = 'bench';

/** The eight fields of an answer, as the contract shows them. */
const SAME_FIELDS = `select t.trade_id, t.timestamp, t.price, t.quantity, t.quote_quantity,
  t.is_buyer_maker::int as is_buyer_maker, t.is_best_match::int as is_best_match,
  to_char(to_timestamp(t.timestamp / 1000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as datetime
  from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS} order by t.timestamp, t.trade_id`;
/** The seven stored columns as they are: less work than the contract asks for. */
const BARE = `select t.* from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS}
  order by t.timestamp, t.trade_id`;
const LATEST = `select t.trade_id, t.timestamp, t.price, t.quantity, t.quote_quantity, t.is_buyer_maker, t.is_best_match
  from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS}
  order by t.timestamp desc, t.trade_id desc limit 100`;

export async function run(argv: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      rows: { type: 'string', default: '1000000' },
      rounds: { type: 'string', default: '7' },
      latest: { type: 'string', default: '2000' },
      json: { type: 'boolean', default: false },
    },
  });
  const rows = Number(values.rows);
  const note = (line: string) => process.stderr.write(`${line}\n`);
  const directory = join(ROOT, '.tidemark', 'bench-query');
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  try {
    await using stack = await acquireStack({
      stateDir: join(directory, 'state'),
      log: createLogger('warn', 'bench'),
      progress: note,
    });
    note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
    await ingest(stack, join(directory, 'vendor'), rows);
    await using server = await startServer(stack);
    await checkSame(stack, server, rows);
    const large = await measureLarge(stack, server, Number(values.rounds), note);
    const latest = await measureLatest(stack, server, Number(values.latest));
    report({ rows, large, latest, peakMib: server.peakMib() }, values.json);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

type Large = Awaited<ReturnType<typeof measureLarge>>;
type Latest = Awaited<ReturnType<typeof measureLatest>>;

function report(found: { rows: number; large: Large; latest: Latest; peakMib: number }, json: boolean): void {
  const { rows, large, latest, peakMib } = found;
  const result = {
    bench: 'query',
    rows,
    ratio: large.ratio,
    rows_as_json: large,
    latest_100: latest,
    serving_peak_mib: peakMib,
  };
  if (json) {
    process.stdout.write(`${JSON.stringify(result)}\n`);
    return;
  }
  const count = rows.toLocaleString('en-US');
  process.stdout.write(
    `${[
      `${count} native rows as JSON, medians of ${large.rounds} rounds`,
      `  tidemark over HTTP           ${large.tidemark_s.toFixed(3)} s  (${large.mib} MiB)`,
      `  psql row_to_json, same rows  ${large.psql_s.toFixed(3)} s  ratio ${large.ratio} (${large.ratio_min}..${large.ratio_max})`,
      `  psql row_to_json, bare       ${large.psql_bare_s.toFixed(3)} s  ratio ${large.ratio_bare}`,
      `latest 100 rows, ${latest.requests} of each, one at a time`,
      `  tidemark over HTTP           p50 ${latest.tidemark_p50_ms} ms  p99 ${latest.tidemark_p99_ms} ms`,
      `  the same SQL through pg      p50 ${latest.pg_p50_ms} ms  p99 ${latest.pg_p99_ms} ms  ratio of p50 ${latest.ratio}`,
      `peak memory of the serving process ${peakMib} MiB`,
    ].join('\n')}\n`,
  );
}

async function measureLarge(stack: Stack, server: Server, rounds: number, note: (line: string) => void) {
  const ours: number[] = [];
  const same: number[] = [];
  const bare: number[] = [];
  let bytes = 0;
  for (let round = 0; round <= rounds; round++) {
    const psql = await timed(() => drained(psqlJson(stack, SAME_FIELDS, 'ignore')));
    const tidemark = await timed(async () => {
      bytes = await discard(await server.post({ time_range: [`${DAY}T00:00:00Z`, new Date(TO_MS).toISOString()] }));
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

/** Both from this process, over one connection kept open, to rows as JavaScript objects. */
async function measureLatest(stack: Stack, server: Server, requests: number) {
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
      if (answer.rows.length !== 100) throw new Error('no 100 rows were served');
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

/** Row by row, both sides parsed. */
async function checkSame(stack: Stack, server: Server, rows: number): Promise<void> {
  const answer = await server.post({ time_range: [`${DAY}T00:00:00Z`, new Date(TO_MS).toISOString()] });
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

async function ingest(stack: Stack, vendor: string, rows: number): Promise<void> {
  await writeDay({ directory: vendor, symbol: SYMBOL, day: DAY, rows, seed: 7, timeUnit: 'ms' });
  const child = spawn(join(ROOT, 'tidemark'), ['backfill', DATASET, '--from', DAY, '--to', DAY, '--json'], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      ...process.env,
      SVC_STATE_DIR: stack.stateDir,
      SVC_EXCHANGE_A_BASE_URL: pathToFileURL(join(vendor, '/')).href,
      SVC_LOG_LEVEL: 'warn',
    },
  });
  await drained(child);
  const client = new pg.Client({ connectionString: stack.databaseUrl });
  await client.connect();
  // What autovacuum would do within a minute.
  await client.query(`vacuum analyze ${DATASET}`);
  await client.end();
}

function psqlJson(stack: Stack, select: string, stdout: 'ignore' | 'pipe'): ChildProcess {
  const psql = join(stack.runtime?.postgresBin ?? '/usr/bin', 'psql');
  return spawn(psql, [stack.databaseUrl, '-c', `copy (select row_to_json(x) from (${select}) x) to stdout`], {
    stdio: ['ignore', stdout, 'inherit'],
  });
}

async function drained(child: ChildProcess): Promise<void> {
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`${child.spawnfile} ended with ${code}`);
}

interface Server extends AsyncDisposable {
  post(body: object): Promise<IncomingMessage>;
  peakMib(): number;
}

async function startServer(stack: Stack): Promise<Server> {
  const child = spawn(process.execPath, [join(ROOT, 'serving/main.ts'), '--stdin'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const watched = watch(child.pid!);
  const settings = {
    SVC_DATABASE_URL: stack.databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_HTTP_PORT: '0',
    SVC_LOG_LEVEL: 'warn',
  };
  child.stdin!.end(JSON.stringify({ settings, sample_rights: true }));
  const [line] = await once(child.stdout!, 'data');
  const { url } = JSON.parse(String(line)) as { url: string };
  const agent = new Agent({ keepAlive: true });
  return {
    post: (body) =>
      new Promise((resolve, reject) => {
        const text = JSON.stringify({ sources: [DATASET], ...body });
        const outgoing = httpRequest(
          `${url}/v1/raw/query`,
          {
            agent,
            method: 'POST',
            headers: { 'X-API-Key': API_KEY, 'Content-Length': String(Buffer.byteLength(text)) },
          },
          (response) => {
            if (response.statusCode === 200) resolve(response);
            else buffer(response).then((answer) => reject(new Error(String(answer))), reject);
          },
        );
        outgoing.on('error', reject);
        outgoing.end(text);
      }),
    peakMib: () => Math.max(...Object.values(watched.stop().peakMib)),
    async [Symbol.asyncDispose]() {
      agent.destroy();
      watched.stop();
      child.kill();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

async function discard(response: IncomingMessage): Promise<number> {
  let bytes = 0;
  for await (const chunk of response) bytes += (chunk as Buffer).length;
  return bytes;
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return (performance.now() - startedAt) / 1000;
}
