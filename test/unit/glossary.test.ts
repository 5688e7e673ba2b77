/**
 * docs/glossary.md: one word for one thing. Neither pages nor the product use the words that it replaces, also not as part
 * of a name: a name is read as its words.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');
const GLOSSARY = 'docs/glossary.md';
const MAX_TERMS = 40;

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const below = (folder: string, names: RegExp) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => names.test(name) && !name.includes('node_modules'))
    .map((name) => join(folder, name));

const entries = read(GLOSSARY)
  .split('\n')
  .filter((line) => line.startsWith('- '))
  .map((line) => /^- \*\*([\w -]+)\*\*: .+?(?: \(not: ([^)]+)\))?\.$/.exec(line) ?? [line, '']);
const terms = entries.map(([, term]) => term);

/** Words that no term of the glossary replaces, and what to write instead. */
const REPLACED: Readonly<Record<string, string>> = {
  brake: 'the limit or pause that is meant',
  'foresee, foresees, foreseen, foreseeing': 'expect, estimate',
  lab: 'test set-up',
  winner: 'the newest row, the attempt that is proved',
  edges: 'bounds, extreme values',
  told: 'reported, notified, logged',
  'judge, judges': 'compare, check, decide',
  'standing, standings': 'status, statuses',
  'patience, patient': 'timeout, limit',
  'work order': 'options',
  'line feeder': 'line splitter',
};

const wordsOf = (list: string) => list.split(', ');
const avoided = [
  ...entries.flatMap(([, , words]) => (words ? wordsOf(words) : [])),
  ...Object.keys(REPLACED).flatMap(wordsOf),
];

/** Word -> files that may use it, and why. */
const EXCEPTIONS: Readonly<Record<string, { readonly in: readonly string[]; readonly why: string }>> = {
  withheld: {
    in: [
      'shared/db/partition-changes.ts',
      'shared/db/schema.ts',
      'shared/frame/codec.ts',
      'shared/nats/stream.ts',
      'pipelines/cli/retraction.ts',
      'pipelines/projector/projector.ts',
      'pipelines/projector/retract.ts',
    ],
    why: 'the kind of a message of the log and a column of the catalog, which stay as they are stored',
  },
};

/** Names of settings are part of the interface. */
const SETTING = /\bSVC_[A-Z0-9_]+/g;

/** The text with names as words: `fetchAhead`, `fetch_ahead` and `FETCH_AHEAD` are `fetch ahead`. */
const asWords = (text: string) =>
  text
    .replaceAll(SETTING, '')
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1 $2')
    .replaceAll(/([A-Z])([A-Z][a-z])/g, '$1 $2')
    .replaceAll('_', ' ');

const isUsed = (word: string, text: string) =>
  new RegExp(`\\b${word.replaceAll(' ', '[\\s*/#-]+')}s?\\b`, 'i').test(text);

test(`has at most ${MAX_TERMS} terms, each once`, () => {
  expect(terms).toContain('partition');
  expect(terms.length).toBeLessThanOrEqual(MAX_TERMS);
  expect(terms).toEqual([...new Set(terms)]);
  expect(entries.filter(([, term]) => term === '')).toEqual([]);
});

test.each([
  'the open work of',
  'const openWork = 1;',
  'OPEN_WORK',
  'is_open_work',
  'the open\n * work of',
  'openWorks',
  'OPENWork',
])('finds a replaced word in %j', (text) => expect(isUsed('open work', asWords(text))).toBe(true));

test('words that it replaces are used nowhere', () => {
  expect(avoided).toContain('open work');
  const files = [
    ...['README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md'],
    ...below('docs', /\.(md|ts)$/).filter((path) => path !== GLOSSARY),
    ...below('examples', /\.\w+$/),
    ...['shared', 'pipelines', 'serving', 'client'].flatMap((folder) => below(folder, /\.(ts|mjs|js|html|css)$/)),
  ];
  const found = files.flatMap((file) => {
    const text = asWords(read(file));
    return avoided.filter((word) => isUsed(word, text)).map((word) => ({ file, word }));
  });
  const isExcepted = ({ file, word }: { file: string; word: string }) => EXCEPTIONS[word]?.in.includes(file);
  expect(found.filter((one) => !isExcepted(one)).map(({ file, word }) => `${file}: ${word}`)).toEqual([]);
  // An exception that no file needs any more is removed.
  const needed = (word: string) => found.filter((one) => one.word === word).map(({ file }) => file);
  for (const [word, { in: list }] of Object.entries(EXCEPTIONS))
    expect(list.filter((file) => !needed(word).includes(file))).toEqual([]);
});
