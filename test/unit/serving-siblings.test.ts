/** What several serving processes on one port divide and exchange. */
import { expect, test } from 'vitest';
import { Outbox, shareOf } from '../../serving/siblings.ts';
import { loadSettings } from '../../shared/config/load.ts';

const sharesOf = (flags: Record<string, string>, of: number) => {
  const settings = loadSettings({ cwd: '/nowhere', env: {}, flags });
  return Array.from({ length: of }, (_, index) => shareOf(settings, { number: index + 1, of }));
};

test('limits are divided: their shares add up to them, and each process has at least one of each', () => {
  const flags = { SVC_QUERY_MAX_CONCURRENCY: '8', SVC_QUERY_MAX_QUEUE: '65' };
  const shares = sharesOf(flags, 3);
  expect(shares.map((one) => one.SVC_QUERY_MAX_CONCURRENCY)).toEqual([3, 3, 2]);
  expect(shares.map((one) => one.SVC_QUERY_MAX_QUEUE)).toEqual([22, 22, 21]);
  expect(shares.map((one) => one.limits.connections)).toEqual([342, 341, 341]);
  expect(shares.map((one) => one.limits.discoveryRunning)).toEqual([2, 1, 1]);
});

test('what a setting forbids stays forbidden, and what is not a limit of a process stays whole', () => {
  for (const share of sharesOf({ SVC_CHANGES_MAX_LISTENERS: '0', SVC_EXPORT_MAX_QUEUE: '16' }, 4)) {
    expect([share.SVC_CHANGES_MAX_LISTENERS, share.SVC_EXPORT_MAX_QUEUE]).toEqual([0, 16]);
  }
});

test('messages for a process that takes none are dropped beyond a number, until it takes some', () => {
  const unsent: (() => void)[] = [];
  const outbox = new Outbox<number>((_, sent) => unsent.push(sent));
  let sent = 0;
  while (outbox.send(sent)) sent++;
  expect(unsent).toHaveLength(sent);
  expect(outbox.send(sent)).toBe(false);
  unsent[0]();
  expect([outbox.send(sent), outbox.send(sent)]).toEqual([true, false]);
});
