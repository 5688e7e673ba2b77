/** `mirror`: keeps a local copy of a lake or of exports. It needs neither the database nor the event log. */
import { readFile } from 'node:fs/promises';
import { loadSettings } from '../../../shared/config/load.ts';
import { type ErrorCode, isDiskFull, TidemarkError } from '../../../shared/errors.ts';
import { MirrorFault, type MirrorFaultKind } from '../../../shared/mirror/lake-manifest.ts';
import { type MirrorReport, mirror } from '../../../shared/mirror/mirror.ts';
import { NoteFault, type Verifier } from '../../../shared/proof-log/note.ts';
import { printable } from '../../../shared/proof-log/printable.ts';
import { keysIn } from '../../../shared/proof-log/rotations.ts';

import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, grouped, seconds } from '../output.ts';

const FAULTS: Readonly<Record<MirrorFaultKind, { readonly code: ErrorCode; readonly remedy?: string }>> = {
  usage: { code: 'USAGE' },
  folder: {
    code: 'USAGE',
    remedy: 'Name a folder that is missing, empty, or a mirror of this source. Nothing was changed.',
  },
  held: { code: 'WORK_HELD' },
  unreachable: {
    code: 'SERVICE_UNREACHABLE',
    remedy: 'Run the same command again; it continues where it stopped.',
  },
  refused: {
    code: 'SERVICE_REFUSED',
    remedy:
      'The message is the answer of the source: correct what it names, such as the URL or the key (TIDEMARK_KEY), or name the datasets that you may read with --datasets.',
  },
  missing: { code: 'MIRROR_SOURCE_INVALID' },
  altered: { code: 'MIRROR_SOURCE_INVALID' },
  manifest: {
    code: 'MIRROR_SOURCE_INVALID',
    remedy: 'Nothing of it was used. Ask whoever keeps the source; check --key if the signature does not hold.',
  },
};

/** Paths of the service. A file server does not get the service's key. */
const SERVICE_PATH = /\/v1\/(?:lake|raw\/export)\/?$/;

export async function runMirror(command: ParsedCommand): Promise<number> {
  const [from, to] = command.positionals;
  const { key, datasets, exports } = command.values as Record<string, string | undefined>;
  const settings = loadSettings({ env: command.io.env, flags: command.settings, cwd: PROJECT_ROOT });
  const signers = key === undefined ? [] : await signersOf(key);
  const output = createOutput(command);
  const stopping = new AbortController();
  const forget = command.io.onStop(() => stopping.abort(new Error('interrupted')));
  try {
    const report = await mirror({
      from,
      to,
      signers,
      key: SERVICE_PATH.test(from) ? (command.io.env.TIDEMARK_KEY ?? settings.SVC_INTERNAL_API_KEY) : undefined,
      datasets: datasets?.split(','),
      exports: exports?.split(','),
      verify: command.values.verify === true,
      signal: stopping.signal,
      onProgress: ({ done, total, bytes }) =>
        output.progress(`${done}/${total} checked or downloaded, ${sizeOf(bytes)}`),
    });
    output.answer({ command: 'mirror', ok: true, from, ...report }, () => sentence(report));
    return EXIT.DONE;
  } catch (error) {
    if (error instanceof MirrorFault) {
      const { code, remedy } = FAULTS[error.kind];
      throw new TidemarkError(code, printable(error.message), { remedy, cause: error.cause });
    }
    if ((error as NodeJS.ErrnoException).path !== undefined || isDiskFull(error)) {
      throw new TidemarkError('DISK_UNUSABLE', `${to} cannot be written`, { cause: error });
    }
    throw error;
  } finally {
    forget();
  }
}

/** @param key a line, or a file with it and the log's rotations below. @throws TidemarkError USAGE */
async function signersOf(key: string): Promise<Verifier[]> {
  try {
    return keysIn(await readFile(key, 'utf8').catch(() => key));
  } catch (cause) {
    if (cause instanceof NoteFault) throw new TidemarkError('USAGE', '--key cannot be used', { cause });
    throw cause;
  }
}

function sentence({ files, requests, bytes, seconds: took, ...counts }: MirrorReport): string {
  const done = (['new', 'replaced', 'removed', 'unchanged'] as const)
    .map((what) => `${grouped(counts[what])} ${what}`)
    .join(', ');
  const asked = `${grouped(requests)} ${requests === 1 ? 'request' : 'requests'}`;
  return `${grouped(files)} files: ${done}; ${sizeOf(bytes)} in ${seconds(took * 1000)}, ${asked}`;
}

const sizeOf = (bytes: number): string =>
  bytes < 1_000_000 ? `${Math.ceil(bytes / 1000)} kB` : `${grouped(Math.round(bytes / 1_000_000))} MB`;
