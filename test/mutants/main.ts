/**
 * `npm run mutants -- --seed N --count 60`: breaks the product in small ways, one at a time, and sees whether a test turns
 * red. Works in a copy of the tree, whose changes that are not committed come along. Tests that import the broken file run
 * first, unit tests before the others, and the first red one ends the trial; only a mutant that they let live meets all.
 *
 *   --seed N     which mutants are made (1)
 *   --count N    how many, spread evenly over the areas (60)
 *   --list       prints them and runs nothing
 *   --only N,..  these numbers of the list
 *   --related    survivors of the related tests are not tried on all
 *   --out FILE   writes the table as JSON
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { seededRandom } from '../../pipelines/sources/trades/synthetic.ts';
import { applied, type Mutation, mutationsOf } from './operators.ts';

const ROOT = join(import.meta.dirname, '..', '..');

/** Where the product is broken: folders and files by what they are for. */
const AREAS: Readonly<Record<string, readonly string[]>> = {
  contract: ['serving/contract/'],
  read: ['serving/read/'],
  rendering: ['serving/rendering/'],
  decode: ['pipelines/sources/'],
  project: ['pipelines/project/', 'pipelines/publish/', 'pipelines/rows/'],
  proof: ['pipelines/prove/', 'shared/proof/', 'shared/frame/'],
  rights: ['serving/rights/', 'shared/rights/'],
  audit: ['shared/audit/', 'serving/exports/audit'],
};

interface Mutant extends Mutation {
  readonly number: number;
  readonly area: string;
  readonly file: string;
  readonly line: number;
}

interface Outcome extends Mutant {
  /** What turned red first; undefined: it lived. */
  readonly killedBy?: string;
  readonly level: 'unit' | 'related' | 'all' | 'none';
  readonly seconds: number;
}

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    count: { type: 'string', default: '60' },
    list: { type: 'boolean', default: false },
    only: { type: 'string' },
    related: { type: 'boolean', default: false },
    out: { type: 'string' },
  },
});

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
    const line = text.slice(0, mutation.at).split('\n').length;
    mutants.push({ ...mutation, number: mutants.length + 1, area, file, line });
  }
  return mutants;
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

/** @returns the first test that failed, or undefined. */
function firstRed(copy: string, args: readonly string[]): string | undefined {
  const report = join(copy, '.tidemark', 'mutant.json');
  rmSync(report, { force: true });
  const run = spawnSync(
    join(copy, 'node_modules/.bin/vitest'),
    [...args, '--run', '--bail=1', '--reporter=json', `--outputFile=${report}`, '--passWithNoTests'],
    {
      cwd: copy,
      stdio: 'ignore',
      env: { ...process.env, PATH: `${join(ROOT, 'node_modules/.bin')}:${process.env.PATH}` },
    },
  );
  if (run.status === 0) return undefined;
  try {
    const { testResults } = JSON.parse(readFileSync(report, 'utf8'));
    for (const { name, status, assertionResults } of testResults) {
      const red = assertionResults.find((each: { status: string }) => each.status === 'failed');
      if (red) return `${name.slice(copy.length + 1)}: ${red.fullName}`;
      if (status === 'failed') return `${name.slice(copy.length + 1)}: outside its tests`;
    }
  } catch {
    // The run itself failed; that is red, too.
  }
  return 'the run itself';
}

function attempt(copy: string, mutant: Mutant): Outcome {
  const began = performance.now();
  const path = join(copy, mutant.file);
  const text = readFileSync(path, 'utf8');
  writeFileSync(path, applied(text, mutant));
  try {
    const end = (level: Outcome['level'], killedBy?: string): Outcome => ({
      ...mutant,
      level,
      killedBy,
      seconds: Math.round((performance.now() - began) / 1000),
    });
    const byUnit = firstRed(copy, ['related', mutant.file, '--project', 'unit']);
    if (byUnit) return end('unit', byUnit);
    const levels = ['--project', 'integration', '--project', 'system'];
    const byRelated = firstRed(copy, ['related', mutant.file, ...levels]);
    if (byRelated) return end('related', byRelated);
    if (values.related) return end('none');
    const byAny = firstRed(copy, []);
    return byAny ? end('all', byAny) : end('none');
  } finally {
    writeFileSync(path, text);
  }
}

const describe = ({ number, area, file, line, operator, from, to }: Mutant) =>
  `${String(number).padStart(3)}  ${area.padEnd(9)}  ${file}:${line}  ${operator}: ${JSON.stringify(from)} -> ${JSON.stringify(to)}`;

const only = values.only?.split(',').map(Number);
const mutants = drawMutants(Number(values.seed), Number(values.count)).filter(
  ({ number }) => !only || only.includes(number),
);
if (values.list) {
  for (const mutant of mutants) console.log(describe(mutant));
} else {
  const copy = copyTree();
  const outcomes: Outcome[] = [];
  for (const mutant of mutants) {
    const outcome = attempt(copy, mutant);
    outcomes.push(outcome);
    const end = outcome.killedBy ? `${outcome.level}: ${outcome.killedBy}` : 'LIVES';
    console.log(`${describe(mutant)}\n     ${end} (${outcome.seconds} s)`);
    if (values.out) writeFileSync(values.out, `${JSON.stringify({ seed: Number(values.seed), outcomes }, null, 2)}\n`);
  }
  const killed = outcomes.filter(({ killedBy }) => killedBy).length;
  console.log(`${killed} of ${outcomes.length} mutants found`);
}
