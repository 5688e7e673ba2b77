/** The panel of a day's proof on the operator's page, whose answers come in another order than they were asked for. */
import { createServer, type ServerResponse } from 'node:http';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { showNoProof, showProof } from '../../serving/page/static/proof.js';
import { pageGlobals, servePage } from '../support/page-dom.ts';

const { byId, globals } = pageGlobals();
const DAY_MS = 86_400_000;
/** Requests that wait for their answer, by the first day of their window. */
const waiting = new Map<string, ServerResponse>();
const server = createServer(({ url }, response) => {
  waiting.set(new URL(url!, 'http://h').searchParams.get('from')!.slice(0, 10), response);
});

beforeAll(async () => {
  await servePage(server, globals);
});
afterAll(() => {
  vi.unstubAllGlobals();
  server.closeAllConnections();
  server.close();
});

/** Chooses a day. @returns settles once the panel has done with its answer */
async function choose(day: string): Promise<{ shown: Promise<void> }> {
  const from = Date.parse(day);
  const shown = showProof({ dataset: 'd' }, { from, to: from + DAY_MS }, { day, state: 'none' }, undefined);
  await expect.poll(() => waiting.has(day)).toBe(true);
  return { shown };
}

const ANSWER = JSON.stringify({ partitions: [], next_cursor: null });
const FAULT = JSON.stringify({ code: 'LATE', detail: 'The answer of another day.' });
const answer = (day: string, status = 200) =>
  waiting
    .get(day)!
    .writeHead(status, { 'Content-Type': 'application/json' })
    .end(status === 200 ? ANSWER : FAULT);
const said = () => byId('proof').textContent;

test.each([200, 503])('a late answer (%i) replaced the proof of the day that was chosen since', async (status) => {
  waiting.clear();
  const first = await choose('2024-01-01');
  const second = await choose('2024-01-02');
  answer('2024-01-02');
  await second.shown;
  answer('2024-01-01', status);
  await first.shown;
  expect(said()).toMatch(/^2024-01-02No partition of this day is known/);
});

test.each([200, 503])('a late answer (%i) appeared though another dataset was chosen since', async (status) => {
  waiting.clear();
  const first = await choose('2024-01-01');
  showNoProof();
  answer('2024-01-01', status);
  await first.shown;
  expect(said()).toMatch(/^Choose a day/);
});
