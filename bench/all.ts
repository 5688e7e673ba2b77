/**
 * `npm run bench -- all`: runs the benchmarks one after the other, each in a process of its own, appends a line of each to a
 * history file, and compares it with the last line of the same benchmark, sizes and machine. One that fails stops no other.
 *
 * Options: --quick (smallest sizes), --only NAME,NAME, --history FILE (bench/history.jsonl), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { BENCHES, type Bench } from './benches.ts';
import { appendEntry, compare, type Entry, lastLike, linesOf, readHistory } from './history.ts';
import { commitOf, machineOf, versionsOf } from './machine.ts';
import { rounded } from './measure.ts';
import type { NoiseOfRun } from './noise.ts';
import { BenchUsage } from './options.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

interface AllOptions {
  readonly json: boolean;
  readonly quick: boolean;
  readonly history: string;
  readonly chosen: readonly Bench[];
}

/** @throws BenchUsage */
function optionsOf(argv: readonly string[]): AllOptions {
  const known = 'Options: --quick, --only NAME,NAME, --history FILE, --json';
  let values: { json?: boolean; quick?: boolean; only?: string; history?: string };
  try {
    values = parseArgs({
      args: [...argv],
      options: {
        json: { type: 'boolean' },
        quick: { type: 'boolean' },
        only: { type: 'string' },
        history: { type: 'string' },
      },
    }).values;
  } catch (error) {
    throw new BenchUsage(`${(error as Error).message.replace(/\. To specify.*$/s, '')}\n${known}`);
  }
  const wanted = values.only?.split(',');
  const unknown = wanted?.filter((name) => !BENCHES.some((bench) => bench.name === name)) ?? [];
  if (unknown.length > 0) {
    const names = BENCHES.map(({ name }) => name).join(', ');
    throw new BenchUsage(`--only must name some of ${names}, got ${JSON.stringify(unknown.join(','))}`);
  }
  return {
    json: values.json === true,
    quick: values.quick === true,
    history: values.history ? resolve(values.history) : fileURLToPath(new URL('history.jsonl', import.meta.url)),
    chosen: BENCHES.filter(({ name }) => wanted?.includes(name) ?? true),
  };
}

export async function runAll(argv: readonly string[]): Promise<void> {
  const { json, quick, history, chosen } = optionsOf(argv);
  const note = (line: string) => process.stderr.write(`${line}\n`);
  const say = json ? note : (line: string) => process.stdout.write(`${line}\n`);
  const earlier = await readHistory(history);
  const about = { commit: commitOf(), machine: machineOf(), versions: await versionsOf() };
  const failed: string[] = [];
  for (const { name, sizes } of chosen.flatMap((bench) => runsOf(bench, quick, say))) {
    const title = `${name} ${sizes}`.trim();
    note(`# ${title}`);
    const run = await runBench(name, sizes);
    if (run.interrupted) return;
    if (!run.found) {
      failed.push(title);
      say(`${title}: ${run.failure}`);
      continue;
    }
    const date = new Date().toISOString();
    const entry: Entry = { bench: name, arguments: sizes, date, ...about, ...run.found };
    await appendEntry(history, entry);
    const before = lastLike(earlier, entry);
    if (json) {
      const compared = before && { date: before.date, commit: before.commit, ratios: compare(entry, before) };
      process.stdout.write(`${JSON.stringify({ ...entry, compared })}\n`);
    }
    for (const line of linesOf(entry, before)) say(line);
  }
  if (failed.length === 0) return;
  say(`Failed: ${failed.join('; ')}. The messages are above.`);
  process.exitCode = 1;
}

function runsOf({ name, needs, ...runs }: Bench, quick: boolean, say: (line: string) => void) {
  if (needs !== undefined && process.env[needs] === undefined) {
    say(`${name}: left out, because ${needs} is not set`);
    return [];
  }
  return (quick ? runs.quick : runs.whole).map((sizes) => ({ name, sizes }));
}

interface Ended {
  readonly found?: Pick<Entry, 'seconds' | 'noise' | 'result'>;
  readonly failure: string;
  /** Whether a signal ended the whole run. */
  readonly interrupted: boolean;
}

async function runBench(name: string, sizes: string): Promise<Ended> {
  const main = fileURLToPath(new URL('main.ts', import.meta.url));
  const startedAt = performance.now();
  const child = spawn(
    process.execPath,
    [...process.execArgv, main, name, '--json', ...sizes.split(' ').filter(Boolean)],
    {
      stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
    },
  );
  let interrupted = false;
  const pass = (signal: NodeJS.Signals) => {
    interrupted = true;
    child.kill(signal);
  };
  for (const signal of SIGNALS) process.on(signal, pass);
  let noise: NoiseOfRun | undefined;
  child.on('message', (message) => {
    ({ noise } = message as { noise: NoiseOfRun });
  });
  const ended = once(child, 'exit');
  const printed = (await text(child.stdout!)).trim();
  const [code, signal] = await ended;
  for (const each of SIGNALS) process.off(each, pass);
  const seconds = rounded((performance.now() - startedAt) / 1000, 1);
  if (interrupted) process.exitCode = 130;
  if (code !== 0) return { failure: `failed (${signal ?? `exit code ${code}`})`, interrupted };
  const result = parsed(printed.slice(printed.lastIndexOf('\n') + 1));
  if (result === undefined || !noise) return { failure: 'failed: it printed no result', interrupted };
  return { found: { seconds, noise, result }, failure: '', interrupted };
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
