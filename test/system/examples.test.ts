/** The programs of examples/, as a reader runs them: against a service with proved days, a log, and answers that break. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sha256OfFile } from '../../pipelines/sources/documents/locations.ts';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { framePythonOf, pythonOf } from '../../serving/page/static/snippets.js';
import { ROOT } from '../support/command.ts';
import { given, givenTool } from '../support/given.ts';
import { type HttpFaultProxy, startHttpFaultProxy } from '../support/http-fault-proxy.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { csvOf, DATASET, documentPath, System, writeDocument } from '../support/pipeline.ts';
import { API_KEY, SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { clientPython, snippetPython } from '../support/tools.ts';
import { macroWorld } from '../support/worlds.ts';

const DAYS = ['2024-01-01', '2024-01-02'];
const ROWS = 5000;
const OTHER = 'ETHUSDT';
let system: System;
let serving: Serving;
let proxy: HttpFaultProxy;
/** Of the last day. */
let csv: string;

beforeAll(async () => {
  system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    csv = csvOf({ day, rows: ROWS, firstId: 1 + index * ROWS, seed: index, timeUnit: 'ms' });
    await writeDocument(system.vendor, day, csv);
  }
  expect((await system.backfill(DAYS[0], DAYS[1])).exit).toBe(0);
  const ofOther = { symbol: OTHER, rows: ROWS, startPrice: 2500, firstId: 1, seed: 7, timeUnit: 'ms' as const };
  await writeDay({ directory: system.vendor, day: DAYS[1], ...ofOther });
  const location = { SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${system.vendor}/`).href, SVC_EXCHANGE_A_ALSO: OTHER };
  const ofDay = ['--from', DAYS[1], '--to', DAYS[1], '--instrument', OTHER];
  expect((await system.run(['backfill', DATASET, ...ofDay], location)).exit).toBe(0);
  const settings = { SVC_NATS_READER_URL: system.env.natsReaderUrl };
  serving = await startServing({ databaseUrl: system.env.databaseUrl, settings });
  proxy = await startHttpFaultProxy(serving.url);
});
afterAll(async () => {
  await proxy?.[Symbol.asyncDispose]();
  await serving?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

async function run(command: readonly string[], key = API_KEY, url = proxy.url) {
  const [program, ...args] = command;
  const child = spawn(program, args, {
    cwd: ROOT,
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      PYTHONPATH: join(ROOT, 'client/python/src'),
      TIDEMARK_URL: url,
      TIDEMARK_KEY: key,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [stdout, stderr, [exit]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  return { exit, stdout, stderr };
}

const has = (program: string) => spawnSync(program, ['--version']).status === 0;
/** Debian's packages have the names of the programs. */
const givenAll = (needs: readonly string[]) => {
  const missing = needs.filter((program) => !has(program)).join(' ');
  return given(missing === '', `a program is missing: apt-get install ${missing}`);
};
const PROGRAMS = [
  { file: 'largest-trade.sh', needs: ['bash', 'curl', 'jq'], command: ['bash'] },
  { file: 'largest-trade.ts', needs: [], command: [process.execPath] },
  { file: 'largest-trade.py', needs: ['python3'], command: ['python3'] },
];

for (const { file, needs, command } of PROGRAMS) {
  givenAll(needs).describe(`examples/${file}`, () => {
    const example = [...command, join(ROOT, 'examples', file)];

    test('follows the largest trade to the line of the file', async () => {
      const { exit, stdout, stderr } = await run(example);
      expect([exit, stderr]).toEqual([0, '']);
      const lines = stdout.trimEnd().split('\n');
      const ofDatasets = lines.slice(0, -3);
      expect(ofDatasets[0]).toBe(`${DATASET}: ${2 * ROWS} rows from ${DAYS[0]} to ${DAYS[1]}`);
      expect(ofDatasets).toContain('macro_series_metrics: nothing proved');
      const trades = csv.trimEnd().split('\n');
      const [largest] = trades.toSorted((one, other) => quantityOf(other) - quantityOf(one));
      const [id, price] = largest.split(',');
      const document = join(system.vendor, documentPath(DAYS[1]));
      expect(lines.slice(-3)).toEqual([
        `${DAYS[1]}: ${ROWS} trades; the largest, ${id}, is ${quantityOf(largest)} at ${Number(price)}`,
        `BTCUSDT-trades-${DAYS[1]}.zip, sha256 ${(await sha256OfFile(document)).sha256}, has the line`,
        largest,
      ]);
    });

    test('says why the service refuses', async () => {
      const { exit, stdout, stderr } = await run(example, 'wrong');
      expect([exit, stdout]).toEqual([1, '']);
      expect(stderr).toContain('AUTH_INVALID_API_KEY');
    });

    test('says which datasets are refused, and does not call their rows unproved', async () => {
      await using sample = await startServing({
        databaseUrl: system.env.databaseUrl,
        rightsMatrixPath: SAMPLE_MATRIX,
      });
      const { exit, stdout, stderr } = await run(example, API_KEY, sample.url);
      expect(exit).toBe(1);
      expect(stdout).toContain(`${DATASET}: refused with QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING\n`);
      expect(stderr).toContain(`no proved rows of ${DATASET} are served`);
    });

    test('fails when the answer breaks off', async () => {
      // The answer with the rows is the second.
      proxy.spoil({ cutAfterBytes: 1e9 }, { cutAfterBytes: 3000 });
      const { exit, stdout } = await run(example);
      expect(exit).toBe(1);
      expect(stdout).not.toContain('the largest');
    });
  });
}

const quantityOf = (line: string) => Number(line.split(',')[2]);

const PYTHON = await clientPython();
const SNIPPET_PYTHON = await snippetPython();

const BACKTESTS = [
  { file: 'backtest.ts', program: { path: process.execPath }, options: [] },
  // The world is old, of which it warns.
  { file: 'backtest.py', program: PYTHON, options: ['-W', 'ignore'] },
];

for (const { file, program, options } of BACKTESTS) {
  givenTool(program).describe(`examples/${file}`, () => {
    test('shows a frame, or says why the service refuses', async () => {
      await loadWorld(system.env.databaseUrl, macroWorld(1));
      const example = [program.path, ...options, join(ROOT, 'examples', file)];
      const { exit, stdout, stderr } = await run(example);
      expect([exit, stderr]).toEqual([0, '']);
      expect(stdout).toMatch(/72 hours/);
      const refused = await run(example, 'wrong');
      expect(refused.exit).toBe(1);
      expect(refused.stderr).toContain('AUTH_INVALID_API_KEY');
      expect(refused.stderr).not.toContain('Traceback');
    });
  });
}

const RATIOS = [
  { file: 'eth-btc.ts', program: { path: process.execPath }, options: [] },
  { file: 'eth-btc.py', program: PYTHON, options: ['-W', 'ignore'] },
];

for (const { file, program, options } of RATIOS) {
  givenTool(program).test(`examples/${file} joins two instruments, or says why the service refuses`, async () => {
    const example = [program.path, ...options, join(ROOT, 'examples', file)];
    const { exit, stdout, stderr } = await run(example);
    expect([exit, stderr]).toEqual([0, '']);
    const lines = stdout.trimEnd().split('\n');
    expect(lines.slice(0, 2)).toEqual([`BTCUSDT: ${2 * ROWS} trades`, `${OTHER}: ${ROWS} trades`]);
    expect(lines).toHaveLength(2 + 24);
    const priceOf = async (instrument?: string) =>
      (await serving.query({ sources: [DATASET], n_rows: 1, instrument })).json.rows[0].price;
    const [btc, eth] = [await priceOf(), await priceOf(OTHER)];
    expect(lines.at(-1)!.split(' ').slice(-3)).toEqual([String(btc), String(eth), (eth / btc).toFixed(6)]);
    const refused = await run(example, 'wrong');
    expect([refused.exit, refused.stdout]).toEqual([1, '']);
    expect(refused.stderr).toContain('AUTH_INVALID_API_KEY');
    expect(refused.stderr).not.toContain('Traceback');
  });
}

const GAP = { file: 'gap.ts' };

test(`examples/${GAP.file} says of the longest gap whether it is real, or why the service refuses`, async () => {
  const example = [process.execPath, join(ROOT, 'examples', GAP.file)];
  const { exit, stdout, stderr } = await run(example);
  expect([exit, stderr]).toEqual([0, '']);
  const [first, second, gap, verdict] = stdout.trimEnd().split('\n');
  expect([first, second]).toEqual(DAYS.map((day) => `${day} available`));
  // The longest time between two lines of the files, by what they say themselves.
  const lines = DAYS.flatMap((day, index) =>
    csvOf({ day, rows: ROWS, firstId: 1 + index * ROWS, seed: index, timeUnit: 'ms' })
      .trimEnd()
      .split('\n'),
  ).map((line) => line.split(',').map(Number));
  const longest = Math.max(...lines.slice(1).map(([, , , , at], index) => at - lines[index][4]));
  const at = lines.findIndex(([, , , , ms], index) => lines[index + 1]?.[4] - ms === longest);
  expect(longest).toBeGreaterThan(60_000);
  const [from, to] = [at, at + 1].map((index) => new Date(lines[index][4]).toISOString());
  const ids = `the ids ${lines[at][0]} and ${lines[at + 1][0]}`;
  expect(gap).toBe(`${from} to ${to}: ${longest / 1000} s without a trade, between ${ids}`);
  expect(verdict).toBe('The gap is real: the ids follow each other.');
  const refused = await run(example, 'wrong');
  expect([refused.exit, refused.stdout]).toEqual([1, '']);
  expect(refused.stderr).toContain('AUTH_INVALID_API_KEY');
});

// `raise_for_status` says only "409 Client Error: Conflict".
givenTool(SNIPPET_PYTHON).test('the Python that the page shows ends with what the service says', async () => {
  const request = { path: '/v1/raw/query', body: { sources: [DATASET], n_rows: 0 } };
  for (const program of [pythonOf(request), framePythonOf(request)]) {
    const refused = await run([SNIPPET_PYTHON.path, '-c', program]);
    expect(refused).toEqual({ exit: 1, stdout: '', stderr: '/n_rows must be an integer from 1.\n' });
  }
});

givenTool(PYTHON).test('README.md and docs/python.md: the first lines show klines', async () => {
  for (const page of ['README.md', 'docs/python.md']) {
    const [, program] = /```python\n([\s\S]+?)```/.exec(await readFile(join(ROOT, page), 'utf8'))!;
    const { exit, stdout, stderr } = await run([PYTHON.path, '-W', 'ignore', '-c', program]);
    expect([page, exit, stderr]).toEqual([page, 0, '']);
    expect(stdout).toMatch(/open .* close|open .*\.\.\./);
  }
});

describe('examples/README.md', () => {
  test('names every program', async () => {
    const page = await readFile(join(ROOT, 'examples/README.md'), 'utf8');
    for (const { file } of [...PROGRAMS, ...BACKTESTS, ...RATIOS, GAP]) expect(page.split(file)).toHaveLength(3);
  });
});

// The end of a state is the millisecond after it: a second before that is the day before.
describe('the last day of a series', () => {
  beforeAll(() => loadWorld(system.env.databaseUrl, macroWorld(1)));
  for (const { file, needs, command } of PROGRAMS) {
    givenAll(needs).test(`is that of its last row in examples/${file}`, async () => {
      const { json } = await serving.query({ sources: ['macro_series_metrics'], n_rows: 1 });
      const last = json.rows[0].observed_at_utc.slice(0, 10);
      const { stdout } = await run([...command, join(ROOT, 'examples', file)]);
      const [said] = /^macro_series_metrics: .*$/m.exec(stdout)!;
      expect(said).toMatch(new RegExp(` to ${last}$`));
    });
  }
});
