/** `lake`: writes everything that is proved to a folder of Parquet, in a child process of the service. */
import { realpath } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { connect, LAKE_LOCK } from '../../../shared/db/connect.ts';
import { ERROR_CODES, type ErrorCode, TidemarkError } from '../../../shared/errors.ts';
import { type ChildOptions, startChild } from '../child.ts';
import { type Context, openContext } from '../context.ts';
import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { bar, grouped, seconds } from '../output.ts';

interface Report {
  readonly folder: string;
  readonly files: number;
  readonly rows: number;
  readonly bytes: number;
  readonly written: number;
  readonly replaced: number;
  readonly removed: number;
  readonly change: number;
  readonly skipped: readonly { readonly dataset: string; readonly why: string }[];
  readonly failed: readonly { readonly path: string; readonly why: string }[];
}

/** A line of the child (serving/lake/lake-main.ts). */
type Line =
  | { readonly progress: { readonly planned: number; readonly written: number; readonly rows: number } }
  | { readonly round: Report }
  | { readonly report: Report; readonly stopped: boolean }
  | { readonly error: Fault };

interface Fault {
  readonly code: string;
  readonly message: string;
  readonly remedy?: string;
}

interface LakeOptions {
  readonly folder: string;
  readonly synthetic: boolean;
  readonly follow: boolean;
}

/** The process that writes a lake. */
export function lakeChild(context: Context, { folder, synthetic, follow }: LakeOptions): Omit<ChildOptions, 'log'> {
  const { io, settings, settingFlags, terminalLog } = context;
  const own: Partial<Record<SettingName, string>> = {
    ...settingFlags,
    SVC_DATABASE_URL: context.databaseUrls.export,
    // It has no callers, so it needs no key.
    SVC_INTERNAL_API_KEY: 'none',
    SVC_LAKE_FOLDER: folder,
  };
  return {
    name: 'lake',
    module: 'serving/lake/lake-main.ts',
    args: ['--stdin'],
    inherits: io.env,
    terminalLog,
    input: JSON.stringify({
      cwd: PROJECT_ROOT,
      parent: process.pid,
      settings: own,
      sample_rights: settings.SVC_DATABASE_URL === undefined,
      follow,
      synthetic,
    }),
  };
}

export async function runLake(command: ParsedCommand): Promise<number> {
  const startedAt = performance.now();
  const { to, follow, synthetic, forget } = command.values;
  // Before the servers start: a relative path is of the folder in which the command was given.
  const folder = resolve(String(to));
  if (forget === true && (follow === true || synthetic === true)) {
    throw new TidemarkError('USAGE', '--forget writes nothing: it takes neither --follow nor --synthetic');
  }
  await using context = await openContext(command, 'lake', forget === true ? {} : { required });
  if (forget === true) return await forgetLake(context, folder);
  const { output, signal, stack } = context;
  stack.supervise();
  let last: Line | undefined;
  const newlyLeftOut = leftOutSince();
  const { child, ended } = startChild({
    ...lakeChild(context, { folder, synthetic: synthetic === true, follow: follow === true }),
    onLine(text) {
      const line = JSON.parse(text) as Line;
      if ('progress' in line) output.progress(progressOf(line.progress));
      else if ('round' in line) output.note([textOf(line.round), ...newlyLeftOut(line.round)].join('\n'));
      else last = line;
    },
  });
  const stop = () => child.kill('SIGTERM');
  signal.addEventListener('abort', stop);
  if (signal.aborted) stop();
  const [code, by] = await ended;
  if (last && 'error' in last) throw errorOf(last.error);
  if (!last || !('report' in last)) {
    throw new TidemarkError('INTERRUPTED', `The process that writes the lake ended (${by ?? `exit ${code}`})`);
  }
  const { report, stopped } = last;
  const ms = performance.now() - startedAt;
  // A lake that is followed ends by being stopped.
  const interrupted = stopped && follow !== true;
  const ok = !interrupted && report.failed.length === 0;
  output.answer({ command: 'lake', ok, interrupted, ...report, seconds: Math.round(ms / 100) / 10 }, () => {
    const head = interrupted ? ['Interrupted; the same command continues where it stopped.'] : [];
    return [...head, `${textOf(report)}, ${seconds(ms)}`, ...hintsOf(report, interrupted)].join('\n');
  });
  return interrupted ? EXIT.INTERRUPTED : ok ? EXIT.DONE : EXIT.FAILED;
}

/**
 * Deletes the record of a lake that nobody writes any longer; its files stay.
 * @throws TidemarkError WORK_HELD while somebody writes it, USAGE where no lake of the folder is on record
 */
async function forgetLake({ databaseUrls, output, signal }: Context, given: string): Promise<number> {
  const folder = await withoutLinks(given);
  await using client = await connect({ url: databaseUrls.export, name: 'tidemark lake', signal });
  const { rows: known } = await client.query<{ folder: string; host: string; pid: number }>(
    'select folder, host, pid from lakes order by folder collate "C"',
  );
  const lake = known.find((one) => one.folder === folder) ?? known.find((one) => one.folder === given);
  if (!lake) {
    const listed = known.map((one) => one.folder).join(', ');
    throw new TidemarkError('USAGE', `No lake of ${folder} is on record${listed && `. On record: ${listed}`}`);
  }
  const { rows: locks } = await client.query(`select pg_try_advisory_lock(${LAKE_LOCK}, hashtext($1)) as held`, [
    lake.folder,
  ]);
  if (!locks[0].held) {
    const writer = `process ${lake.pid} on ${lake.host} was the last to write to it`;
    throw new TidemarkError('WORK_HELD', `The lake ${lake.folder} is being written (${writer})`);
  }
  await client.query('delete from lakes where folder = $1', [lake.folder]);
  const answer = { command: 'lake', ok: true, folder: lake.folder, forgotten: true };
  output.answer(answer, () => `${lake.folder}: forgotten; its files stay`);
  return EXIT.DONE;
}

/** The path under which the writer records the folder, also where the folder is gone. */
async function withoutLinks(folder: string): Promise<string> {
  try {
    return await realpath(folder);
  } catch {
    const above = dirname(folder);
    return above === folder ? folder : join(await withoutLinks(above), basename(folder));
  }
}

const progressOf = ({ planned, written, rows }: { planned: number; written: number; rows: number }) =>
  `${bar(written, Math.max(planned, written))} ${grouped(written)} files, ${grouped(rows)} rows`;

function textOf({ folder, files, rows, bytes, written, replaced, removed, change }: Report): string {
  return [
    `${folder}: ${grouped(files)} files, ${grouped(rows)} rows, ${grouped(Math.ceil(bytes / 2 ** 20))} MiB, up to change ${change}`,
    `${grouped(written)} written, ${grouped(replaced)} replaced, ${grouped(removed)} removed`,
  ].join('; ');
}

const leftOut = ({ skipped }: Report): string[] =>
  skipped.map(({ dataset, why }) => `  ${dataset}: not written: ${why}`);

/** What a round leaves out and the one before it did not, so that a lake that is followed says it once. */
function leftOutSince(): (report: Report) => string[] {
  let before: readonly string[] = [];
  return (report) => {
    const now = leftOut(report);
    const news = now.filter((line) => !before.includes(line));
    before = now;
    return news;
  };
}

const hintsOf = (report: Report, interrupted: boolean): string[] => [
  ...leftOut(report),
  ...report.failed.map(({ path, why }) => `  ${path}: failed: ${why}`),
  ...(report.files === 0 && report.skipped.length === 0 && !interrupted ? ['  Nothing is proved yet.'] : []),
];

const errorOf = ({ code, message, remedy }: Fault): Error =>
  code in ERROR_CODES ? new TidemarkError(code as ErrorCode, message, { remedy }) : new Error(message);

/** With a database of the operator's own, the operator must state what may be written from it. */
const required = (settings: Partial<Settings>): readonly SettingName[] =>
  settings.SVC_DATABASE_URL === undefined ? [] : ['SVC_SOURCE_RIGHTS_MATRIX_PATH'];
