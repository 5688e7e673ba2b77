/** What callers set: `eval "$(./tidemark env)"` gives TIDEMARK_URL and TIDEMARK_KEY, and nothing that is shown reads another name. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { quoted } from '../../pipelines/cli/commands/env.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const SHOWN = [
  'README.md',
  'docs/*.md',
  'examples/*',
  'client/**/*.ts',
  'serving/page/static/*',
  'serving/openapi/*.ts',
];
const OURS = new Set(['TIDEMARK_URL', 'TIDEMARK_KEY']);

/** Where a shell, Node or Python takes an address or a key from. */
const READS = [
  /X-API-Key: \$\{?(\w+)/g,
  /\bcurl [^\n]*?["' ]\$\{?([A-Z]\w*)\}?\//g,
  /\bprocess\.env\.(\w+)/g,
  /\benviron(?:\.get\(|\[)["'](\w+)/g,
  /^\s*(?:export )?(\w*(?:URL|KEY))=/gm,
];
/** Settings of a service that the operator starts, and the verifier key of a log, are no caller's. */
const OTHERS = /^(SVC_|LOG_KEY$)/;

test('README, docs, examples, client and page read these two names and no others', () => {
  const files = SHOWN.flatMap((pattern) => globSync(pattern, { cwd: ROOT }));
  expect(files.length).toBeGreaterThan(60);
  const read = files.flatMap((file) => {
    const text = readFileSync(join(ROOT, file), 'utf8');
    return READS.flatMap((pattern) => [...text.matchAll(pattern)].map(([, name]) => `${file}: ${name}`));
  });
  const names = read.filter((line) => !OTHERS.test(line.split(': ')[1]));
  expect(new Set(names.map((line) => line.split(': ')[1]))).toEqual(OURS);
  const keys = read.filter((line) => line.endsWith('SVC_INTERNAL_API_KEY'));
  expect(keys.map((line) => line.split(': ')[0])).toEqual(['docs/operations.md']);
});

test('a key is one word of the shell, whatever it holds', () => {
  expect(["it's", '$(x)', 'a"b', ''].map(quoted)).toEqual(["'it'\\''s'", "'$(x)'", "'a\"b'", "''"]);
});
