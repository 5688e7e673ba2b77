/** The end of a run: how many tests were skipped, and why. Tests that a filter leaves out are not told of. */
import type { Reporter, TestCase, TestModule } from 'vitest/node';

/** What given.ts adds to the name of a skipped test. */
const REASON = / \[skipped: (.+?)\]/;

export default class SkippedReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const counts = new Map<string, number>();
    for (const module of modules) {
      for (const test of module.children.allTests('skipped')) {
        const reason = reasonOf(test);
        if (reason !== undefined) counts.set(reason, (counts.get(reason) ?? 0) + 1);
      }
    }
    for (const [reason, count] of counts)
      process.stdout.write(`skipped: ${count} ${count === 1 ? 'test' : 'tests'}: ${reason}\n`);
  }
}

function reasonOf(test: TestCase): string | undefined {
  const result = test.result();
  return result.state === 'skipped' ? (result.note ?? REASON.exec(test.fullName)?.[1]) : undefined;
}
