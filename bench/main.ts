/**
 * `npm run bench -- <name> [--json] [options]`: compares Tidemark with what one would use instead, in one run, and prints
 * the ratio. `npm run bench -- all` runs every benchmark and compares it with its last run. Benchmarks are run by hand and
 * have no threshold. Machines differ, so quote ratios and medians. bench/README.md describes each.
 */
import { codeOf, explain } from '../shared/errors.ts';
import { BENCHES } from './benches.ts';
import { describeNoise, measureNoise } from './noise.ts';
import { BenchUsage } from './options.ts';

const [name, ...argv] = process.argv.slice(2);
const usage = (names: string) => `Usage: npm run bench -- ${names} [options]\n`;
const note = (line: string) => process.stderr.write(`${line}\n`);

/** Measures the machine's noise before and after the benchmark, says it, and reports it to a parent that runs them all. */
async function runOne(run: (argv: readonly string[]) => Promise<void>): Promise<void> {
  const before = await measureNoise();
  await run(argv);
  const after = await measureNoise();
  note(describeNoise(before, after));
  process.send?.({ noise: { before, after } });
}

const bench = BENCHES.find((one) => one.name === name);
const load = bench
  ? async () => await runOne((await bench.load()).run)
  : name === 'all'
    ? async () => await (await import('./all.ts')).runAll(argv)
    : undefined;
if (load) {
  try {
    await load();
  } catch (error) {
    if (error instanceof BenchUsage) {
      process.stderr.write(`${error.message}\n${usage(name)}`);
      process.exitCode = 2;
    } else {
      // An error with a code is printed as a sentence. Any other is a bug of the benchmark and keeps its stack trace.
      if (codeOf(error) === undefined) throw error;
      process.stderr.write(`${explain(error)}\n`);
      process.exitCode = 1;
    }
  }
} else {
  process.stderr.write(usage([...BENCHES.map((one) => one.name), 'all'].join('|')));
  process.exitCode = 2;
}
