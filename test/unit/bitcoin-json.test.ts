/** JSON as a node writes it: read under a cursor or whole, its numbers in whatever form they come. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { btcText, integer, sats } from '../../pipelines/sources/bitcoin/rpc/answers.ts';
import { parseExactly } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import { JsonCursor } from '../../pipelines/sources/bitcoin/rpc/json-cursor.ts';
import { runs } from '../support/seed.ts';

const exactly = (json: string) => parseExactly(Buffer.from(json));

/** A tree of what a cursor passes by, numbers as texts. */
function treeOf(cursor: JsonCursor): unknown {
  if (cursor.isList) {
    const items: unknown[] = [];
    cursor.list();
    while (cursor.item()) items.push(treeOf(cursor));
    return items;
  }
  if (cursor.isObject) {
    const members: [string, unknown][] = [];
    cursor.object();
    while (cursor.member()) {
      const name = JSON.parse(cursor.bytes.toString('utf8', cursor.start - 1, cursor.end + 1)) as string;
      members.push([name, treeOf(cursor)]);
    }
    return Object.fromEntries(members);
  }
  const isText = cursor.isString;
  cursor.scalar();
  const written = cursor.bytes.toString('utf8', cursor.start, cursor.end);
  if (isText) return JSON.parse(`"${written}"`);
  return ['true', 'false', 'null'].includes(written) ? JSON.parse(written) : written;
}

describe('JSON under a cursor', () => {
  const value = fc.jsonValue({ maxDepth: 4 });
  const space = fc.constantFrom(0, 1, '\t');

  test('is what it is elsewhere; what is skipped is passed over whole', () => {
    fc.assert(
      fc.property(value, value, space, (skipped, read, indent) => {
        const written = JSON.stringify([skipped, { read }], null, indent);
        const cursor = new JsonCursor(Buffer.from(written));
        cursor.list();
        expect(cursor.item()).toBe(true);
        cursor.skip();
        expect(cursor.item()).toBe(true);
        expect(treeOf(cursor)).toEqual((exactly(written) as unknown[])[1]);
        expect(cursor.item()).toBe(false);
        cursor.finish();
      }),
      { numRuns: runs(1_000) },
    );
  });

  test('that is cut anywhere, or has another mark in a place, is refused', () => {
    const written = '{"result":{"a":[1,-2.5e3,"x\\"y",true,null,[],{}],"b":{"c":"d"}},"error":null,"id":"1"}';
    const read = (text: string) => {
      const cursor = new JsonCursor(Buffer.from(text));
      treeOf(cursor);
      cursor.finish();
    };
    read(written);
    for (let end = 0; end < written.length; end++) {
      expect(() => read(written.slice(0, end)), written.slice(0, end)).toThrow(SyntaxError);
    }
    for (const broken of ['{"a":1,}', '[1,]', '[1 2]', '{"a" 1}', '{"a":1 "b":2}', '{a:1}', '[1]]', '[,1]', '{,}']) {
      expect(() => read(broken), broken).toThrow(SyntaxError);
    }
  });
});

describe('numbers', () => {
  test('any JSON reads as it does elsewhere, but for its numbers, which are their own text', () => {
    const asText = (value: unknown): unknown => {
      if (typeof value === 'number') return JSON.stringify(value);
      if (Array.isArray(value)) return value.map(asText);
      if (typeof value !== 'object' || value === null) return value;
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, asText(item)]));
    };
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 4 }), fc.constantFrom(0, 1, '\t'), (value, space) => {
        const written = JSON.stringify(value, null, space);
        expect(exactly(written)).toEqual(asText(JSON.parse(written)));
      }),
      { numRuns: runs(3_000) },
    );
    for (const broken of ['', '{', '"', '"\\', '[1', '[1,]', '{"a":1', '"a', 'tru', '[1 2]']) {
      expect(() => exactly(broken), broken).toThrow(SyntaxError);
    }
  });

  test('keep every digit, in either form', () => {
    const told = exactly('{"difficulty":126271255279306.7,"as_text":"126271255279306.7","n":[1,-2.50,1e-8]}');
    expect(told).toEqual({
      difficulty: '126271255279306.7',
      as_text: '126271255279306.7',
      n: ['1', '-2.50', '1e-8'],
    });
  });

  test('every amount there can be survives the way it is written, to the satoshi', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 2_100_000_000_000_000 }), (amount) => {
        const written = btcText(amount);
        expect(written).toMatch(/^\d+\.\d{8}$/);
        const [as_number, as_text] = exactly(`[${written},"${written}"]`) as unknown[];
        expect(sats(as_number, 'value')).toBe(amount);
        expect(sats(as_text, 'value')).toBe(amount);
        // as other programs write it
        expect(sats(String(amount / 1e8), 'value')).toBe(amount);
      }),
      { numRuns: runs(5_000) },
    );
  });

  test.each([
    '0.000000001',
    '-0.00000001',
    '21000000.00000001',
    '1e99',
    '1e-99',
    'NaN',
    '',
    '0x10',
    '1,5',
    ' 1',
    '1.',
    '.5',
  ])('%j is no amount', (written) => {
    expect(() => sats(written, 'value')).toThrowError(expect.objectContaining({ code: 'NODE_ANSWER_INVALID' }));
  });

  test.each(['1.0', '1e3', '9007199254740993', '-1', '', 'abc'])('%j is no count', (written) => {
    expect(() => integer(written, 'height')).toThrowError(expect.objectContaining({ code: 'NODE_ANSWER_INVALID' }));
  });
});
