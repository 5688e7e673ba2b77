/** The page's looks at the service, one after the other, also where answers take longer than the pause between two looks. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { pageGlobals } from '../support/page-dom.ts';

const seen = vi.hoisted(() => ({ built: 0, onKey: () => {}, shown: [] as string[] }));
const part = () =>
  class {
    offer() {}
    show() {}
  };
vi.mock('../../serving/page/static/calendar.js', () => ({ Calendar: part() }));
vi.mock('../../serving/page/static/candles.js', () => ({ Candles: part() }));
vi.mock('../../serving/page/static/hour.js', () => ({ Hour: part() }));
vi.mock('../../serving/page/static/frame.js', () => ({ FrameBuilder: part() }));
vi.mock('../../serving/page/static/explorer.js', () => ({
  Explorer: class {
    constructor() {
      seen.built++;
    }
  },
}));
vi.mock('../../serving/page/static/proof.js', () => ({ showNoProof() {}, showProof() {} }));
vi.mock('../../serving/page/static/changes.js', () => ({ showChanges() {}, sinceOf: () => 0 }));
vi.mock('../../serving/page/static/work.js', () => ({ showExports() {}, showWork() {} }));
vi.mock('../../serving/page/static/now.js', () => ({ showNow: ({ name }: { name: string }) => seen.shown.push(name) }));
vi.mock('../../serving/page/static/key-gate.js', () => ({
  keyGate: (onKey: () => void) => {
    seen.onKey = onKey;
    return { open() {} };
  },
}));

const { byId, globals } = pageGlobals();
/** What the service has not answered yet. */
const asked: { readonly path: string; readonly answer: (json: unknown) => void }[] = [];

/** Answers everything that is asked for, and what is asked for then. */
async function answerAll(name: string): Promise<void> {
  const datasets = [{ key: 'd', title: 'D', dataset: 'd', partitions: {}, rows: 1 }];
  const json = { name, at_utc: '2024-01-01T00:00:00.000Z', datasets, exports: [], changes: [], partitions: [] };
  for (let round = 0; round < 10; round++) {
    for (const { answer } of asked.splice(0)) answer(json);
    await vi.advanceTimersByTimeAsync(0);
  }
}
const paths = () => asked.map(({ path }) => path);

beforeAll(async () => {
  vi.useFakeTimers();
  for (const [name, value] of Object.entries(globals)) vi.stubGlobal(name, value);
  const document = { ...globals.document, visibilityState: 'visible', addEventListener() {} };
  vi.stubGlobal('document', document);
  vi.stubGlobal(
    'fetch',
    (path: string, { signal }: RequestInit) =>
      new Promise((resolve, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason));
        asked.push({ path, answer: (json) => resolve(Response.json(json)) });
      }),
  );
  await import('../../serving/page/static/main.js');
});
afterAll(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

test('a first answer that took longer than the pause built the page once for each look', async () => {
  await vi.advanceTimersByTimeAsync(20_000);
  expect(paths()).toEqual(['/v1/datasets']);
});

test('a service that never answered was waited for without end, and was said to be as of then', async () => {
  await vi.advanceTimersByTimeAsync(10_000);
  expect(byId('updated').textContent).toBe('The service does not answer. Trying again.');
  await vi.advanceTimersByTimeAsync(5000);
  expect(paths()).toEqual(['/v1/datasets', '/v1/datasets']);
});

test('another key ends the look with the one before it', async () => {
  const [, earlier] = asked.splice(0);
  seen.onKey();
  expect(paths()).toEqual(['/v1/datasets']);
  earlier.answer({ datasets: [] });
  await answerAll('first');
  expect([seen.built, seen.shown]).toEqual([1, ['first']]);
  expect(byId('updated').textContent).toBe('as of 00:00:00 UTC');
  await vi.advanceTimersByTimeAsync(5000);
  expect(paths()).toContain('/v1/ops/status');
});
