// Counts tests from the reports of vitest that are named, not from exit codes: a run that never began must not look like one
// that passed. Tells what failed, and ends with one plain line; exit 1 if anything failed or nothing passed.
import { readFileSync } from 'node:fs';

const count = { passed: 0, failed: 0, skipped: 0 };

/** A log may keep its end alone, so the end says what failed. */
function fail(name, message) {
  if (++count.failed <= 20) console.log(`Failed: ${name}\n${message.slice(0, 1500)}\n`);
}

/** Tests that `npm test` leaves to the nightly run are in its report as skipped. */
const isLeftOut = (path, tags) => !path.endsWith('report-all.json') && tags.includes('nightly');

for (const path of process.argv.slice(2)) {
  let report = { testResults: [] };
  try {
    report = JSON.parse(readFileSync(path, 'utf8'));
  } catch {}
  if (report.testResults.length === 0) fail(path, 'The report is missing or names no test.');
  for (const file of report.testResults) {
    for (const { status, fullName, failureMessages, tags } of file.assertionResults) {
      if (status === 'failed') fail(`${file.name} > ${fullName}`, failureMessages.join('\n'));
      else if (status === 'passed') count.passed++;
      else if (!isLeftOut(path, tags)) count.skipped++;
    }
    // A file that fails outside its tests (an import, a hook) has no failed test to show for it.
    if (file.status === 'failed' && !file.assertionResults.some(({ status }) => status === 'failed'))
      fail(file.name, file.message);
  }
}
const skipped = count.skipped > 0 ? `, ${count.skipped} skipped` : '';
console.log(`${count.passed} passed, ${count.failed} failed${skipped}`);
process.exitCode = count.failed === 0 && count.passed > 0 ? 0 : 1;
