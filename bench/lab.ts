/**
 * The lab of a benchmark: a folder and servers of its own, and the comparison of sides in alternating rounds. Folder and servers are
 * removed when the benchmark ends, also after an error or by SIGINT, SIGTERM or SIGHUP.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createLogger, type Logger } from '../shared/logger.ts';
import { endProcess, processRef } from '../shared/stack/processes.ts';
import { acquireStack, type Stack } from '../shared/stack/stack.ts';
import { childrenOf, type Side, type Spread, spreadOf } from './measure.ts';

export const ROOT = fileURLToPath(new URL('../', import.meta.url));

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
/** The exit code by which a shell knows that a signal ended the process. */
const INTERRUPTED = 130;
const CHILD_ENDS_MS = 30_000;

/** The milliseconds of each round by side. The first side is ours; each other gives a ratio. */
type Rounds = Readonly<Record<string, readonly number[]>>;

export interface Lab extends AsyncDisposable {
  readonly directory: string;
  readonly stack: Stack;
  readonly log: Logger;
  readonly rounds: number;
  /** Writes a line of progress to standard error; results go to standard output. */
  note(line: string): void;
  /** Runs the sides in turn. The round before the first warms up and does not count; checks are the caller's. */
  measure(what: string, sides: Readonly<Record<string, Side>>): Promise<Rounds>;
  /** Runs the sides in turn and reports them. */
  compare(what: string, sides: Readonly<Record<string, Side>>): Promise<void>;
  /** Reports what rounds have measured. */
  report(what: string, rounds: Rounds): void;
  /** Reports a figure that is compared with nothing. */
  fact(what: string, value: number | string): void;
  /** Ends the report. */
  end(options: object): void;
}

export async function openLab(name: string, rounds: number, json: boolean): Promise<Lab> {
  const note = (line: string) => void process.stderr.write(`${line}\n`);
  const log = createLogger('warn', 'bench');
  const directory = join(ROOT, '.tidemark', `bench-${name}`);
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(directory, { recursive: true, force: true }));
  const interrupted = new AbortController();
  const interrupt = () => interrupted.abort(new Error('interrupted'));
  for (const signal of SIGNALS) process.once(signal, interrupt);
  cleanup.defer(() => {
    for (const signal of SIGNALS) process.off(signal, interrupt);
  });
  const stateDir = join(directory, 'state');
  const stack = cleanup.use(await acquireStack({ stateDir, log, progress: note, signal: interrupted.signal }));
  const resources = cleanup.move();
  let disposal: Promise<void> | undefined;
  const dispose = () => {
    disposal ??= resources.disposeAsync();
    return disposal;
  };
  interrupted.signal.addEventListener('abort', async () => {
    // Work that still runs fails from here on, because its processes and servers end.
    process.on('uncaughtException', () => {});
    await endChildren(stack);
    await dispose();
    process.exit(INTERRUPTED);
  });
  return { directory, stack, log, rounds, note, ...reporter(name, rounds, json, note), [Symbol.asyncDispose]: dispose };
}

/** Ends the child processes of the benchmark; the stack ends its own. */
async function endChildren({ processes }: Stack): Promise<void> {
  const servers = new Set(processes.map(({ pid }) => pid));
  const children = childrenOf(process.pid).flatMap((pid) => (servers.has(pid) ? [] : (processRef(pid) ?? [])));
  const steps = [
    { signal: 'SIGTERM', waitMs: CHILD_ENDS_MS },
    { signal: 'SIGKILL', waitMs: CHILD_ENDS_MS },
  ] as const;
  await Promise.all(children.map((child) => endProcess(child, steps)));
}

interface Compared {
  readonly what: string;
  readonly ms: Readonly<Record<string, Spread>>;
  /** Our time divided by that of each other side, round by round. */
  readonly ratio: Readonly<Record<string, Spread>>;
}

function reporter(name: string, rounds: number, json: boolean, note: Lab['note']) {
  const compared: Compared[] = [];
  const facts: Record<string, number | string> = {};
  const say = (line: string) => void (json || process.stdout.write(`${line}\n`));
  const report: Lab['report'] = (what, measured) => {
    const [[, ours], ...others] = Object.entries(measured);
    const ratios = others.map(([side, ms]) => [side, spreadOf(ours.map((one, at) => one / ms[at]))] as const);
    const one: Compared = {
      what,
      ms: Object.fromEntries(Object.entries(measured).map(([side, ms]) => [side, spreadOf(ms)])),
      ratio: Object.fromEntries(ratios),
    };
    compared.push(one);
    for (const line of linesOf(one)) say(line);
  };
  const measure: Lab['measure'] = async (what, sides) => {
    const measured: Record<string, number[]> = Object.fromEntries(Object.keys(sides).map((side) => [side, []]));
    for (let round = 0; round <= rounds; round++) {
      const texts: string[] = [];
      for (const [side, work] of Object.entries(sides)) {
        const ms = await work(round);
        if (round > 0) measured[side].push(ms);
        texts.push(`${side} ${timeOf(ms)}`);
      }
      note(`${what}, ${round === 0 ? 'warm-up' : `round ${round}`}: ${texts.join(', ')}`);
    }
    return measured;
  };
  return {
    measure,
    compare: async (what: string, sides: Readonly<Record<string, Side>>) => report(what, await measure(what, sides)),
    report,
    fact(what: string, value: number | string) {
      facts[what] = value;
      say(`${what}: ${value.toLocaleString('en-US')}`);
    },
    end(options: object) {
      if (json) process.stdout.write(`${JSON.stringify({ bench: name, options, compared, facts })}\n`);
    },
  };
}

function linesOf({ what, ms, ratio }: Compared): string[] {
  const widest = Math.max(...Object.keys(ms).map(({ length }) => length));
  const sides = Object.entries(ms).map(([side, { min, median, max }]) => {
    const to = ratio[side];
    const than = to ? `  ratio ${to.median} (${to.min}..${to.max})` : '';
    return `  ${side.padEnd(widest)}  ${timeOf(median)} (${timeOf(min)}..${timeOf(max)})${than}`;
  });
  return [what, ...sides];
}

const timeOf = (ms: number) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toPrecision(3)} ms`);
