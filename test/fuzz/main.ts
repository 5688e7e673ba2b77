/**
 * `npm run fuzz -- documents|requests --seed N --count N`: mutated documents over all decoders and requests made from
 * the OpenAPI document. What fails is printed with its seed, and kept to be replayed.
 *
 *   --seed N        names the run (1)
 *   --count N       how many (documents 100,000, requests 10,000)
 *   --targets TEXT  documents: only decoders with this in their name
 *   --replay FILE   documents: reads a kept document again; its name begins with its decoder's
 *   --only N        requests: sends only this one of the run
 *   --out FOLDER    where documents that failed are kept (.tidemark/fuzz)
 */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { fuzzDocuments, replayDocument } from './documents.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const COUNTS: Readonly<Record<string, number>> = { documents: 100_000, requests: 10_000 };

const USAGE = 'usage: npm run fuzz -- documents|requests [--seed N] [--count N]; test/fuzz/main.ts has the options\n';

function usage(): never {
  process.stderr.write(USAGE);
  process.exit(2);
}

function parsed() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        seed: { type: 'string', default: '1' },
        count: { type: 'string' },
        targets: { type: 'string' },
        replay: { type: 'string' },
        only: { type: 'string' },
        out: { type: 'string', default: join(ROOT, '.tidemark/fuzz') },
      },
    });
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`);
    return usage();
  }
}

const { values, positionals } = parsed();
const [kind] = positionals;
const seed = Number(values.seed);
const count = Number(values.count ?? COUNTS[kind]);
if (!(kind in COUNTS) || !Number.isSafeInteger(seed) || !Number.isSafeInteger(count)) usage();
const note = (line: string) => void process.stdout.write(`${line}\n`);

async function documents(): Promise<number> {
  if (values.replay !== undefined) {
    const [name] = basename(values.replay)
      .replace(/^(?:hang|crash)-\d+-/, '')
      .split(/-\d/);
    note(await replayDocument(readFileSync(values.replay), values.targets ?? name));
    return 0;
  }
  const report = await fuzzDocuments({
    seed,
    count,
    only: values.targets,
    folder: values.out,
    note,
  });
  const { findings, seconds, ...facts } = report;
  note(
    JSON.stringify({
      ...facts,
      seed,
      seconds: Math.round(seconds),
      per_second: Math.round(report.documents / seconds),
    }),
  );
  for (const { number, target, what, path, stack } of findings) {
    note(
      `\nFOUND  seed ${seed}, document ${number}, ${target}: ${what}\n  npm run fuzz -- documents --replay ${path}\n${stack}`,
    );
  }
  return findings.length > 0 ? 1 : 0;
}

/** The service needs servers around it, which the tests have: they run with these numbers. */
function onService(): number {
  const { status } = spawnSync(
    join(ROOT, 'node_modules/.bin/vitest'),
    ['--run', '--project', 'nightly', 'test/nightly/fuzz-requests.test.ts', '--testTimeout', '0'],
    {
      cwd: ROOT,
      stdio: 'inherit',
      env: {
        ...process.env,
        TIDEMARK_FUZZ_SEED: String(seed),
        TIDEMARK_FUZZ_COUNT: String(count),
        ...(values.only !== undefined && { TIDEMARK_FUZZ_ONLY: values.only }),
      },
    },
  );
  return status ?? 1;
}

process.exitCode = kind === 'documents' ? await documents() : onService();
