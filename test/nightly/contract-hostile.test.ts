/**
 * Texts that have broken services, in every place of every route that takes text: refused by the contract or taken for
 * what they are, never run, never shown as a stack, and nothing in storage is changed by them.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { columnsOf, KLINES } from '../support/oracle/fields.ts';
import { HOSTILE_TEXTS } from '../support/oracle/requests.ts';
import { ROW_ROUTES, type RowRoute } from '../support/oracle/routes.ts';
import { createSetups, type Setups, STORED } from '../support/oracle/setups.ts';
import { verifyProblem } from '../support/oracle/verify.ts';
import type { Answer } from '../support/serving.ts';
import { execute } from '../support/stack.ts';

/** One megabyte fits the largest body there may be. */
const MEGABYTE = 'x'.repeat(1_000_000);
const TEXTS = [...HOSTILE_TEXTS, MEGABYTE];
/** The large one once for each kind of route: 200 bodies of a megabyte are most of this file's time. */
const LARGE_FOR = new Set(['query', 'historical'].map((kind) => ROW_ROUTES.find(({ style }) => style.kind === kind)));
const textsFor = (route: RowRoute) => (LARGE_FOR.has(route) ? TEXTS : HOSTILE_TEXTS);
const DATASET = 'exchange_a_spot_trades';

let setups: Setups;
let before: unknown;
beforeAll(async () => {
  setups = await createSetups();
  before = await stored();
});
afterAll(async () => {
  expect(await stored()).toEqual(before);
  await setups[Symbol.asyncDispose]();
});

async function stored(): Promise<unknown> {
  const tables = [DATASET, 'canonical_aligned_1s_aggregates', 'partitions', 'coverage', 'ledger'];
  const counts = tables.map((table) => `(select count(*) from ${table}) as ${table}`);
  return (await execute(setups.env.databaseUrl, `select ${counts.join(', ')}`)).rows;
}

const ask = (path: string, body: string, headers: Record<string, string> = {}) =>
  setups.both[0].serving.send({ path, body, headers });

/** Places of a body for text, each with whether any text can be right there. */
function places({ style }: RowRoute): readonly ((text: string) => object)[] {
  const base = style.kind === 'query' ? { sources: [DATASET] } : {};
  const windows =
    style.kind === 'query'
      ? [
          (text: string) => ({ sources: [text] }),
          (text: string) => ({ ...base, view_id: text, view_version: 1 }),
          (text: string) => ({ ...base, time_range: [text, '2024-03-02T00:00:00Z'] }),
          (text: string) => ({ ...base, time_range: ['2024-03-01T00:00:00Z', text] }),
          (text: string) => ({ ...base, n_rows: text }),
          (text: string) => ({ ...base, n_random: 1, random_seed: text }),
        ]
      : [
          (text: string) => ({ start_date: text }),
          (text: string) => ({ end_date: text }),
          (text: string) => ({ n_latest_rows: text }),
          (text: string) => ({ kline_size: text }),
          (text: string) => ({ include_datetime_col: text }),
        ];
  return [
    ...windows,
    (text) => ({ ...base, mode: text }),
    (text) => ({ ...base, strict: text }),
    (text) => ({ ...base, fields: [text] }),
    (text) => ({ ...base, fields: text }),
    (text) => ({ ...base, filters: text }),
    (text) => ({ ...base, filters: [text] }),
    (text) => ({ ...base, filters: [{ field: text, op: 'eq', value: 1 }] }),
    (text) => ({ ...base, filters: [{ field: 'datetime', op: text, value: 1 }] }),
    (text) => ({ ...base, filters: [{ field: 'datetime', op: 'eq', value: text }] }),
    (text) => ({ ...base, filters: [{ field: 'datetime', op: 'in', value: [text] }] }),
    (text) => ({ ...base, filters: [{ field: 'datetime', op: 'eq', value: { [text]: text } }] }),
  ];
}

const contractCode = ({ style }: RowRoute) =>
  style.kind === 'query' ? 'QUERY_CONTRACT_ERROR' : 'HISTORICAL_CONTRACT_ERROR';

function expectRefused(answer: Answer, route: RowRoute, what: string): void {
  expect([answer.status, answer.json?.code], what).toEqual([409, contractCode(route)]);
  verifyProblem(answer);
  expect(answer.text.length).toBeLessThan(100_000);
}

describe.each(ROW_ROUTES)('$path', (route) => {
  test('refuses them wherever they stand, also for keys', async () => {
    for (const [index, place] of places(route).entries()) {
      for (const text of textsFor(route)) {
        const answer = await ask(route.path, JSON.stringify(place(text)));
        expectRefused(answer, route, `${index}: ${JSON.stringify(text.slice(0, 40))}`);
      }
    }
    for (const text of textsFor(route)) {
      const members = [JSON.stringify(text), '1'].join(':');
      const answer = await ask(
        route.path,
        route.style.kind === 'query' ? `{"sources":["${DATASET}"],${members}}` : `{${members}}`,
      );
      expectRefused(answer, route, JSON.stringify(text.slice(0, 40)));
    }
  });
});

/** Filters over text, where any text may be meant. */
describe.each(
  ROW_ROUTES.flatMap(({ path, style }) => {
    if (style.kind !== 'historical') return [];
    const columns = [...columnsOf(style.dataset, 'native')]
      .filter(([, dtype]) => dtype === 'string')
      .map(([name]) => name);
    return columns.map((column) => ({ path, column }));
  }),
)('$path, filtered by $column', ({ path, column }) => {
  test('takes them for what they are, or says that no row can hold them', async () => {
    for (const text of TEXTS) {
      for (const [op, value] of [
        ['eq', text],
        ['not_in', [text, 'other']],
      ] as const) {
        const what = `${op} ${JSON.stringify(text.slice(0, 40))}`;
        const answer = await ask(path, JSON.stringify({ fields: [column], filters: [{ field: column, op, value }] }));
        const isStorable = text.isWellFormed() && !text.includes('\0');
        if (answer.status !== 200) {
          verifyProblem(answer);
          const expected = isStorable ? [404, 'HISTORICAL_NO_DATA'] : [409, 'HISTORICAL_CONTRACT_ERROR'];
          expect([what, answer.status, answer.json.code]).toEqual([what, ...expected]);
        } else {
          const cells: unknown[] = answer.json.rows.map((row: Record<string, unknown>) => row[column]);
          for (const cell of cells) expect([what, op === 'eq' ? cell === text : cell !== text]).toEqual([what, true]);
        }
      }
    }
  });
});

test('names of klines are not those of trades', async () => {
  expect(KLINES.native.has('price')).toBe(false);
  const path = '/v1/historical/exchange_a/spot/klines';
  expect((await ask(path, JSON.stringify({ filters: [{ field: 'price', op: 'gt', value: 0 }] }))).status).toBe(409);
});

describe('lineage', () => {
  test('looks for them as offsets and partitions, and finds nothing', async () => {
    const known = String(STORED.native[0].get('trade_id'));
    const codes = ['LINEAGE_OFFSET_NOT_FOUND', 'LINEAGE_LOG_UNAVAILABLE', 'QUERY_CONTRACT_ERROR'];
    for (const text of HOSTILE_TEXTS.filter((one) => one.isWellFormed() && one !== '')) {
      for (const url of [
        `/v1/lineage/${DATASET}/${encodeURIComponent(text)}`,
        `/v1/lineage/${DATASET}/${known}?partition=${encodeURIComponent(text)}`,
      ]) {
        const answer = await setups.both[0].serving.send({ method: 'GET', path: url });
        // A slash or a backslash in a segment of the path is no route, whatever else the segment holds.
        const isNoRoute = /%(?:2f|5c)/i.test(url.split('?')[0]) || /\/\.{1,2}$/.test(url);
        const expected = isNoRoute ? ['ROUTE_NOT_FOUND'] : codes;
        expect(expected, `${url}: ${answer.text.slice(0, 200)}`).toContain(answer.json.code);
        verifyProblem(answer);
      }
    }
  });
});

describe('headers', () => {
  test('hold no key, no token and no request id by accident', async () => {
    const body = JSON.stringify({ sources: [DATASET], n_rows: 1 });
    const texts = HOSTILE_TEXTS.map((text) => Buffer.from(text).toString('latin1')).filter((text) =>
      /^[\t\x20-\x7e\x80-\xff]*$/.test(text),
    );
    for (const text of texts) {
      const wrongKey = await setups.both[0].serving.send({ body, key: text });
      expect([wrongKey.status, wrongKey.json.code]).toEqual([409, 'AUTH_INVALID_API_KEY']);
      const answer = await ask('/v1/raw/query', body, {
        'X-Request-Id': text,
        'X-Backend-Token': text,
        'Content-Type': text,
      });
      expect(answer.status).toBe(200);
      expect(answer.headers['x-request-id']).toMatch(/^[A-Za-z0-9._-]{1,128}$/);
      const byok = await setups.both[1].serving.send({
        body: JSON.stringify({ sources: ['exchange_b_spot_trades'] }),
        headers: { 'X-Backend-Token': text },
      });
      const codes = text.trim() === '' ? ['QUERY_RIGHTS_BYOK_REQUIRED'] : ['QUERY_RIGHTS_BYOK_REFUSED'];
      expect(codes, JSON.stringify(text)).toContain(byok.json.code);
    }
  });
});
