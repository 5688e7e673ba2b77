/**
 * The client as `npm run client` writes it, on a server whose answers come whole, stop coming or break off; and Nodes to
 * run it in.
 */
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { ROOT } from './command.ts';
import { PATIENCE_MS } from './patience.ts';

/** Taken from npm where the machine has none of its own. */
const NODES = { 20: '20.3.0', 22: '22.0.0' } as const;
export const SCRIPT = 'client-checks.mjs';

export interface ClientSite extends Disposable {
  /** With an empty page, the client's scripts and those answers. */
  readonly url: string;
  /** What the checks of SCRIPT come to in a Node of the line; undefined where there is none and npm brings none. */
  outcomesInNode(major: number): Promise<unknown>;
}

export async function openClientSite(): Promise<ClientSite> {
  const dist = mkdtempSync(join(tmpdir(), 'tidemark-client-'));
  execFileSync(process.execPath, [join(ROOT, 'node_modules/.bin/tsc'), '-p', join(ROOT, 'client'), '--outDir', dist]);
  writeFileSync(join(dist, 'package.json'), '{"type":"module"}');
  copyFileSync(join(ROOT, 'test/support', SCRIPT), join(dist, SCRIPT));
  const server = createServer(({ url: asked, headers }, response) => {
    const [, how, ...path] = asked!.split('/');
    if (path.length === 0) answerFile(dist, how, response);
    else if (how === 'once') answerPart(String(headers.range), response);
    else answerRows(how, headers.accept!, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url,
    async outcomesInNode(major) {
      const node = nodeOf(major);
      if (!node) return undefined;
      const run = `import { outcomes } from './${SCRIPT}'; console.log(JSON.stringify(await outcomes('${url}')));`;
      const { stdout } = await promisify(execFile)(node, ['--input-type=module', '-e', run], {
        cwd: dist,
        timeout: PATIENCE_MS,
      });
      return JSON.parse(stdout);
    },
    [Symbol.dispose]() {
      server.closeAllConnections();
      server.close();
      rmSync(dist, { recursive: true, force: true });
    },
  };
}

/** The page and the scripts of the client. */
function answerFile(dist: string, name: string, response: ServerResponse): void {
  const isScript = existsSync(join(dist, name)) && name !== '';
  response.writeHead(200, { 'Content-Type': isScript ? 'text/javascript' : 'text/html' });
  response.end(isScript ? readFileSync(join(dist, name)) : '<!doctype html><link rel="icon" href="data:,">');
}

const SCHEMA = [{ name: 'trade_id', dtype: 'int64' }];
const BODIES: Readonly<Record<string, string>> = {
  'application/json': JSON.stringify({ schema: SCHEMA, warnings: [], rows: [{ trade_id: 1 }, { trade_id: 2 }] }),
  'application/x-ndjson': '{"trade_id":1}\n{"trade_id":2}\n',
  'application/vnd.apache.arrow.stream': 'x'.repeat(20),
};

/** Two rows: whole, without an end, or cut off. */
function answerRows(how: string, accept: string, response: ServerResponse): void {
  response.writeHead(200, { 'X-Svc-Schema': JSON.stringify(SCHEMA), 'X-Svc-Warnings': '[]' });
  const body = BODIES[accept];
  if (how === 'whole') response.end(body);
  else response.write(body.slice(0, 18), () => how === 'cut' && response.socket?.resetAndDestroy());
}

/** The file `abcdefgh`: silent after its half, when it is asked for from its beginning. */
function answerPart(range: string, response: ServerResponse): void {
  response.writeHead(206, { ETag: `"${'a'.repeat(64)}"` });
  if (range === 'bytes=0-') response.write('abcd');
  else response.end('abcdefgh'.slice(Number(/\d+/.exec(range)?.[0])));
}

const CUT = expect.stringMatching(/^IncompleteAnswerError: The answer broke off$/);
const SILENT = 'IncompleteAnswerError: The answer broke off: no bytes came for 50 ms';
export const EXPECTED = {
  'all, whole': [1, 2],
  'all, cut': CUT,
  'all, silent': SILENT,
  'loop, whole': [1, 2],
  'loop, cut': CUT,
  'loop, silent': SILENT,
  'close, whole': [1, true],
  'arrow, whole': 20,
  'arrow, cut': CUT,
  'arrow, silent': SILENT,
  'a loop that is aborted': 'Stopped: enough',
  'a download that goes silent once': 'abcdefgh',
  'a status that is cut': expect.stringMatching(/^ConnectionError: /),
};

export const noNode = (major: number) =>
  `npm brings no Node ${major}: put one first on the PATH, or reach the npm registry`;

/** A Node of the line: this one, one on the PATH, or the oldest of npm. */
function nodeOf(major: number): string | undefined {
  const onPath = (process.env.PATH ?? '').split(delimiter).map((folder) => join(folder, 'node'));
  const here = [process.execPath, ...onPath].find(
    (path) => existsSync(path) && spawnSync(path, ['--version'], { encoding: 'utf8' }).stdout?.startsWith(`v${major}.`),
  );
  const version = NODES[major as keyof typeof NODES];
  if (here || !version) return here;
  const name = `node-${process.platform}-${process.arch}`;
  const folder = join(ROOT, 'node_modules/.cache/tidemark-nodes', version);
  const path = join(folder, 'node_modules', name, 'bin/node');
  if (!existsSync(path)) {
    const options = ['--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error', '--prefix', folder];
    spawnSync('npm', ['install', ...options, `${name}@${version}`], { cwd: tmpdir(), timeout: PATIENCE_MS });
  }
  return existsSync(path) ? path : undefined;
}
