/** `watch-log`: watches the proof log of a service from outside, and remembers what it signed. */
import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';
import { writeDurably } from '../../../shared/proof-log/folder.ts';
import { NoteFault } from '../../../shared/proof-log/note.ts';
import { printable } from '../../../shared/proof-log/printable.ts';
import { LogUnreachable, type TileSource } from '../../../shared/proof-log/tiles.ts';
import { type Look, lookAt, mirror, type Watched } from '../../../shared/proof-log/watch.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';
import { type GivenKey, namedKeys, sourceOf } from './check.ts';

/** The outcome of one look. */
type Outcome =
  | { readonly kind: 'looked'; readonly look: Look }
  /** The log did not answer, which says nothing about what it holds. */
  | { readonly kind: 'unreachable'; readonly reason: string };

export async function runWatchLog(command: ParsedCommand): Promise<number> {
  const [url] = command.positionals;
  const {
    key: named,
    state = 'watch-log.json',
    every = '60',
    metrics,
    mirror: folder,
    'max-leaves': maxLeaves,
    'max-age': maxAge,
  } = command.values as Record<string, string>;
  const stopping = new AbortController();
  const forget = command.io.onStop(() => stopping.abort());
  const output = createOutput(command);
  const source = sourceOf(url, stopping.signal);
  const given = named === undefined ? undefined : await namedKeys(named);
  const options = {
    maxLeaves: maxLeaves === undefined ? undefined : Number(maxLeaves),
    maxAgeMs: maxAge === undefined ? undefined : durationMs('--max-age', maxAge),
  };
  let growthAt = Date.now();
  let size: number | undefined;
  try {
    for (let watched = await remembered(state, given); ; ) {
      let outcome = await orUnreachable(async () => ({
        kind: 'looked',
        look: await lookAt(source, watched, options),
      }));
      if (outcome.kind === 'looked' && outcome.look.watched) {
        const { look } = outcome;
        if (look.head!.size !== size) growthAt = Date.now();
        ({ size } = look.head!);
        watched = look.watched!;
        await writeDurably(state, `${JSON.stringify(watched, undefined, 2)}\n`);
        if (folder !== undefined) outcome = await orUnreachable(async () => mirrored(source, folder, look));
      }
      if (stopping.signal.aborted && outcome.kind === 'unreachable') return EXIT.DONE;
      if (metrics !== undefined) await writeDurably(metrics, metricsOf(url, outcome, growthAt));
      const isWrong = outcome.kind === 'looked' && !outcome.look.report.ok;
      const isLast = isWrong || command.values.once === true || stopping.signal.aborted;
      report(output, url, outcome, isLast);
      if (isWrong) return EXIT.FAILED;
      if (isLast) return outcome.kind === 'unreachable' ? EXIT.USAGE : EXIT.DONE;
      await delay(Number(every) * 1000, undefined, { signal: stopping.signal }).catch(() => {});
      if (stopping.signal.aborted) return EXIT.DONE;
    }
  } finally {
    forget();
  }
}

const UNITS_MS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** @throws TidemarkError USAGE */
function durationMs(option: string, text: string): number {
  const [, count, unit] = /^([1-9]\d{0,5})([smhd])$/.exec(text) ?? [];
  if (count !== undefined) return Number(count) * UNITS_MS[unit];
  throw new TidemarkError('USAGE', `${option} must be a time such as 30m, 1h or 2d, got ${JSON.stringify(text)}`);
}

async function mirrored(source: TileSource, folder: string, look: Look): Promise<Outcome> {
  const { report, head, watched } = look;
  const fault = await mirror(source, folder, head!, watched!);
  if (fault === undefined) report.checked.push(`the mirror has all ${head!.size} leaves`);
  else report.faults.push(fault);
  return { kind: 'looked', look };
}

async function orUnreachable(look: () => Promise<Outcome>): Promise<Outcome> {
  try {
    return await look();
  } catch (error) {
    if (error instanceof LogUnreachable) return { kind: 'unreachable', reason: error.message };
    throw error;
  }
}

/** What the last run remembered. A key that is named must be the one that it trusts, or trusted at first: rotations led on from it. */
async function remembered(path: string, given: GivenKey | undefined): Promise<Partial<Watched>> {
  const key = given?.key;
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return given ?? {};
    throw error;
  }
  try {
    const { key: known, firstKey = known, checkpoint, ...others } = JSON.parse(text) as Watched;
    if (typeof known !== 'string' || typeof checkpoint !== 'string')
      throw new NoteFault('key and checkpoint are missing');
    if (key !== undefined && key !== known && key !== firstKey) {
      throw new NoteFault(`it was made with the key ${firstKey}`);
    }
    return { key: known, firstKey, checkpoint, ...others };
  } catch (cause) {
    throw new TidemarkError('USAGE', `${path} is not what this watcher remembers`, {
      remedy: 'Name the file that this command wrote, or one that does not exist yet.',
      cause,
    });
  }
}

function report(output: ReturnType<typeof createOutput>, url: string, outcome: Outcome, isLast: boolean): void {
  const at = new Date().toISOString();
  if (outcome.kind === 'unreachable') {
    const { reason } = outcome;
    if (isLast)
      output.answer({ command: 'watch-log', ok: false, url, unreachable: reason }, () => `${at}  ${printable(reason)}`);
    else output.note(`${at}  ${printable(reason)}; tried again later`);
    return;
  }
  const { report: found, head } = outcome.look;
  const { checked, faults, ok } = found;
  const size = head?.size ?? null;
  const lines = () =>
    [...faults.map((line) => `WRONG  ${line}`), ...checked].map((line) => `${at}  ${printable(line)}`).join('\n');
  if (isLast) output.answer({ command: 'watch-log', ok, url, size, checked, faults }, lines);
  else output.note(lines());
}

/** For the textfile collector of Prometheus' node exporter. */
function metricsOf(url: string, outcome: Outcome, growthAt: number): string {
  const label = `{log="${url.replaceAll(/["\\\n]/g, '')}"}`;
  const line = (name: string, help: string, value: number) =>
    `# HELP tidemark_watch_${name} ${help}\n# TYPE tidemark_watch_${name} gauge\ntidemark_watch_${name}${label} ${value}\n`;
  const looked = outcome.kind === 'looked' ? outcome.look : undefined;
  return [
    line('reachable', '1 if the log answered the last look.', looked ? 1 : 0),
    ...(looked
      ? [
          line('consistent', '0 if the log forked, shrank or changed.', looked.report.ok ? 1 : 0),
          line('tree_size', 'Leaves of the last checkpoint.', looked.head?.size ?? 0),
          ...(looked.head?.signedAt === undefined
            ? []
            : [line('checkpoint_timestamp_seconds', 'When the last checkpoint was signed.', looked.head.signedAt)]),
        ]
      : []),
    line('growth_timestamp_seconds', 'When more leaves were last seen.', Math.floor(growthAt / 1000)),
    line('look_timestamp_seconds', 'When the log was last looked at.', Math.floor(Date.now() / 1000)),
  ].join('');
}
