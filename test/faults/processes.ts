/** Processes of the product in a campaign: kept running as an operator's supervisor does, found, and judged by how they end. */
import { appendFileSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ERROR_CODES, type ErrorCode } from '../../shared/errors.ts';
import { type Answer, type Json, type Running, startCommand } from '../support/command.ts';
import type { ProcessName } from './schedule.ts';
import type { Tally } from './tally.ts';
import { markedProcesses, type World } from './world.ts';

/** By what a process is known among those of the campaign. */
const COMMANDS: Partial<Record<ProcessName, RegExp>> = {
  up: /pipelines\/cli\/main\.ts up (?!--only)/,
  follow: /pipelines\/cli\/main\.ts follow /,
  backfill: /pipelines\/cli\/main\.ts (backfill|reingest|recover|verify|mirror|quarantine) /,
  projector: /pipelines\/projector\/main\.ts/,
  serving: /serving\/main\.ts/,
  lake: /serving\/lake\/lake-main\.ts/,
  'export-worker': /serving\/exports\/worker-main\.ts|cli\/main\.ts up --only exports /,
};

export function pidsOf(world: World, name: ProcessName): number[] {
  if (name === 'postgres' || name === 'nats') return [world.pidOf(name)];
  const pattern = COMMANDS[name];
  if (!pattern) return [];
  return markedProcesses(world.mark).filter((pid) => {
    try {
      return pattern.test(`${readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')} `);
    } catch {
      return false; // It ended meanwhile.
    }
  });
}

/** An attempt of `follow` that meets a revision is refused as late; that the revision stays, the rows say. */
const ALWAYS: readonly ErrorCode[] = ['PARTITION_LATE_ARRIVAL'];

/** Codes that a fault of this round explains, beside those that a later try may mend. */
export class Excuses extends Set<ErrorCode> {
  /** Of all rounds: a command that runs through several reports at its end what it met in each. */
  readonly ofAllRounds = new Set<ErrorCode>();

  override add(code: ErrorCode): this {
    this.ofAllRounds.add(code);
    return super.add(code);
  }
}

/** How a command ended: 'done', a signal, or the code that says why it is worth another try. */
export function outcomeOf(
  answer: Answer,
  excuses: ReadonlySet<ErrorCode>,
): { readonly outcome: string; readonly fault?: string } {
  const { exit, signal, json, stdout, stderr } = answer;
  if (signal !== null) return { outcome: signal };
  if (exit === 0) return { outcome: 'done' };
  // 143, 137: a shell's way to say a signal.
  if (exit === 3 || exit === 130) return { outcome: `exit ${exit}` };
  const named = [json?.error, ...(json?.feeds ?? []).map((each: Json) => each.error), ...(json?.units ?? [])];
  const codes: ErrorCode[] = named.flatMap((each) => each?.code ?? []);
  const isExcused = (code: ErrorCode) => ERROR_CODES[code]?.transient || ALWAYS.includes(code) || excuses.has(code);
  if (codes.length > 0 && codes.every(isExcused)) return { outcome: codes[0] };
  return { outcome: 'failed', fault: `ended with ${exit}, ${codes}:\n${stdout.slice(-3000)}\n${stderr.slice(-3000)}` };
}

export interface ProcessDeps {
  readonly world: World;
  readonly tally: Tally;
  readonly excuses: Excuses;
}

/** A child's end that its parent reports: `process ended, restarting it`. */
interface Ended {
  readonly child: string;
  readonly code: number | null;
  readonly signal: string | null;
}

/** A command that runs until it is stopped, and is started again when it ends. */
export class Keeper {
  readonly name: string;
  readonly #deps: ProcessDeps;
  readonly #args: readonly string[];
  #running: Running | undefined;
  #isStopping = false;
  #done: Promise<void>;

  constructor(deps: ProcessDeps, args: readonly string[]) {
    this.#deps = deps;
    this.#args = args;
    this.name = args[0];
    this.#done = this.#keep();
  }

  async #keep(): Promise<void> {
    const { world, tally, excuses } = this.#deps;
    mkdirSync(join(world.folder, 'log'), { recursive: true });
    const log = join(world.folder, 'log', `${this.name}.log`);
    while (!this.#isStopping) {
      const running = startCommand([...this.#args, '--no-progress'], world.settings);
      this.#running = running;
      running.child.stderr!.on('data', (text: string) => {
        appendFileSync(log, text);
        this.#look(text);
      });
      const answer = await running.done;
      const { outcome, fault } = outcomeOf(answer, excuses.ofAllRounds);
      tally.operation(`${this.name}: ${outcome}`);
      if (fault) tally.fail(`an unexpected end of ${this.name}: ${fault}`);
      if (!this.#isStopping) await delay(100);
    }
  }

  /** Children that end by themselves with a code are looked at; a signal was ours. */
  #look(text: string): void {
    for (const line of text.split('\n')) {
      if (!line.includes('process ended, restarting it')) continue;
      try {
        const { child, code, signal } = JSON.parse(line) as Ended;
        this.#deps.tally.operation(`restarted ${child}: ${signal ?? `exit ${code}`}`);
      } catch {
        // Half a line.
      }
    }
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#running?.child.kill('SIGTERM');
    const timer = setTimeout(() => this.#running?.child.kill('SIGKILL'), 60_000);
    await this.#done;
    clearTimeout(timer);
  }
}

/** Runs a command again and again until it is done, or has done enough. @returns its last answer, or undefined where the campaign fails */
export async function untilDone(
  { world, tally, excuses }: ProcessDeps,
  args: readonly string[],
  limitMs: number,
  isEnough: (answer: Answer) => boolean = () => false,
): Promise<Answer | undefined> {
  const startedAt = performance.now();
  const outcomes: string[] = [];
  for (;;) {
    const { child, done } = startCommand([...args, '--no-progress'], world.settings);
    let hasHung = false;
    const timer = setTimeout(() => {
      hasHung = true;
      child.kill('SIGABRT');
    }, limitMs);
    const answer = await done;
    clearTimeout(timer);
    if (hasHung) {
      tally.fail(
        `${args.join(' ')} hung for ${limitMs / 1000} s:\n${answer.stdout.slice(-2000)}\n${answer.stderr.slice(-3000)}`,
      );
      return undefined;
    }
    const { outcome, fault } = outcomeOf(answer, excuses);
    tally.operation(`${args[0]}: ${outcome}`);
    outcomes.push(outcome);
    if (outcome === 'done' || isEnough(answer)) return answer;
    if (fault) {
      tally.fail(`an unexpected end of ${args.join(' ')}: ${fault}`);
      return undefined;
    }
    if (performance.now() - startedAt > limitMs) {
      tally.fail(`${args.join(' ')} did not come to its end within ${limitMs / 1000} s: ${outcomes.join(', ')}`);
      return undefined;
    }
    await delay(200);
  }
}
