/**
 * README, docs and examples as they stand: every block of a program, in order, in one checkout on one fresh state, as a reader runs
 * them. A block is left out only by `<!-- not run: reason -->` before it.
 *
 * What a page shows of an answer is what is answered. `<!-- values differ -->` before it says that its numbers, digests and times are
 * of the day's sample; `TIDEMARK_DOCS_UPDATE=1` writes those of today into the pages.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { ROOT } from '../support/command.ts';
import { given, givenTool } from '../support/given.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { compareAnswer } from '../support/shown-answers.ts';
import { temporaryDir } from '../support/stack.ts';
import { docsPython } from '../support/tools.ts';

interface Block {
  readonly line: number;
  readonly language: string;
  readonly text: string;
  /** Why it is not run. */
  readonly reason: string | undefined;
  /** What the page shows as its answer, and where. */
  readonly shown: { readonly text: string; readonly at: number; readonly valuesDiffer: boolean } | undefined;
}

const RENEWS = process.env.TIDEMARK_DOCS_UPDATE !== undefined;

/** Languages of what is shown and not run: answers, drawings, settings of others. */
const SHOWN = new Set(['text', 'mermaid', 'yaml']);

function blocksOf(page: string): Block[] {
  const whole = readFileSync(join(ROOT, page), 'utf8');
  const fences = [
    ...whole.matchAll(/^(?:<!-- not run: (.+) -->\n|(<!-- values differ -->\n))?```(\w+)\n([\s\S]*?)^```$/gm),
  ];
  return fences.flatMap(({ 0: all, 1: reason, 3: language, 4: body, index }, at) => {
    if (SHOWN.has(language)) return [];
    const next = fences[at + 1];
    const isAnswered = next?.[3] === 'text' && whole.slice(index + all.length, next.index).trim() === '';
    const line = whole.slice(0, index).split('\n').length;
    return [{ line, language, text: body, reason, shown: isAnswered ? shownIn(next) : undefined }];
  });
}

const shownIn = ({ 0: all, 2: mark, 4: body, index }: RegExpExecArray) => ({
  text: body,
  at: index + all.lastIndexOf(body),
  valuesDiffer: mark !== undefined,
});

const PAGES = [
  'README.md',
  ...readdirSync(join(ROOT, 'docs'))
    .sort()
    .map((name) => `docs/${name}`),
  'examples/README.md',
]
  // The blocks of the lake's page are one an engine: test/support/lake-engines.ts runs each in its own.
  .filter((page) => page.endsWith('.md') && page !== 'docs/lake.md')
  .map((page) => ({ page, blocks: blocksOf(page) }))
  .filter(({ blocks }) => blocks.length > 0);

const has = (program: string) => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
const missing = ['bash', 'curl', 'jq', 'unzip', 'python3'].filter((program) => !has(program)).join(' ');

/** A statement of DuckDB, from standard input. */
const DUCKDB = `import { text } from 'node:stream/consumers';
import { DuckDBInstance } from '@duckdb/node-api';
const connection = await (await DuckDBInstance.create()).connect();
console.log((await connection.runAndReadAll(await text(process.stdin))).getRowObjectsJson());
`;

/** How a block runs in the shell of its page. */
const RUN: Readonly<Record<string, (text: string, number: number) => string>> = {
  sh: (script) => script,
  python: (program) => heredoc('python3 -', program),
  // The blocks of a page are one program: each goes on with what those before it declared.
  ts: (program, number) => `${heredoc('cat >> page.ts', program)}\n[ ${number} -gt 0 ] || npx node page.ts`,
  json: (body) => heredoc('curl -s "$TIDEMARK_URL/v1/raw/query" -H "X-API-Key: $TIDEMARK_KEY" -d @-', body),
  sql: (statement) => heredoc('npx node duckdb.mjs', statement),
};
const heredoc = (command: string, body: string) => `${command} <<'END_OF_BLOCK'\n${body}END_OF_BLOCK`;

/** The script of a page. Its curl fails where the service refuses, and it says at which block it ended. */
function scriptOf(page: string, blocks: readonly Block[]): string {
  const run = blocks.filter(({ reason }) => reason === undefined);
  const programs = run.filter(({ language }) => language === 'ts').length;
  let program = 0;
  const parts = run.map(({ line, language, text: body }) => {
    const left = language === 'ts' ? programs - ++program : 0;
    return `at=${page}:${line}; printf "\\n@@ ${line}\\n"\n${RUN[language](body, left)}`;
  });
  return [
    'set -Eeuo pipefail',
    `trap 'echo "$at failed" >&2' ERR`,
    'curl() { command curl --fail-with-body "$@"; }',
    ...parts,
  ].join('\n');
}

const PYTHON = await docsPython();

given(missing === '', `a program is missing: apt-get install ${missing}`).describe('every block', () => {
  let checkout: string;
  let up: ChildProcess;
  const path = [...(PYTHON.path === '' ? [] : [dirname(PYTHON.path)]), process.env.PATH].join(delimiter);
  const env = () => ({ PATH: path, HOME: process.env.HOME, PYTHONPATH: join(checkout, 'client/python/src') });

  beforeAll(async () => {
    checkout = await temporaryDir();
    const files = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], { cwd: ROOT })
      .toString()
      .split('\0')
      .filter((file) => file !== '' && existsSync(join(ROOT, file)));
    execFileSync('cp', ['-p', '--parents', ...files, checkout], { cwd: ROOT });
    symlinkSync(join(ROOT, 'node_modules'), join(checkout, 'node_modules'));
    writeFileSync(join(checkout, 'duckdb.mjs'), DUCKDB);
    up = spawn(join(checkout, 'tidemark'), ['up'], {
      cwd: checkout,
      env: { ...env(), SVC_HTTP_PORT: '0' },
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    let said = '';
    up.stdout!.setEncoding('utf8').on('data', (more) => {
      said += more;
    });
    await vi.waitUntil(() => said.includes('Ctrl-C stops') || up.exitCode !== null, { timeout: PATIENCE_MS });
    expect(up.exitCode).toBeNull();
  });
  afterAll(async () => {
    if (up.exitCode === null) {
      up.kill('SIGTERM');
      await once(up, 'exit');
    }
    rmSync(checkout, { recursive: true, force: true });
  });

  async function runPage(page: string, blocks: readonly Block[]) {
    // Paths below /tmp are the reader's; here they are the test's own.
    const script = scriptOf(page, blocks).replaceAll(/(?<![\w.])\/tmp\//g, `${checkout}/tmp/`);
    const bound = page === 'README.md' ? '' : 'eval "$(./tidemark env)"\n';
    rmSync(join(checkout, 'page.ts'), { force: true });
    const child = spawn('bash', ['-c', bound + script], {
      cwd: checkout,
      env: env(),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [stdout, stderr, [exit]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
    return { exit, stdout, stderr };
  }

  describe.each(PAGES)('of $page', ({ page, blocks }) => {
    const isPython = blocks.some(
      ({ language, text: script, reason }) =>
        (language === 'python' || script.includes('python3 ')) && reason === undefined,
    );
    (isPython ? givenTool(PYTHON) : given(true, '')).test(
      'runs, in order, and answers what the page shows',
      async () => {
        await mkdir(join(checkout, 'tmp'), { recursive: true });
        const { exit, stdout, stderr } = await runPage(page, blocks);
        expect([page, exit], `${stderr.slice(-2000)}\n${stdout.slice(-1000)}`).toEqual([page, 0]);
        const answerOf = ({ line }: Block) =>
          stdout
            .slice(stdout.indexOf(`@@ ${line}\n`))
            .split(/^@@ /m)[1]
            .replace(/^\d+/, '');
        expectShown(page, blocks, answerOf);
        if (page !== 'README.md' || RENEWS) return;
        const walk = blocks.findIndex(({ text: script }) => script.includes('./tidemark event'));
        const look = blocks[walk + 1];
        expect(look.text).toContain('unzip -p');
        const shown = blocks[walk].shown!.text;
        const [event, digest] = [shown.split('\n')[0], /zip {2}sha256 (\w+)/.exec(shown)![1]];
        for (const expected of [event, `${digest} `]) expect(answerOf(look)).toContain(expected);
      },
      180_000,
    );
  });
});

/** @param answerOf what a block printed */
function expectShown(page: string, blocks: readonly Block[], answerOf: (block: Block) => string): void {
  const path = join(ROOT, page);
  const whole = readFileSync(path, 'utf8');
  let renewed = whole;
  const faults: string[] = [];
  for (const block of blocks.toReversed()) {
    if (block.reason !== undefined || block.shown === undefined) continue;
    const { text: shown, at } = block.shown;
    const compared = compareAnswer(shown, answerOf(block), block.shown);
    if (compared.fault) faults.push(`${page}:${block.line} ${compared.fault}:\n${answerOf(block).slice(-2000)}`);
    renewed = renewed.slice(0, at) + compared.renewed + renewed.slice(at + shown.length);
  }
  if (!RENEWS) expect(faults).toEqual([]);
  else if (renewed !== whole) writeFileSync(path, renewed);
}

test('blocks that are left out say why, and are few', () => {
  const left = PAGES.flatMap(({ page, blocks }) =>
    blocks.filter(({ reason }) => reason !== undefined).map(({ line, reason }) => `${page}:${line} ${reason}`),
  );
  const all = PAGES.flatMap(({ blocks }) => blocks);
  process.stdout.write(`${all.length - left.length} of ${all.length} blocks run; left out:\n  ${left.join('\n  ')}\n`);
  for (const { language, reason } of all) expect(reason !== undefined || language in RUN, language).toBe(true);
  expect(left.length).toBeLessThan(all.length / 2);
});
