/** The explorer's request as commands, which whoever copies them runs. */
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { requestOf } from '../../serving/page/static/request.js';
import { clientOf } from '../../serving/page/static/snippets.js';
import { runs, SEED } from '../support/seed.ts';

const DATASET = { key: 'etf_daily_metrics', klines_path: null };
const bodyOf = (values: readonly string[]) => ({
  filters: values.map((value) => ({ field: 'dimensions', op: 'eq', value })),
  strict: true,
});
/** What the call in the client's code is given, in JSON. */
const givenIn = (code: string): string =>
  runInNewContext(`JSON.stringify((${/await data\.\w+\((.*)\);\n {2}console/s.exec(code)![1]}))`);

test('TypeScript of filters whose values have apostrophes or quotes did not parse', () => {
  const piece = fc.constantFrom("'", '"', '\\', '\n', ':', ',', ' ', '  "a": ', '\u2028', '😀', 'x', '$1', '{', '}');
  const value = fc.array(piece, { maxLength: 6 }).map((pieces) => pieces.join(''));
  fc.assert(
    fc.property(fc.array(value, { minLength: 1, maxLength: 4 }), (values) => {
      const body = bodyOf(values);
      expect(givenIn(clientOf({ path: '/', body }, DATASET))).toBe(JSON.stringify(body));
      expect(givenIn(clientOf({ path: '/', body }))).toBe(JSON.stringify(body));
    }),
    { seed: SEED, numRuns: runs(500), examples: [[["it's", 'x']], [['a"b']]] },
  );
});

test('TypeScript has texts in single quotes where they hold none', () => {
  const code = clientOf({ path: '/', body: bodyOf(['plain', "it's"]) }, DATASET);
  expect(code).toContain(`value: 'plain'\n`);
  expect(code).toContain(`value: "it's"\n`);
});

test('an integer above 2^53 in a filter was rounded, so that the rows of another one came', () => {
  const filterOf = (dtype: string, value: string) => {
    const dataset = { ...DATASET, modes: { native: { fields: [{ name: 'n', dtype }] } }, historical_path: '/' };
    const choices = { what: 'rows', mode: 'native', fields: [], window: 'all', strict: false } as const;
    const rest = { count: 1, from: '', to: '', klineSize: '1m', filters: [{ field: 'n', op: 'eq', value }] };
    return (requestOf({ dataset, ...choices, ...rest }).body.filters as unknown as { value: unknown }[])[0].value;
  };
  // The service refuses a text where it expects an integer.
  expect(filterOf('int64', '9007199254740993')).toBe('9007199254740993');
  expect(filterOf('int64', '-9007199254740991')).toBe(-9007199254740991);
  expect(filterOf('int64', '1.5')).toBe(1.5);
  expect(filterOf('float64', '1e300')).toBe(1e300);
});
