import { basename } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Files that take longest for their size. On a machine that has not run them before vitest begins with the largest
 * files, and a small one that takes a minute would be at work alone at the end, beside an idle core.
 */
const LONG = [
  'kill',
  'bitcoin-sample',
  'bitcoin-kill',
  'bad-downloads',
  'bad-documents',
  'operations-scale',
  'operations-month',
  'operations-repair',
  'export-workers',
  'pipeline-log',
  'pipeline-repair',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const isLong = ({ moduleId }: TestSpecification) => LONG.includes(basename(moduleId, '.test.ts'));
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))];
  }
}
