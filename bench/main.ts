/**
 * `npm run bench -- NAME [--rounds N] [options] [--json]` compares the product with what one would use instead, and prints both
 * times and their ratio. Benchmarks are run by hand and have no threshold. bench/README.md has the figures.
 */
import { codeOf, explain } from '../shared/errors.ts';
import { openLab } from './lab.ts';
import { BenchUsage, chosenOptions } from './subject.ts';
import { SUBJECTS } from './subjects.ts';

const LIST = SUBJECTS.map(({ name, compares }) => `  ${name.padEnd(10)} ${compares}`).join('\n');

async function main([name, ...argv]: readonly string[]): Promise<void> {
  const subject = SUBJECTS.find((one) => one.name === name);
  if (!subject)
    throw new BenchUsage(`${name ? `There is no benchmark ${JSON.stringify(name)}` : 'Which one?'}\n${LIST}`);
  const { options, rounds, json } = chosenOptions(subject, argv);
  await using lab = await openLab(subject.name, rounds, json);
  await subject.run(lab, options);
  lab.end(options);
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  if (error instanceof BenchUsage) {
    process.stderr.write(`${error.message}\nUsage: npm run bench -- NAME [--rounds N] [options] [--json]\n`);
    process.exitCode = 2;
  } else {
    // An error with a code is printed as a sentence. Any other is a bug of the benchmark and keeps its stack trace.
    if (codeOf(error) === undefined) throw error;
    process.stderr.write(`${explain(error)}\n`);
    process.exitCode = 1;
  }
}
