/** docs/glossary.md: one word for one thing. It lists words that neither pages nor the product use instead. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');
const GLOSSARY = 'docs/glossary.md';
const MAX_TERMS = 40;

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const below = (folder: string, extension: string) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith(extension) && !name.includes('node_modules'))
    .map((name) => join(folder, name));

const entries = read(GLOSSARY)
  .split('\n')
  .filter((line) => line.startsWith('- '))
  .map((line) => /^- \*\*([\w -]+)\*\*: .+?(?: \(not: ([^)]+)\))?\.$/.exec(line) ?? [line, '']);
const terms = entries.map(([, term]) => term);
const avoided = entries.flatMap(([, , words]) => words?.split(', ') ?? []);

/** Word -> files that may use it, and why. */
const EXCEPTIONS: Readonly<Record<string, { readonly in: RegExp; readonly why: string }>> = {
  withheld: { in: /\.ts$/, why: 'the kind of a message of the log, which stays as it is written' },
};

test(`has at most ${MAX_TERMS} terms, each once`, () => {
  expect(terms).toContain('partition');
  expect(terms.length).toBeLessThanOrEqual(MAX_TERMS);
  expect(terms).toEqual([...new Set(terms)]);
  expect(entries.filter(([, term]) => term === '')).toEqual([]);
});

test('words that it replaces are used nowhere', () => {
  expect(avoided).toContain('open work');
  const files = [
    ...['README.md', 'CONTRIBUTING.md', 'SECURITY.md'],
    ...below('docs', '.md').filter((path) => path !== GLOSSARY),
    ...['shared', 'pipelines', 'serving', 'client'].flatMap((folder) => below(folder, '.ts')),
  ];
  const found = files.flatMap((file) => {
    const text = read(file);
    return avoided
      .filter((word) => new RegExp(`\\b${word.replaceAll(' ', '[\\s*]+')}s?\\b`, 'i').test(text))
      .filter((word) => !EXCEPTIONS[word]?.in.test(file))
      .map((word) => `${file}: ${word}`);
  });
  expect(found).toEqual([]);
});
