/**
 * `npm run fuzz -- documents|requests|http --seed N --count N`: mutated documents over all decoders, requests made from the
 * OpenAPI document, and raw connections. What fails is printed with its seed, and kept to be replayed.
 *
 *   --seed N        names the run (1)
 *   --count N       how many (documents 100,000, requests 10,000, http 1,000)
 *   --plain         documents: does not look which code they reach
 *   --targets TEXT  documents: only decoders with this in their name
 *   --replay FILE   documents: reads a kept document again; its name begins with its decoder's
 *   --only N        requests, http: sends only this one of the run
 *   --out FOLDER    where documents that failed are kept (.tidemark/fuzz)
 */
import { readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { fuzzDocuments, replayDocument } from './documents.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const COUNTS: Readonly<Record<string, number>> = { documents: 100_000, requests: 10_000, http: 1000 };

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seed: { type: 'string', default: '1' },
    count: { type: 'string' },
    plain: { type: 'boolean', default: false },
    targets: { type: 'string' },
    replay: { type: 'string' },
    only: { type: 'string' },
    out: { type: 'string', default: join(ROOT, '.tidemark/fuzz') },
  },
});
const [kind] = positionals;
const seed = Number(values.seed);
const count = Number(values.count ?? COUNTS[kind]);
if (!(kind in COUNTS) || !Number.isSafeInteger(seed) || !Number.isSafeInteger(count)) {
  process.stderr.write(
    'usage: npm run fuzz -- documents|requests|http [--seed N] [--count N]; test/fuzz/main.ts has the options\n',
  );
  process.exit(2);
}
const note = (line: string) => void process.stdout.write(`${line}\n`);

async function documents(): Promise<number> {
  if (values.replay !== undefined) {
    const [name] = basename(values.replay)
      .replace(/^hang-\d+-/, '')
      .split(/-\d/);
    note(await replayDocument(readFileSync(values.replay), values.targets ?? name));
    return 0;
  }
  const report = await fuzzDocuments({
    seed,
    count,
    guided: !values.plain,
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

process.exitCode = await documents();
