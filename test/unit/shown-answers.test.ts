/** What README, docs and examples show of answers, compared with answers. */
import { describe, expect, test } from 'vitest';
import { compareAnswer } from '../support/shown-answers.ts';

describe('an answer', () => {
  const compare = (shown: string, answer: string, valuesDiffer = false) =>
    compareAnswer(shown, answer, { valuesDiffer });
  const ANSWER =
    '{"rows":[{"id":7,"price":1.5},{"id":8,"price":2.5}],"sha256":"24bc504b500b9476","at":"2026-11-29T00:00:00.5Z"}';

  test.each([
    ['{ "rows": [ ..., { "id": 8, "price": 2.5 } ], "sha256": "24bc...", "at": "2026-01-01T00:00:00Z" }', undefined],
    ['{ "rows": [ { "id": 7, ... } ], ... }', undefined],
    ['{ "rows": [ ..., { "id": 9, ... } ], ... }', 'the page shows 9, and the answer has 8'],
    ['{ "rows": [ ..., { "id": 8, "amount": 2.5 } ], ... }', 'the answer has no "amount'],
    ['{ "rows": [ ... ], "sha256": "25bc...", "at": "2026-01-01T00:00:00Z" }', 'the page shows 25bc...'],
    ['{ "rows": [ ... ] }', 'the answer has no '],
    ['{ "rows": "seven" }', 'the answer has no '],
  ])('is compared with %s', (shown, fault) => {
    const found = compare(shown, ANSWER).fault;
    if (fault === undefined) expect(found).toBeUndefined();
    else expect(found).toContain(fault);
  });

  test('of another day has other values, and renews what is shown', () => {
    const shown =
      '{ "rows": [ ...,\n  { "id": 1, "price": 0.5 } ],\n  "sha256": "00ff...", "at": "2020-01-01T00:00:00Z" }\n';
    expect(compare(shown, ANSWER, true)).toEqual({
      renewed:
        '{ "rows": [ ...,\n  { "id": 8, "price": 2.5 } ],\n  "sha256": "24bc...", "at": "2026-11-29T00:00:00.5Z" }\n',
    });
  });
});
