/** The page's looks at the service, and its other asks, also where answers take longer than the pause between two of them. */
import { expect, test, vi } from 'vitest';
import { Fault, Latest } from '../../serving/page/static/api.js';
import { Looks } from '../../serving/page/static/looks.js';

test('a service that never answered was waited for without end', async () => {
  const limit = new AbortController();
  const timeout = vi.spyOn(AbortSignal, 'timeout').mockReturnValue(limit.signal);
  const shown = vi.fn();
  const looks = new Looks(
    (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
    shown,
  );
  const looking = looks.now();
  expect(looks.isBusy).toBe(true);
  limit.abort();
  await looking;
  timeout.mockRestore();
  expect(shown.mock.calls).toEqual([[{ fault: new Fault('The service does not answer.') }]]);
  expect(looks.isBusy).toBe(false);
});

test('of two looks the later one is shown, whichever answer comes first', async () => {
  const asked: ((name: string) => void)[] = [];
  const shown = vi.fn();
  const looks = new Looks(() => new Promise((resolve) => asked.push(resolve)), shown);
  const looking = [looks.now(), looks.now()];
  asked[1]('second');
  asked[0]('first');
  await Promise.all(looking);
  expect(shown.mock.calls).toEqual([[{ value: 'second' }]]);
});

test('a look that was ended shows nothing', async () => {
  const end = Promise.withResolvers<string>();
  const shown = vi.fn();
  const looks = new Looks(() => end.promise, shown);
  const looking = looks.now();
  looks.stop();
  end.resolve('with the key before');
  await looking;
  expect(shown).not.toHaveBeenCalled();
});

test.each(['value', 'fault'])('a late %s replaced that of what was chosen since', async (kind) => {
  const latest = new Latest();
  const end = Promise.withResolvers<string>();
  const first = latest.ask(() => end.promise);
  const second = await latest.ask(async () => 'second');
  if (kind === 'value') end.resolve('first');
  else end.reject(new Fault('The answer of another day.'));
  expect([await first, second]).toEqual([undefined, { value: 'second' }]);
});

test('a late answer appeared though nothing is chosen any more', async () => {
  const latest = new Latest();
  const end = Promise.withResolvers<string>();
  const first = latest.ask(() => end.promise);
  latest.stop();
  end.resolve('first');
  expect(await first).toBe(undefined);
});
