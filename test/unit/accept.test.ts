/** What Accept and Accept-Encoding lead to. */
import { describe, expect, test } from 'vitest';
import { chooseCoding, chooseRepresentation, mediaQuality } from '../../serving/render/representations.ts';

const outcome = (choose: () => string): string => {
  try {
    return choose();
  } catch (error) {
    return (error as { code: string }).code;
  }
};

const JSON_ROWS = 'application/json';
const LINES = 'application/x-ndjson';
const CSV = 'text/csv';
const ARROW = 'application/vnd.apache.arrow.stream';
const NONE = 'NOT_ACCEPTABLE';

test.each([
  [undefined, JSON_ROWS],
  ['', JSON_ROWS],
  [' , ', JSON_ROWS],
  ['*/*', JSON_ROWS],
  ['application/*', JSON_ROWS],
  ['application/json', JSON_ROWS],
  ['APPLICATION/JSON', JSON_ROWS],
  ['application/json; charset=utf-8', JSON_ROWS],
  [LINES, LINES],
  [CSV, CSV],
  ['text/*', CSV],
  ['text/csv; header=present', CSV],
  [ARROW, ARROW],
  [`${CSV}, ${ARROW}`, CSV],
  [`${CSV};q=0.9, ${ARROW}`, ARROW],
  [`${CSV} ; q=0.9 , ${ARROW} ; q=0.95`, ARROW],
  [`${CSV};Q=0.1, ${LINES};q=0.05`, CSV],
  // The most specific range decides, not the widest.
  ['application/json;q=0.1, */*;q=0.5', LINES],
  ['application/json;q=0, */*', LINES],
  ['application/*;q=0, */*', CSV],
  [`*/*;q=0, ${ARROW}`, ARROW],
  // What browsers and common clients send.
  ['text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8', JSON_ROWS],
  ['application/json, text/plain, */*', JSON_ROWS],
  ['text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2', JSON_ROWS],
  // Nothing of it.
  ['text/html', NONE],
  ['application/json;q=0', NONE],
  ['*/*;q=0', NONE],
  ['image/*', NONE],
  ['application/xml, text/plain', NONE],
  ['json', NONE],
  // A quality that is none is no wish.
  ['application/json;q=2', NONE],
  ['application/json;q=', NONE],
  ['application/json;q=high', NONE],
  [`application/json;q=-1, ${CSV}`, CSV],
])('Accept: %s is %s', (accept, expected) => {
  expect(outcome(() => chooseRepresentation(accept).mediaType)).toBe(expected);
});

test.each([
  [undefined, 'none'],
  ['', 'none'],
  ['identity', 'none'],
  ['gzip', 'gzip'],
  ['GZIP', 'gzip'],
  ['x-gzip', 'gzip'],
  ['zstd', 'zstd'],
  ['gzip, zstd', 'zstd'],
  ['deflate, gzip, br, zstd', 'zstd'],
  ['gzip, deflate', 'gzip'],
  ['zstd;q=0.5, gzip', 'gzip'],
  ['zstd;q=0, gzip;q=0.1', 'gzip'],
  ['gzip;q=0.5, identity', 'none'],
  ['gzip, identity', 'gzip'],
  ['gzip;q=0.5, identity;q=0.4', 'gzip'],
  ['gzip;q=0', 'none'],
  ['br, deflate', 'none'],
  // Anything will do: then nothing is done.
  ['*', 'none'],
  ['gzip;q=0.5, *', 'none'],
  ['gzip, *;q=0', 'gzip'],
  ['identity;q=0, *', 'zstd'],
  ['identity;q=0, zstd;q=0, *;q=0.1', 'gzip'],
  ['identity;q=0, gzip', 'gzip'],
  // Ruled out as it is, and in every way there is.
  ['identity;q=0', NONE],
  ['*;q=0', NONE],
  ['br, identity;q=0', NONE],
  ['gzip;q=0, zstd;q=0, *;q=0', NONE],
  ['gzip;q=nonsense, identity;q=0', NONE],
])('Accept-Encoding: %s is %s', (acceptEncoding, expected) => {
  expect(outcome(() => chooseCoding(acceptEncoding)?.name ?? 'none')).toBe(expected);
});

describe('one media type', () => {
  test.each([
    [undefined, 1],
    ['text/html', 1],
    ['text/*;q=0.5', 0.5],
    ['*/*;q=0.1, text/html;q=0.3', 0.3],
    [CSV, 0],
  ])('Accept: %s wants text/html by %d', (accept, quality) => {
    expect(mediaQuality(accept, 'text/html')).toBe(quality);
  });
});
