/** The oracles of a campaign turn red: each fault here is made on purpose. */
import { expect, test } from 'vitest';
import type { Change } from '../../client/changes.ts';
import { digestOf } from '../faults/answers.ts';
import { type AuditLine, differencesOf, oneEndEach, sameChanges } from '../faults/oracles.ts';
import type { FileDay } from '../faults/reference.ts';
import { judged } from '../faults/workload.ts';
import { VENDOR_A } from '../support/vendors.ts';

const QUESTION = { name: 'csv', accept: 'text/csv' };
const body = (text: string) => Buffer.from(text);
const fileOf = (...versions: string[]): FileDay => ({
  ...{ vendor: VENDOR_A, exchange: 'exchange_a', index: 0, day: '2024-01-01', archives: [], rows: [] },
  expected: new Map([['csv', versions.map((text) => digestOf(QUESTION, body(text)))]]),
  ...{ published: versions.length, seen: 0 },
});
const answer = (text: string, status = 200) => ({ status, body: body(text) });

test('a right answer of each version passes, and later answers have no earlier version', () => {
  const file = fileOf('a\n1\n', 'a\n2\n');
  expect(judged(file, QUESTION, answer('a\n1\n'), file.seen)).toBeUndefined();
  expect(judged(file, QUESTION, answer('a\n2\n'), file.seen)).toBeUndefined();
  expect(judged(file, QUESTION, answer('a\n1\n'), file.seen)).toMatch(/version 1 after version 2/);
});

test.each([
  ['a row short', answer('a\n1\n')],
  ['a row twice', answer('a\n1\n2\n2\n')],
  ['a changed row', answer('a\n1\n3\n')],
  ['a failure of the service', answer('{}', 500)],
])('%s is found', (_, reply) => {
  expect(judged(fileOf('a\n1\n2\n'), QUESTION, reply, 0)).toBeDefined();
});

test('a day that is not there is found where it was served before, and a version that nobody has published', () => {
  expect(judged(fileOf('a\n1\n'), QUESTION, answer('{}', 404), 0)).toBeUndefined();
  expect(judged(fileOf('a\n1\n'), QUESTION, answer('{}', 404), 1)).toMatch(/served before/);
  const early = { ...fileOf('a\n1\n', 'a\n2\n'), published: 1 };
  expect(judged(early, QUESTION, answer('a\n2\n'), 0)).toMatch(/not published/);
});

const leaf = (partition: string) => ({ v: 1, kind: 'proved', partition });
const heard = (...partitions: string[]) =>
  partitions.map((partition, at) => ({ number: at + 1, ...leaf(partition) })) as unknown as Change[];
const leaves = (...partitions: string[]) =>
  partitions.map((partition, index) => ({ index, leaf: JSON.stringify(leaf(partition)) }));

test('changes that are skipped, repeated, changed or without an index are found', () => {
  expect(sameChanges(heard('a', 'b'), leaves('a', 'b'))).toBeUndefined();
  expect(sameChanges(heard('a'), leaves('a', 'b'))).toMatch(/1 changes were heard of 2/);
  expect(sameChanges(heard('a', 'b', 'b'), leaves('a', 'b'))).toMatch(/3 changes/);
  expect(sameChanges(heard('b', 'a'), leaves('a', 'b'))).toMatch(/not its leaf/);
  const skipped = [heard('a')[0], { ...heard('a', 'b')[1], number: 3 }] as Change[];
  expect(sameChanges(skipped, leaves('a', 'b'))).toMatch(/number 3/);
  expect(sameChanges(heard('a', 'b'), [...leaves('a'), { index: null, leaf: '{}' }])).toMatch(/no index/);
});

test('an export without an end, and one with two, are found', () => {
  const end = (export_id: string, to: string): AuditLine => ({
    event: 'export_transition',
    export_id,
    payload: { to },
  });
  const lines = [end('one', 'running'), end('one', 'succeeded'), end('two', 'running')];
  expect(oneEndEach(lines, ['one'])).toBeUndefined();
  expect(oneEndEach(lines, ['one', 'two'])).toBe('two has 0 ends');
  expect(oneEndEach([...lines, end('one', 'failed')], ['one'])).toBe('one has 2 ends');
});

test('an end that the database never had is announced again, after a pause or by the worker that claims the export next', () => {
  const line = (event: string, to: string, fence: number, ms = 0): AuditLine => ({
    ...{ event: 'export_transition', export_id: 'one', occurred_at: new Date(ms).toISOString() },
    payload: { event, to, fence },
  });
  const end = (fence: number, ms = 0) => line('succeed', 'succeeded', fence, ms);
  const [first, again] = [1, 2].map((fence) => [line('claim', 'running', fence), end(fence)]);
  expect(oneEndEach([...first, ...again], ['one'])).toBeUndefined();
  expect(oneEndEach([...first, again[0]], ['one'])).toBe('one has 0 ends');
  // Without a claim nobody could make it again.
  expect(oneEndEach([...first, again[1]], ['one'])).toBe('one has 2 ends');
  expect(oneEndEach([...first, end(1, 300)], ['one'])).toBeUndefined();
  expect(oneEndEach([...first, end(1, 3)], ['one'])).toBe('one has 2 ends');
  expect(oneEndEach([...first, line('fail', 'failed', 1, 300)], ['one'])).toBe('one has 2 ends');
});

test('a partition, table or file too many, too few or of another content is found', () => {
  const map = (of: Record<string, string>) => new Map(Object.entries(of));
  expect(differencesOf(map({ a: '1' }), map({ a: '1' }))).toBeUndefined();
  const others: Record<string, string>[] = [{}, { a: '2' }, { a: '1', b: '1' }];
  for (const found of others) expect(differencesOf(map(found), map({ a: '1' }))).toBeDefined();
});
