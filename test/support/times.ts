/**
 * `npm run test:times`: where the time of the last runs went, from their reports (`.tidemark/test/report-*.json`) and spans.
 *
 *   --top N    how many files and tests are listed (20)
 *   --record   writes test/times.json, by which the next runs order their files
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import { RECORDED_TIMES, recordedTimes } from './recorded-times.ts';
import { SPAN_KINDS, type SpanKind } from './spans.ts';

const TEST = join(import.meta.dirname, '..');
const RUNS = join(TEST, '..', '.tidemark', 'test');

interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly startTime: number;
    readonly endTime: number;
    readonly assertionResults: readonly { readonly fullName: string; readonly duration?: number }[];
  }[];
}

interface FileTime {
  readonly path: string;
  readonly ms: number;
  readonly tests: readonly { readonly name: string; readonly ms: number }[];
}

const namesIn = (directory: string, pattern: RegExp): string[] => {
  try {
    return readdirSync(directory).filter((name) => pattern.test(name));
  } catch {
    return [];
  }
};

/** Of a file that several reports hold, as after a run of one level or of one file, what the newest says. */
function filesOfReports(): FileTime[] {
  const results = namesIn(RUNS, /^report-.*\.json$/)
    .map((name) => JSON.parse(readFileSync(join(RUNS, name), 'utf8')) as Report)
    .flatMap(({ testResults }) => testResults)
    .sort((a, b) => a.startTime - b.startTime);
  const newest = new Map(results.map((result) => [result.name, result]));
  return [...newest.values()].map(({ name, startTime, endTime, assertionResults }) => ({
    path: relative(TEST, name),
    ms: endTime - startTime,
    tests: assertionResults.map(({ fullName, duration = 0 }) => ({ name: fullName, ms: duration })),
  }));
}

function spansOf(paths: ReadonlySet<string>): Record<SpanKind, number> {
  const sums = Object.fromEntries(SPAN_KINDS.map((kind) => [kind, 0])) as Record<SpanKind, number>;
  for (const name of namesIn(join(RUNS, 'spans'), /\.json$/)) {
    if (!paths.has(name.slice(0, -'.json'.length).replaceAll('~', '/'))) continue;
    const spent = JSON.parse(readFileSync(join(RUNS, 'spans', name), 'utf8')) as Record<SpanKind, number>;
    for (const kind of SPAN_KINDS) sums[kind] += spent[kind];
  }
  return sums;
}

const seconds = (ms: number) => `${(ms / 1000).toFixed(1).padStart(7)} s`;
const print = (line: string) => process.stdout.write(`${line}\n`);

const { values } = parseArgs({
  options: { top: { type: 'string', default: '20' }, record: { type: 'boolean', default: false } },
});
const files = filesOfReports().sort((a, b) => b.ms - a.ms);
if (files.length === 0) {
  print('No report of a run yet: npm test writes one.');
  process.exit(1);
}
const top = Number(values.top);
const total = files.reduce((sum, { ms }) => sum + ms, 0);
print(`${files.length} files, ${files.flatMap(({ tests }) => tests).length} tests, ${seconds(total).trim()} of work`);
for (const level of ['unit/', 'integration/', 'system/', 'nightly/']) {
  const own = files.filter(({ path }) => path.slice(0, path.lastIndexOf('/') + 1) === level);
  if (own.length > 0)
    print(`${seconds(own.reduce((sum, { ms }) => sum + ms, 0))}  test/${level} (${own.length} files)`);
}
print('\nSlowest files');
for (const { path, ms } of files.slice(0, top)) print(`${seconds(ms)}  ${path}`);
print('\nSlowest tests');
const tests = files.flatMap(({ path, tests }) => tests.map((test) => ({ path, ...test }))).sort((a, b) => b.ms - a.ms);
for (const { path, name, ms } of tests.slice(0, top)) print(`${seconds(ms)}  ${path}: ${name}`);
print('\nSpent on (of the work above; kinds may overlap)');
const spans = spansOf(new Set(files.map(({ path }) => path)));
for (const kind of SPAN_KINDS)
  print(`${seconds(spans[kind])}  ${((100 * spans[kind]) / total).toFixed(0).padStart(3)} %  ${kind}`);

if (values.record) {
  const times = { ...recordedTimes(), ...Object.fromEntries(files.map(({ path, ms }) => [path, Math.round(ms)])) };
  const there = Object.entries(times).filter(([path]) => existsSync(join(TEST, path)));
  const sorted = Object.fromEntries(there.sort(([a], [b]) => a.localeCompare(b)));
  writeFileSync(RECORDED_TIMES, `${JSON.stringify(sorted, null, 2)}\n`);
  print(`\n${Object.keys(sorted).length} files recorded in test/times.json`);
}
