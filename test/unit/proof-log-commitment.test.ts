/** Commitments of leaves: what opens them, what does not, and the formula of docs/proof-log.md by another implementation. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  COMMITMENTS,
  type CommittedFact,
  commitmentOf,
  parseSalt,
  SaltFault,
  saltOf,
} from '../../shared/proof-log/commitment.ts';
import {
  commitTo,
  decodeLeaf,
  differingFromLeaf,
  encodeLeaf,
  type Leaf,
  logLeaf,
  WRONG_SALT,
} from '../../shared/proof-log/leaf.ts';

/** HMAC as RFC 2104 writes it, for keys of at most a block. */
function hmac(key: Uint8Array, text: string): string {
  const pad = (byte: number) => Buffer.from(Array.from({ length: 64 }, (_, at) => (key[at] ?? 0) ^ byte));
  const inner = createHash('sha256').update(pad(0x36)).update(text).digest();
  return createHash('sha256').update(pad(0x5c)).update(inner).digest('hex');
}

const FACTS = Object.keys(COMMITMENTS) as CommittedFact[];
const hex = fc.uint8Array({ minLength: 32, maxLength: 32 }).map((bytes) => Buffer.from(bytes).toString('hex'));
const salts = fc.uint8Array({ minLength: 32, maxLength: 32 });
const facts = fc.record({
  document_sha256: hex,
  offsets: fc.tuple(fc.bigInt(), fc.bigInt()).map((both) => both.join(' ')),
  rows_hash: fc.bigInt().map(String),
  events_sha256: hex,
  rows_sha256: hex,
  facts: fc.json(),
});
const leafOf = (salt: Uint8Array, committed: Record<CommittedFact, string>): Leaf => ({
  ...logLeaf({ kind: 'proved', reason: null }),
  ...{
    dataset: 'exchange_a_spot_trades',
    partition: '2024-01-01',
    revision: 2,
    attempt: 3,
    document: 'a.zip',
    rows: 4,
  },
  ...commitTo(salt, committed),
});

test('the example of docs/proof-log.md is what its formula gives', () => {
  const page = readFileSync('docs/proof-log.md', 'utf8');
  const [, salt] = /^SALT=([0-9a-f]{64})$/m.exec(page)!;
  const [, member, value] = /printf '(\w+)\\n([0-9a-f]{64})'/.exec(page)!;
  const [, shown] = /hexkey:\$SALT +# ([0-9a-f]{64})$/m.exec(page)!;
  expect(hmac(Buffer.from(salt, 'hex'), `${member}\n${value}`)).toBe(shown);
  expect(commitmentOf(parseSalt(salt), 'rows_sha256', value)).toBe(shown);
});

test('a leaf commits to each fact under the name of its member, and shows none of them', () => {
  fc.assert(
    fc.property(salts, facts, (salt, committed) => {
      const text = encodeLeaf(leafOf(salt, committed)).toString();
      const members = JSON.parse(text);
      for (const fact of FACTS) {
        expect(members[COMMITMENTS[fact]]).toBe(hmac(salt, `${COMMITMENTS[fact]}\n${committed[fact]}`));
        if (fact !== 'facts' && committed[fact].length > 20) expect(text).not.toContain(committed[fact]);
      }
      expect(differingFromLeaf(decodeLeaf(Buffer.from(text)), salt, { ...committed, revision: 2, rows: 4 })).toEqual(
        [],
      );
    }),
  );
});

test('what the leaf does not commit to is found, one fact or several; so is what an answer lacks', () => {
  fc.assert(
    fc.property(salts, facts, facts, fc.subarray(FACTS, { minLength: 1 }), (salt, committed, others, changed) => {
      const leaf = leafOf(salt, committed);
      const given = { ...committed, ...Object.fromEntries(changed.map((fact) => [fact, others[fact]])) };
      fc.pre(changed.every((fact) => given[fact] !== committed[fact]));
      const found = differingFromLeaf(leaf, salt, given);
      if (changed.length === FACTS.length) expect(found).toEqual([WRONG_SALT]);
      else
        expect(found).toEqual(
          changed.map((fact) => `${fact} ${given[fact].slice(0, 80)} is not what the leaf commits to`),
        );
      const without = Object.fromEntries(changed.map((fact) => [fact, undefined]));
      expect(differingFromLeaf(leaf, salt, { ...committed, ...without })).not.toEqual([]);
    }),
  );
});

test('a salt of another leaf opens nothing, and one that is none is refused', () => {
  fc.assert(
    fc.property(salts, salts, facts, (salt, other, committed) => {
      fc.pre(!Buffer.from(salt).equals(other));
      expect(differingFromLeaf(leafOf(salt, committed), other, { ...committed, rows: 4 })).toEqual([WRONG_SALT]);
    }),
  );
  for (const none of [undefined, null]) expect(() => parseSalt(none)).toThrow('has no salt');
  // HMAC takes a shorter key for the same as one with zeros behind it.
  for (const bad of ['', 'ab', 'ab'.repeat(31), 'AB'.repeat(32), 'ab'.repeat(33), 'zz'.repeat(32), 5, {}]) {
    expect(() => parseSalt(bad), String(bad)).toThrow(SaltFault);
  }
});

test('a salt is that of a dataset, a partition and a revision under a secret: equal for equal ones alone', () => {
  const secret = Buffer.alloc(32, 9);
  const names = fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 12 });
  const subject = fc.record({ dataset: names, partition: names, revision: fc.nat(20) });
  fc.assert(
    fc.property(subject, subject, (a, b) => {
      expect(saltOf(secret, a).toString('hex')).toBe(
        hmac(secret, `salt of a leaf\n${a.dataset}\n${a.partition}\n${a.revision}`),
      );
      expect(saltOf(secret, a).equals(saltOf(secret, b))).toBe(JSON.stringify(a) === JSON.stringify(b));
      expect(saltOf(secret, a).equals(saltOf(Buffer.alloc(32, 8), a))).toBe(false);
    }),
  );
});
