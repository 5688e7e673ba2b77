/** The places of event streams between keys: whoever takes them all makes room, and nobody is shut out. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Caller } from '../../serving/http/caller.ts';
import { StreamPlaces } from '../../serving/limits/stream-places.ts';
import { OWNER } from '../../shared/keys/key.ts';

/** Places, and the open streams as `key:number`, in order of arrival. */
class Streams {
  readonly places: StreamPlaces;
  readonly open: { readonly name: string; readonly give: () => void }[] = [];
  #asked = 0;

  constructor(limit: number) {
    this.places = new StreamPlaces(limit);
  }

  /** @returns whether the stream was opened */
  ask(key: string): boolean {
    const name = `${key}:${++this.#asked}`;
    const end = () => void this.open.splice(this.#at(name), 1);
    try {
      const give = this.places.take(key === OWNER ? Caller.OWNER : new Caller(key, Caller.OWNER.terms), end);
      this.open.push({ name, give });
      return true;
    } catch {
      return false;
    }
  }

  close(at: number): void {
    for (const { give } of this.open.splice(at, 1)) give();
  }

  #at = (name: string) => this.open.findIndex((one) => one.name === name);
  names = () => this.open.map(({ name }) => name);
  count = (key: string) => this.names().filter((name) => name.startsWith(`${key}:`)).length;
}

test('the newest stream of the key with most ends for a key that holds less, and that key does not get it back', () => {
  const streams = new Streams(4);
  for (const key of ['a', 'b', 'a', 'a']) streams.ask(key);
  expect(streams.ask('c')).toBe(true);
  expect(streams.names()).toEqual(['a:1', 'b:2', 'a:3', 'c:5']);
  expect(streams.ask('a')).toBe(false);
  // One more of b would leave a with less than b.
  expect(streams.ask('b')).toBe(false);
  expect(streams.places.displaced).toBe(1);
});

test('the owner always gets in, at last for the newest stream of its own', () => {
  const streams = new Streams(2);
  for (const key of ['a', 'b', OWNER]) expect(streams.ask(key)).toBe(true);
  expect(streams.ask('a')).toBe(streams.count('a') === 0 && streams.count('b') > 1);
  expect(streams.ask(OWNER)).toBe(true);
  expect(streams.count(OWNER)).toBe(1);
  expect([streams.count('a') + streams.count('b'), streams.places.taken]).toEqual([1, 2]);
});

test('without places nobody gets in', () => {
  expect(new Streams(0).ask(OWNER)).toBe(false);
});

test('at any time: places are bounded, and whoever is refused holds its share', () => {
  const step = fc.oneof(fc.constantFrom('a', 'b', 'c', OWNER), fc.nat(20));
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 8 }), fc.array(step, { maxLength: 60 }), (limit, steps) => {
      const streams = new Streams(limit);
      for (const one of steps) {
        if (typeof one === 'number') streams.close(one);
        else {
          const got = streams.ask(one);
          const keys = new Set([...streams.names().map((name) => name.split(':')[0]), one]).size;
          if (!got) expect(streams.count(one)).toBeGreaterThanOrEqual(Math.floor(limit / keys));
          if (one === OWNER) expect(got).toBe(true);
        }
        expect(streams.open.length).toBe(streams.places.taken);
        expect(streams.places.taken).toBeLessThanOrEqual(limit);
      }
    }),
  );
});
