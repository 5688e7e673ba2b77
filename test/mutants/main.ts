/**
 * `npm run mutants -- --seed N --count 60`: breaks the product in small ways, one at a time, and sees whether a test turns
 * red. Works in a copy of the tree, with the changes that are not committed. Tests that import the broken file run first:
 * unit tests, then the other quick ones, then the nightly ones, the nearest by imports first. The first red test ends the
 * trial, once it is red again and green on the unbroken copy. Only a mutant that these tests let live meets all others.
 * The table says whether `npm test` finds a mutant, or only `npm run test:nightly`.
 *
 *   --seed N      which mutants are made (1)
 *   --count N     how many, spread evenly over the areas (60)
 *   --list        prints them and runs nothing
 *   --again FILE  the mutants of an earlier table, where the product still has their lines, instead of new ones; each meets
 *                 the quick test that found it then before any other
 *   --only N,..   these numbers of the list
 *   --related     survivors of the related tests are not tried on the others
 *   --nearest N   beside unit tests, only the N nearest quick files and as many nightly ones are tried: an hour for 60
 *   --out FILE    writes the table as JSON
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { basename, dirname, join, posix } from 'node:path';
import { parseArgs } from 'node:util';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { recordedTimes } from '../support/recorded-times.ts';
import { applied, type Mutation, mutationsOf } from './operators.ts';

const ROOT = join(import.meta.dirname, '..', '..');

/** Where the product is broken: folders and files by what they are for. */
const AREAS: Readonly<Record<string, readonly string[]>> = {
  contract: ['serving/contract/'],
  read: ['serving/read/'],
  rendering: ['serving/render/'],
  decode: ['pipelines/sources/'],
  project: ['pipelines/projector/', 'pipelines/publisher/', 'pipelines/rows/'],
  proof: ['shared/proof/', 'shared/frame/'],
  rights: ['serving/rights/', 'shared/rights/'],
  audit: ['shared/audit/', 'serving/exports/audit'],
};

/** A mutant may make a run that never ends: it is ended after this many times what its files take, and a minute. */
const RUN_LIMIT_FACTOR = 4;

/** A mutant of an earlier table has the test that found it then. */
interface Mutant extends Mutation {
  readonly killedBy?: string;
  readonly number: number;
  readonly area: string;
  readonly file: string;
  readonly line: number;
  /** Offset at which its line begins. */
  readonly start: number;
  /** The whole line, by which it is found again. */
  readonly text: string;
}

/** Its `killedBy` is what turned red first; undefined: it lived. */
interface Outcome extends Mutant {
  readonly level: 'unit' | 'related' | 'all' | 'none';
  /** Whether a test of `npm test` or only one of `npm run test:nightly` finds it. */
  readonly set: 'quick' | 'nightly' | 'none';
  /** Tests that were red once, or on the unbroken copy, too, and do not count. */
  readonly unsound: readonly string[];
  readonly seconds: number;
}

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    count: { type: 'string', default: '60' },
    list: { type: 'boolean', default: false },
    again: { type: 'string' },
    only: { type: 'string' },
    related: { type: 'boolean', default: false },
    nearest: { type: 'string' },
    out: { type: 'string' },
  },
});

const nearest = values.nearest === undefined ? Number.POSITIVE_INFINITY : Number(values.nearest);

const tracked = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: ROOT,
  encoding: 'utf8',
})
  .split('\n')
  .filter((path) => path !== '');

const isProduct = (path: string, prefixes: readonly string[]) =>
  path.endsWith('.ts') && !/generate|synthetic|sample/.test(path) && prefixes.some((prefix) => path.startsWith(prefix));

function parses(text: string): boolean {
  try {
    stripTypeScriptTypes(text);
    return true;
  } catch {
    return false;
  }
}

/** Draws `count` mutants, the same for a seed and a tree: a file of an area by its turn, then a place in it. */
function drawMutants(seed: number, count: number): Mutant[] {
  const random = seededRandom(seed);
  const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)];
  const areas = Object.keys(AREAS);
  const mutants: Mutant[] = [];
  const seen = new Set<string>();
  while (mutants.length < count) {
    const area = areas[mutants.length % areas.length];
    const file = pick(tracked.filter((path) => isProduct(path, AREAS[area])));
    const text = readFileSync(join(ROOT, file), 'utf8');
    const mutations = mutationsOf(text);
    if (mutations.length === 0) continue;
    // An operator first, so that the rare ones are not crowded out by comparisons.
    const operator = pick([...new Set(mutations.map((each) => each.operator))]);
    const mutation = pick(mutations.filter((each) => each.operator === operator));
    const place = `${file}:${mutation.at}:${mutation.to}`;
    if (seen.has(place) || !parses(applied(text, mutation))) continue;
    seen.add(place);
    mutants.push({ ...mutation, number: mutants.length + 1, area, file, ...lineAt(text, mutation.at) });
  }
  return mutants;
}

function lineAt(source: string, at: number): Pick<Mutant, 'line' | 'start' | 'text'> {
  const line = source.slice(0, at).split('\n').length;
  return { line, start: source.lastIndexOf('\n', at - 1) + 1, text: source.split('\n')[line - 1] };
}

/** Offsets at which a line begins that reads so. */
function startsOf(source: string, text: string): number[] {
  const starts: number[] = [];
  let start = 0;
  for (const line of source.split('\n')) {
    if (line === text) starts.push(start);
    start += line.length + 1;
  }
  return starts;
}

/** Those of an earlier table whose line is still there, in the file or in another of the product. */
function mutantsAgain(table: string): Mutant[] {
  const { outcomes } = JSON.parse(readFileSync(table, 'utf8')) as { outcomes: Outcome[] };
  return outcomes.flatMap((mutant) => {
    const offset = mutant.at - mutant.start;
    for (const file of [
      mutant.file,
      ...tracked.filter((path) => isProduct(path, ['pipelines/', 'serving/', 'shared/'])),
    ]) {
      if (!tracked.includes(file)) continue;
      const source = readFileSync(join(ROOT, file), 'utf8');
      const starts = startsOf(source, mutant.text);
      if (starts.length === 0) continue;
      // Of equal lines the one that is nearest to where it was.
      const start = starts.reduce((a, b) => (Math.abs(a - mutant.start) <= Math.abs(b - mutant.start) ? a : b));
      return [{ ...mutant, file, at: start + offset, ...lineAt(source, start + offset) }];
    }
    console.log(`${describe(mutant)}\n     the product does not have its line any more`);
    return [];
  });
}

/** A copy of the tree beside the state of tests, with this tree's dependencies. */
function copyTree(): string {
  const copy = join(ROOT, '.tidemark', 'mutants', 'tree');
  rmSync(copy, { recursive: true, force: true });
  for (const path of tracked) {
    mkdirSync(dirname(join(copy, path)), { recursive: true });
    cpSync(join(ROOT, path), join(copy, path), { verbatimSymlinks: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
  return copy;
}

/** How many imports lie between each test file and the broken one; files that do not come to it are left out. */
function distancesTo(broken: string): Map<string, number> {
  const importers = new Map<string, string[]>();
  for (const path of tracked.filter((each) => each.endsWith('.ts'))) {
    const source = readFileSync(join(ROOT, path), 'utf8');
    for (const [, name] of source.matchAll(/(?:from |import\()'(\.[^']+)'/g)) {
      const target = posix.join(posix.dirname(path), name);
      importers.set(target, [...(importers.get(target) ?? []), path]);
    }
  }
  const distances = new Map([[broken, 0]]);
  // A map is walked in the order in which it grows: breadth first.
  for (const [path, distance] of distances) {
    for (const importer of importers.get(path) ?? []) {
      if (!distances.has(importer)) distances.set(importer, distance + 1);
    }
  }
  return new Map([...distances].filter(([path]) => path.endsWith('.test.ts')));
}

interface Red {
  readonly file: string;
  readonly test: string;
}

/** Test files in the order in which they run, and which of their tests, by tag; all of them without a filter. */
interface Step {
  readonly set: 'quick' | 'nightly';
  readonly files: readonly string[];
  readonly filter?: string;
}

/** @returns the first test that failed, or undefined. */
function firstRed(copy: string, { files, filter }: Step): Red | undefined {
  if (files.length === 0) return undefined;
  const recorded = recordedTimes();
  // vitest.config.ts writes it.
  const report = join(copy, '.tidemark', 'test', 'report-all.json');
  const order = join(copy, '.tidemark', 'order.json');
  mkdirSync(dirname(order), { recursive: true });
  rmSync(report, { force: true });
  // Files begin in the order of their times, the longest first.
  const times = files.map((file, index) => [file.slice('test/'.length), files.length - index]);
  writeFileSync(order, JSON.stringify(Object.fromEntries(times)));
  const run = spawnSync(
    join(copy, 'node_modules/.bin/vitest'),
    [...files, '--run', '--bail=1', ...(filter ? [`--tags-filter=${filter}`] : [])],
    {
      cwd: copy,
      stdio: 'ignore',
      timeout:
        60_000 + RUN_LIMIT_FACTOR * files.reduce((sum, file) => sum + (recorded[file.slice('test/'.length)] ?? 0), 0),
      killSignal: 'SIGKILL',
      env: {
        ...process.env,
        PATH: `${join(ROOT, 'node_modules/.bin')}:${process.env.PATH}`,
        TIDEMARK_TEST_TIMES: order,
        TIDEMARK_TEST_PATIENCE_MS: '20000',
      },
    },
  );
  if (run.status === 0) return undefined;
  try {
    const { testResults } = JSON.parse(readFileSync(report, 'utf8'));
    const nameOf = ({ name }: { name: string }) => name.slice(copy.length + 1);
    for (const result of testResults) {
      const red = result.assertionResults.find((each: { status: string }) => each.status === 'failed');
      if (red) return { file: nameOf(result), test: red.fullName };
    }
    // Files that were cut short by the first red one have failed without a message.
    const broken = testResults.find(
      (each: { status: string; message: string }) => each.status === 'failed' && each.message,
    );
    if (broken) return { file: nameOf(broken), test: 'outside its tests' };
  } catch {
    // The run itself ended otherwise, or did not end.
  }
  return { file: files[0], test: 'the run does not end as it should' };
}

/** The first test that fails for the mutant's sake: its file fails again with it, and passes without it. */
function firstCaught(copy: string, mutant: Mutant, step: Step, unsound: string[]): string | undefined {
  const path = join(copy, mutant.file);
  const source = readFileSync(path, 'utf8');
  let left = step.files;
  for (;;) {
    writeFileSync(path, applied(source, mutant));
    const red = firstRed(copy, { ...step, files: left });
    const again = red && firstRed(copy, { ...step, files: [red.file] });
    writeFileSync(path, source);
    if (!red) return undefined;
    if (again && !firstRed(copy, { ...step, files: [red.file] })) return `${red.file}: ${again.test}`;
    unsound.push(`${red.file}: ${red.test}`);
    left = left.filter((file) => file !== red.file);
  }
}

function attempt(copy: string, mutant: Mutant): Outcome {
  const began = performance.now();
  const times = recordedTimes();
  const distances = distancesTo(mutant.file);
  const tests = tracked.filter((path) => path.endsWith('.test.ts'));
  // The nearest first; of those as near, and of those that start processes, the ones that share a word of the name.
  const words = new Set(mutant.file.match(/[a-z]{3,}/g));
  const strangeness = (path: string) => (path.match(/[a-z]{3,}/g)?.some((word) => words.has(word)) ? 0 : 5);
  const cost = (path: string) =>
    ((distances.get(path) ?? 0) + strangeness(path)) * 10_000 + (times[path.slice('test/'.length)] ?? 0);
  const byCost = (a: string, b: string) => cost(a) - cost(b);
  const earlier = mutant.killedBy?.split(':')[0];
  // The test that found it in an earlier table comes before the nearest.
  const isEarlier = (path: string) => basename(path) === basename(earlier ?? '');
  const related = [...distances.keys()].sort((a, b) => Number(isEarlier(b)) - Number(isEarlier(a)) || byCost(a, b));
  const others = values.related ? [] : tests.filter((path) => !distances.has(path)).sort(byCost);
  const quick = (files: readonly string[]): Step => ({ set: 'quick', files, filter: '!nightly' });
  const isTagged = (path: string) => !isNightly(path) && readFileSync(join(ROOT, path), 'utf8').includes(TAG);
  const steps: readonly Step[] = [
    quick(related.filter((path) => isEarlier(path) && !isNightly(path))),
    quick(related.filter(isUnit)),
    quick(related.filter((path) => !isUnit(path) && !isNightly(path)).slice(0, nearest)),
    { set: 'nightly', files: related.filter(isTagged).slice(0, nearest), filter: 'nightly' },
    { set: 'nightly', files: related.filter(isNightly).slice(0, nearest) },
    quick(others.filter((path) => !isNightly(path))),
    { set: 'nightly', files: others.filter(isTagged), filter: 'nightly' },
    { set: 'nightly', files: others.filter(isNightly) },
  ];
  const unsound: string[] = [];
  for (const step of steps) {
    const killedBy = firstCaught(copy, mutant, step, unsound);
    if (killedBy === undefined) continue;
    const path = killedBy.split(':')[0];
    const level = isUnit(path) ? 'unit' : distances.has(path) ? 'related' : 'all';
    return { ...mutant, level, set: step.set, killedBy, unsound, seconds: since(began) };
  }
  return { ...mutant, level: 'none', set: 'none', killedBy: undefined, unsound, seconds: since(began) };
}

/** How a single nightly test of another level is written. */
const TAG = "['nightly']";
const isUnit = (path: string) => path.startsWith('test/unit/');
const isNightly = (path: string) => path.startsWith('test/nightly/');
const since = (began: number) => Math.round((performance.now() - began) / 1000);

const describe = ({ number, area, file, line, operator, from, to }: Mutant) =>
  `${String(number).padStart(3)}  ${area.padEnd(9)}  ${file}:${line}  ${operator}: ${JSON.stringify(from)} -> ${JSON.stringify(to)}`;

const only = values.only?.split(',').map(Number);
const drawn = values.again ? mutantsAgain(values.again) : drawMutants(Number(values.seed), Number(values.count));
const mutants = drawn.filter(({ number }) => !only || only.includes(number));
if (values.list) {
  for (const mutant of mutants) console.log(describe(mutant));
  if (values.out) writeFileSync(values.out, `${JSON.stringify({ outcomes: mutants }, null, 2)}\n`);
} else {
  const copy = copyTree();
  const outcomes: Outcome[] = [];
  for (const mutant of mutants) {
    const outcome = attempt(copy, mutant);
    outcomes.push(outcome);
    const end = outcome.killedBy ? `${outcome.set}, ${outcome.level}: ${outcome.killedBy}` : 'LIVES';
    console.log(`${describe(mutant)}\n     ${end} (${outcome.seconds} s)`);
    for (const red of outcome.unsound) console.log(`     red by chance: ${red}`);
    if (values.out) writeFileSync(values.out, `${JSON.stringify({ outcomes }, null, 2)}\n`);
  }
  const found = (set: Outcome['set']) => outcomes.filter((outcome) => outcome.set === set).length;
  console.log(
    `${found('quick') + found('nightly')} of ${outcomes.length} mutants found:` +
      ` ${found('quick')} by quick tests, ${found('nightly')} by nightly ones alone`,
  );
}
