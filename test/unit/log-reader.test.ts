/** How the projector waits for the log: a dataset without news is asked ten times a second for as long as the process lives. */
import { describe, expect, test, vi } from 'vitest';
import { Arrival } from '../../pipelines/projector/log-reader.ts';

const { signal } = new AbortController();

describe('an arrival', () => {
  test('that does not come keeps nothing of those who waited', async () => {
    const pending = new Promise<string>(() => {});
    const reactions = vi.spyOn(pending, 'then');
    const listeners = vi.spyOn(signal, 'addEventListener');
    const removed = vi.spyOn(signal, 'removeEventListener');
    const arrival = new Arrival(pending);
    for (let wait = 0; wait < 20; wait++) expect(await arrival.within(0, signal)).toBeUndefined();
    expect(reactions).toHaveBeenCalledTimes(1);
    expect(removed).toHaveBeenCalledTimes(listeners.mock.calls.length);
  });

  test('comes to the one who waits, or to the next one', async () => {
    const { promise, resolve } = Promise.withResolvers<string>();
    const arrival = new Arrival(promise);
    expect(await arrival.within(0, signal)).toBeUndefined();
    const waiting = arrival.within(60_000, signal);
    resolve('a message');
    expect(await waiting).toBe('a message');
    expect(await arrival.within(0, signal)).toBe('a message');
    expect(await new Arrival(Promise.resolve('another')).within(60_000, signal)).toBe('another');
  });

  test('that fails is thrown to everyone who waits for it', async () => {
    const arrival = new Arrival(Promise.reject(new Error('the consumer ended')));
    for (let wait = 0; wait < 2; wait++) await expect(arrival.within(60_000, signal)).rejects.toThrow('ended');
  });

  test('is not awaited beyond the signal', async () => {
    const stopping = new AbortController();
    const arrival = new Arrival(new Promise<string>(() => {}));
    const waiting = arrival.within(60_000, stopping.signal);
    stopping.abort();
    expect(await waiting).toBeUndefined();
    expect(await arrival.within(60_000, stopping.signal)).toBeUndefined();
  });
});
