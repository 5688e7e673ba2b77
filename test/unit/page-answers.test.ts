/** Answers that break off or are cut, as the operator's page reads and shows them. */
import { createServer, type ServerResponse } from 'node:http';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { ask } from '../../serving/page/static/api.js';
import { Candles } from '../../serving/page/static/candles.js';
import { code } from '../../serving/page/static/dom.js';
import { problem } from '../../serving/page/static/problem.js';
import { readRows } from '../../serving/page/static/rows.js';
import { type PageElement, pageGlobals, servePage } from '../support/page-dom.ts';

/** What the chart was told to draw; drawing it needs a browser. */
const drawn = vi.hoisted(() => ({ candles: [] as { time: number; open?: number }[] }));
vi.mock('../../serving/page/static/charts.js', () => ({
  chartIn: () => ({ chart: { applyOptions() {}, subscribeClick() {}, timeScale: () => ({ fitContent() {} }) } }),
  shadeSeries: () => ({ show() {} }),
  candleSeries: () => ({ show: (points: typeof drawn) => Object.assign(drawn, points) }),
}));

const { byId, globals } = pageGlobals();
let answer: (response: ServerResponse) => void;
const server = createServer((_, response) => answer(response));
/** Tells the page that a part of it is looked at. */
let look: () => void;

beforeAll(async () => {
  await servePage(server, globals);
  vi.stubGlobal(
    'IntersectionObserver',
    class {
      constructor(looked: (entries: object[]) => void) {
        look = () => looked([{ isIntersecting: true }]);
      }
      observe() {}
      disconnect() {}
    },
  );
});
afterAll(() => {
  vi.unstubAllGlobals();
  server.closeAllConnections();
  server.close();
});

const breakOff = (response: ServerResponse) =>
  response.write('{"a":1}\n', () => setImmediate(() => response.socket!.destroy()));

test.each<[string, typeof answer]>([
  ['breaks off', breakOff],
  ['ends in the middle of a row', (response) => response.end('{"a":1}\n{"a":')],
])('an answer that %s was shown to nobody, or as if it were whole', async (_, given) => {
  answer = given;
  const fault = await readRows({ path: '/', body: {} }, new AbortController().signal).catch((error: unknown) => error);
  expect(problem(fault).textContent).toContain('The answer broke off.');
  expect((fault as Error).cause).toBeInstanceOf(Error);
});

test('an answer of one document that broke off was said to be 200', async () => {
  answer = breakOff;
  const fault = await ask('/').catch((error: unknown) => error);
  expect(problem(fault).textContent).toContain('The answer broke off.');
  const giving = new AbortController();
  answer = (response) => response.write('{"a":1', () => giving.abort());
  await expect(ask('/', { signal: giving.signal })).rejects.toMatchObject({ name: 'AbortError' });
});

test.each([
  [10_000, false],
  [10_001, true],
])(
  'an answer of %i rows has more: %s; one of exactly as many as the page shows was said to have more',
  async (count, isCut) => {
    answer = (response) => response.end('{"a":1}\n'.repeat(count));
    const read = await readRows({ path: '/', body: {} }, new AbortController().signal);
    expect([read.rows.length, read.isCut]).toEqual([10_000, isCut]);
  },
);

test('an answer that the page gave up is no fault', async () => {
  const giving = new AbortController();
  answer = (response) => response.write('{"a":1}\n', () => giving.abort());
  await expect(readRows({ path: '/', body: {} }, giving.signal)).rejects.toMatchObject({ name: 'AbortError' });
});

test('the candles of the span before stayed under the new span when its answer broke off', async () => {
  const key = 'exchange_a_spot_trades';
  const proved = [{ start_utc: '2024-01-01T00:00:00Z', through_utc: '2024-01-11T00:00:00Z' }];
  const candle = { datetime: '2024-01-10T00:00:00Z', open: 1, high: 1, low: 1, close: 1, volume: 1 };
  answer = (response) => response.end(`${JSON.stringify(candle)}\n`);
  byId('candles-dataset').value = key;
  new Candles(() => ({ proved })).offer([{ key, klines_path: '/klines', title: key }]);
  look();
  await expect.poll(() => byId('candles-said').textContent).toMatch(/^1 candle of 15 minutes/);
  const known = () => drawn.candles.filter(({ open }) => open !== undefined);
  expect(known()).toHaveLength(1);

  answer = breakOff;
  byId('candles-spans').button('1 day').click();
  await expect.poll(() => byId('candles-fault').textContent).toContain('The answer broke off.');
  expect([known(), drawn.candles.length, byId('candles-said').textContent]).toEqual([[], 1440, '']);
  expect(byId('candles-chart').attributes.get('aria-label')).toBe(`No candles of ${key}`);
});

test('a page without TLS had buttons to copy that did nothing', () => {
  const buttonOf = () => (code('curl', 'curl') as unknown as PageElement).button('Copy curl');
  expect(buttonOf).toThrow('no button');
  vi.stubGlobal('navigator', { clipboard: {} });
  expect(buttonOf().textContent).toBe('Copy');
});
