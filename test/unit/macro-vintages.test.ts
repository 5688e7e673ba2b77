/** The macro provider's answers to vintages: recorded ones, a server of its protocol with all its refusals, any windows. */
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { SampleNeeds } from '../../pipelines/sources/feed-types.ts';
import { isSameDescription } from '../../pipelines/sources/macro/descriptions.ts';
import {
  FIRST_CHUNK,
  fetchObservations,
  fetchSeries,
  fetchVintageDates,
  folderApi,
  providerApi,
  readObservations,
  readSeries,
  readVintages,
} from '../../pipelines/sources/macro/provider-api.ts';
import { makeSample, SAMPLE_PARTITIONS } from '../../pipelines/sources/macro/sample.ts';
import { type MacroSeries, SERIES } from '../../pipelines/sources/macro/series.ts';
import { eventsOf, sameValue, vintagesIn, vintagesOf } from '../../pipelines/sources/macro/vintages.ts';
import { explain, type TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';
import { faultOf } from '../support/faults.ts';
import { givenData } from '../support/given.ts';
import {
  type Asked,
  type Described,
  observationsIn,
  type ProviderServer,
  type Publication,
  type Said,
  startMacroProvider,
} from '../support/macro-provider.ts';
import { runs } from '../support/seed.ts';

const KEY = 'k3y/of+the provider';
const UNRATE = SERIES.find(({ seriesId }) => seriesId === 'UNRATE')!;
const METADATA = {
  id: 'UNRATE',
  title: 'Unemployment Rate',
  units: 'Percent',
  frequency: 'Monthly',
  seasonal_adjustment: 'Seasonally Adjusted',
  observation_start: '1948-01-01',
  observation_end: '2026-02-01',
  last_updated: '2026-03-06 08:12:35-06',
};

const dayOf = (n: number) => new Date(Date.UTC(2020, 0, 1) + n * 86_400_000).toISOString().slice(0, 10);
/** One vintage a day, each with a new observation and now and then a revision of the one before. */
const PUBLICATIONS: Publication[] = Array.from({ length: 600 }, (_, n) => ({
  vintage: dayOf(n + 1),
  said: { [dayOf(n)]: `${n % 90}.5`, ...(n % 7 === 3 && { [dayOf(n - 1)]: `${n % 90}.75` }) },
}));

interface Row {
  readonly vintage: string;
  readonly date: string;
  readonly value: string;
}

const rowsOf = (vintages: Iterable<readonly [string, readonly { date: string; value: string }[]]>): Row[] =>
  [...vintages].flatMap(([vintage, rows]) => rows.map((row) => ({ vintage, ...row })));

/** What a reader of every vintage would find changed, from the publications themselves. */
function changesIn(publications: readonly Publication[]): Row[] {
  const known = new Map<string, string>();
  return publications.flatMap(({ vintage, said }) =>
    Object.entries(said)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .filter(([date, value]) => {
        const before = known.get(date);
        known.set(date, value);
        return before === undefined || !(before === value || Number(before) === Number(value));
      })
      .map(([date, value]) => ({ vintage, date, value })),
  );
}

describe('over http', () => {
  let server: ProviderServer;
  let kept: string[];
  let logged: string[];
  beforeEach(async () => {
    server = await startMacroProvider({ series: METADATA, publications: PUBLICATIONS, pageRows: 250 });
    [kept, logged] = [[], []];
  });
  afterEach(() => server[Symbol.asyncDispose]());

  const log = { warn: (...said: unknown[]) => logged.push(JSON.stringify(said)) } as unknown as Logger;
  /** What is not answered in time is asked for in another way: where that is not what is tested, time is long. */
  const api = ({ timeoutMs = 60_000, maxAttempts = 2 } = {}) =>
    providerApi({
      baseUrl: server.url,
      key: KEY,
      timeoutMs,
      maxAttempts,
      backoff: { firstMs: 5, maxMs: 10 },
      log,
      archive: async (bytes, question) => kept.push(bytes.toString(), JSON.stringify(question)),
    });
  const isObservations = (path: string) => path === '/series/observations';
  const windowDays = (query: URLSearchParams) =>
    (Date.parse(query.get('realtime_end')!) - Date.parse(query.get('realtime_start')!)) / 86_400_000 + 1;

  async function rowsFetched(patience?: Parameters<typeof api>[0]): Promise<Row[]> {
    const { dates } = await fetchVintageDates(api(), UNRATE);
    const rows: Row[] = [];
    for await (const said of fetchObservations(api(patience), UNRATE, { before: undefined, vintages: dates })) {
      if ('fault' in said) throw said.fault;
      rows.push(...rowsOf(vintagesIn(said.span, said.observations)));
    }
    return rows;
  }

  /** @throws what the first chunk was given up for. */
  async function firstOf(vintages: readonly string[], provider = api()): Promise<void> {
    for await (const said of fetchObservations(provider, UNRATE, { before: undefined, vintages })) {
      if ('fault' in said) throw said.fault;
    }
  }

  async function refusal(work: Promise<unknown>, code: Parameters<typeof faultOf>[1]): Promise<TidemarkError> {
    const fault = await faultOf(work, code);
    expectNoKey(fault);
    return fault;
  }

  /** Not in what is shown, logged or kept; nor in a form that an address or JSON would give it. */
  function expectNoKey(fault?: TidemarkError): void {
    const shown = fault && [explain(fault), JSON.stringify(fault.details), fault.stack, String(fault.cause)];
    for (const text of [...kept, ...logged, ...(shown ?? [])]) {
      for (const form of [KEY, encodeURIComponent(KEY), new URLSearchParams({ k: KEY }).toString().slice(2)])
        expect(text).not.toContain(form);
    }
  }

  test('a series, page by page and chunk by chunk, is what was published; every answer is kept, none with the key', async () => {
    expect(await fetchSeries(api(), UNRATE)).toMatchObject({ lastUpdatedMs: Date.parse('2026-03-06T14:12:35Z') });
    expect(await rowsFetched()).toEqual(changesIn(PUBLICATIONS));
    expect(server.asked.every(({ query }) => query.get('api_key') === KEY)).toBe(true);
    const asked = server.asked.filter(({ path }) => isObservations(path));
    expect(asked.map(({ query }) => windowDays(query))).toContain(FIRST_CHUNK);
    expect(kept).toHaveLength(2 * server.asked.length);
    expectNoKey();
  });

  const TOO_MUCH = {
    'an address that is too long, 414': { status: 414 },
    'an edge that answers 400 with a page': { status: 400, body: '<html><h1>Bad Request</h1></html>' },
    'no answer in time': { delayMs: 10_000 },
  };
  test.each(Object.entries(TOO_MUCH))('%s: chunks are halved until they pass', async (_, fault) => {
    server.fault = ({ path, query }) => (isObservations(path) && windowDays(query) > 140 ? fault : undefined);
    // What is slow by itself is halved too, and comes to the same.
    const patience = 'delayMs' in fault ? { timeoutMs: 1500, maxAttempts: 1 } : undefined;
    expect(await rowsFetched(patience)).toEqual(changesIn(PUBLICATIONS));
    expectNoKey();
  });

  test('one vintage that is refused for its length is a fault, not an endless halving', async () => {
    server.fault = ({ path }) => (isObservations(path) ? { status: 414 } : undefined);
    const fault = await refusal(rowsFetched(), 'SOURCE_UNREACHABLE');
    expect(fault.details.status).toBe(414);
    expect(server.asked.filter(({ path }) => isObservations(path)).length).toBeLessThan(12);
  });

  test.each([429, 500])(
    '%i passes by itself: asked again; if it does not, it is a fault and no chunk is halved',
    async (status) => {
      let left = 1;
      server.fault = () => (left-- > 0 ? { status } : undefined);
      expect(await fetchSeries(api(), UNRATE)).toMatchObject({ title: METADATA.title });
      expect(logged).toHaveLength(1);
      server.fault = ({ path }) => (isObservations(path) ? { status } : undefined);
      await refusal(rowsFetched(), 'SOURCE_UNREACHABLE');
      expect(server.asked.filter(({ path }) => isObservations(path))).toHaveLength(2);
    },
  );

  const refusing = (error_message: string) => ({
    status: 400,
    body: JSON.stringify({ error_code: 400, error_message }),
  });
  const NOT_REGISTERED = refusing('Bad Request.  The value for variable api_key is not registered.');

  test('a key that works a second later is asked with again, and what is read is whole', async () => {
    let left = 1;
    server.fault = () => (left-- > 0 ? NOT_REGISTERED : undefined);
    expect(await fetchSeries(api(), UNRATE)).toMatchObject({ title: METADATA.title });
    left = 1;
    server.fault = ({ path }) => (isObservations(path) && left-- > 0 ? NOT_REGISTERED : undefined);
    expect(await rowsFetched()).toEqual(changesIn(PUBLICATIONS));
    expect(logged).toHaveLength(2);
    expectNoKey();
  });

  test('a key that stays refused is said as the provider says it, waited for once, and nothing is kept', async () => {
    server.fault = () => NOT_REGISTERED;
    const provider = api();
    const fault = await refusal(fetchSeries(provider, UNRATE), 'SOURCE_REFUSED');
    expect(fault.message).toContain('is not registered');
    expect(fault.message).toMatch(/SVC_MACRO_API_KEY.*, after 2 attempts$/);
    expect(server.asked).toHaveLength(2);
    await refusal(fetchSeries(provider, UNRATE), 'SOURCE_REFUSED');
    // Not asked for again and again, and not taken for a request that is too long.
    await refusal(firstOf(['2020-01-02', '2020-01-03'], provider), 'SOURCE_REFUSED');
    expect(server.asked).toHaveLength(4);
    expect(kept).toEqual([]);
  });

  test('a key that cannot be one is refused at once', async () => {
    server.fault = () =>
      refusing('Bad Request.  The value for variable api_key is not a 32 character alpha-numeric lower-case string.');
    expect((await refusal(fetchSeries(api(), UNRATE), 'SOURCE_REFUSED')).message).toMatch(/the whole key/);
    expect(server.asked).toHaveLength(1);
  });

  test('another refusal of the request is final; one for its rate passes', async () => {
    server.fault = () => refusing('Bad Request.  The series does not exist.');
    await refusal(firstOf(['2020-01-02', '2020-01-03']), 'SOURCE_REFUSED');
    expect(server.asked).toHaveLength(1);
    server.fault = ({ path }) =>
      isObservations(path) ? refusing('Too Many Requests.  Exceeded Rate Limit') : undefined;
    const fault = await refusal(firstOf(['2020-01-02', '2020-01-03']), 'SOURCE_UNREACHABLE');
    expect(fault.message).toContain('Exceeded Rate Limit');
    expect(server.asked).toHaveLength(3);
  });

  describe.each([200, 400])('too many vintages, said with %i', (status) => {
    const inWindow = ({ query }: Asked) =>
      PUBLICATIONS.filter(
        ({ vintage }) => vintage >= query.get('realtime_start')! && vintage <= query.get('realtime_end')!,
      ).length;
    const limited = (most: number) => (asked: Asked) => {
      if (!isObservations(asked.path) || inWindow(asked) <= most) return undefined;
      const period = `${asked.query.get('realtime_start')} to ${asked.query.get('realtime_end')}`;
      const reason = `Bad Request.  There are ${inWindow(asked)} vintage dates in the specified real-time period: ${period}.  This exceeds the maximum number of vintage dates allowed for this file type (${most}).`;
      return { ...refusing(reason), status };
    };

    test.each([200, 20])(
      'at a limit of %i chunks are halved until they pass, and later ones are no longer',
      async (most) => {
        server.fault = limited(most);
        expect(await rowsFetched()).toEqual(changesIn(PUBLICATIONS));
        const asked = server.asked.filter(({ path }) => isObservations(path));
        const refused = asked.filter((one) => inWindow(one) > most);
        // The first chunk finds the limit, and only what was cut before it was known is refused after that.
        expect(refused.length).toBeLessThanOrEqual(1 + 2 * Math.log2(FIRST_CHUNK / (most - 1)));
        expectNoKey();
      },
    );

    test.each([
      'Bad Request.  The number of vintage dates must be 20 or fewer.',
      'Bad Request.  Variable vintage_dates must have between 1 and 20 values.',
      'Bad Request.  Up to 20 vintages may be requested.',
      'Bad Request.  The number of vintage dates must be less than 21.',
    ])('however it is said: %s', async (reason) => {
      server.fault = (asked) =>
        isObservations(asked.path) && inWindow(asked) > 20 ? { ...refusing(reason), status } : undefined;
      expect(await rowsFetched()).toEqual(changesIn(PUBLICATIONS));
    });

    test('where even one vintage is too many, it is refused as the provider says', async () => {
      server.fault = limited(0);
      const fault = await refusal(firstOf(['2020-01-02', '2020-01-03']), 'SOURCE_REFUSED');
      expect(fault.message).toMatch(/There are 1 vintage dates .*allowed for this file type \(0\)/);
    });
  });

  test.each([200, 400])('an answer that repeats the key (%i) is neither kept nor shown', async (status) => {
    for (const said of [KEY, encodeURIComponent(KEY), new URLSearchParams({ k: KEY }).toString().slice(2)]) {
      server.fault = () => ({
        status,
        body: JSON.stringify({ error_code: 400, error_message: `api_key=${said} is wrong` }),
      });
      await refusal(fetchSeries(api(), UNRATE), 'SOURCE_LAYOUT_UNKNOWN');
    }
    expect(kept).toEqual([]);
  });

  const ODD: Record<string, { body: object | string; says: RegExp }> = {
    'an error told with 200': {
      body: { error_code: 500, error_message: 'Internal' },
      says: /the provider reports "Internal"/,
    },
    'an error code alone': { body: { error_code: 429 }, says: /the provider reports "error 429"/ },
    'a page': { body: '<html>maintenance</html>', says: /not complete JSON/ },
    'half an answer': { body: '{"seriess":[{"id":"UNR', says: /not complete JSON/ },
    'no unit': { body: { seriess: [{ ...METADATA, units: '' }] }, says: /units is empty/ },
    'a unit that no row can hold': {
      body: { seriess: [{ ...METADATA, units: 'Per\u0000cent' }] },
      says: /units holds control characters/,
    },
    'two descriptions of one day': {
      body: {
        seriess: [
          { ...METADATA, realtime_start: '1960-03-15', realtime_end: '1990-01-01' },
          { ...METADATA, realtime_start: '1990-01-01', realtime_end: '9999-12-31', units: 'Index' },
        ],
      },
      says: /describes it twice as of 1990-01-01: .*"Percent".*"Index"/,
    },
    'a description that ends before it begins': {
      body: { seriess: [{ ...METADATA, realtime_start: '1990-01-02', realtime_end: '1990-01-01' }] },
      says: /from 1990-01-02 to 1990-01-01/,
    },
    'another series': { body: { seriess: [{ ...METADATA, id: 'U6RATE' }] }, says: /id is "U6RATE"/ },
    'no series': { body: { seriess: [] }, says: /exactly one series/ },
    'an instant without an offset': {
      body: { seriess: [{ ...METADATA, last_updated: '2026-03-06 08:12:35' }] },
      says: /last_updated is .* not an instant/,
    },
    // Its text in the catalog was one that PostgreSQL refuses.
    'an instant in the year 10000': {
      body: { seriess: [{ ...METADATA, last_updated: '9999-12-31 23:59:59-12' }] },
      says: /last_updated is .* not an instant/,
    },
    'an instant in the year 0': {
      body: { seriess: [{ ...METADATA, last_updated: '0000-03-06 08:12:35+00' }] },
      says: /last_updated is .* not an instant/,
    },
  };
  test.each(Object.entries(ODD))('a series answered with %s is refused', async (_, { body, says }) => {
    server.fault = () => ({ status: 200, body: typeof body === 'string' ? body : JSON.stringify(body) });
    const fault = await refusal(fetchSeries(api(), UNRATE), 'SOURCE_LAYOUT_UNKNOWN');
    expect(fault.message).toMatch(says);
    expect(kept).toHaveLength(2);
  });

  test('duplicate vintage dates, vintage dates without an end and empty observations are refused', async () => {
    const body = (value: object) => () => ({ status: 200, body: JSON.stringify(value) });
    server.fault = body({ count: 2, offset: 0, vintage_dates: ['2020-01-02', '2020-01-02'] });
    expect((await refusal(fetchVintageDates(api(), UNRATE), 'SOURCE_LAYOUT_UNKNOWN')).message).toMatch(/repeated/);
    server.fault = body({ count: 9, offset: 0, vintage_dates: ['2020-01-02'] });
    expect((await refusal(fetchVintageDates(api(), UNRATE), 'SOURCE_LAYOUT_UNKNOWN')).message).toMatch(
      /repeated from page/,
    );
    server.fault = body({ count: 0, offset: 0, output_type: 1, observations: [] });
    const none = firstOf(['2020-01-02']);
    expect((await refusal(none, 'SOURCE_LAYOUT_UNKNOWN')).message).toMatch(/no observations/);
  });
});

test('the registry says of every series how long it is fresh, and of no other', () => {
  const { quality } = macroSeriesMetrics;
  expect(Object.keys(quality.sources).sort()).toEqual(SERIES.map(({ sourceId }) => sourceId).sort());
  for (const { sourceId, frequency } of SERIES) {
    expect(quality.sources[sourceId as keyof typeof quality.sources]).toBe(frequency === 'Daily' ? 5 : 45);
  }
});

test('two values of one date said on one day are a conflict; the same number in another text is not', () => {
  const said = (value: string) => ({
    realtimeStart: '2020-01-02',
    realtimeEnd: '9999-12-31',
    date: '2020-01-01',
    value,
  });
  expect(() => vintagesOf([said('1.5'), said('1.6')], new Map())).toThrow(/2020-01-01 has two values/);
  expect(rowsOf(vintagesOf([said('1.5'), said('1.50')], new Map()))).toHaveLength(1);
});

/** Publications of few dates and few numbers, so that values come back, go missing and change their text. */
const publications = fc
  .array(
    fc.dictionary(fc.integer({ min: 0, max: 4 }).map(dayOf), fc.constantFrom('.', '1', '1.0', '2', '2.50', '2.5')),
    {
      minLength: 1,
      maxLength: 14,
    },
  )
  .map((all) => all.map((said, n): Publication => ({ vintage: dayOf(10 + 3 * n), said: { ...said } })));

test('vintages of any split into windows, each by itself, are those of one window, and what was published', () => {
  const parsed = (window: ReturnType<typeof observationsIn>) =>
    window.map(({ realtime_start, realtime_end, date, value }) => ({
      realtimeStart: realtime_start,
      realtimeEnd: realtime_end,
      date,
      value,
    }));
  fc.assert(
    fc.property(publications, fc.array(fc.boolean(), { minLength: 14, maxLength: 14 }), (all, cuts) => {
      const [first, last] = [all[0].vintage, all[all.length - 1].vintage];
      const split: Row[] = [];
      for (let at = 0; at < all.length; ) {
        let end = at;
        while (end + 1 < all.length && !cuts[end]) end++;
        const span = { before: all[at - 1]?.vintage, vintages: all.slice(at, end + 1).map(({ vintage }) => vintage) };
        const said = parsed(observationsIn(all, span.before ?? span.vintages[0], all[end].vintage));
        split.push(...rowsOf(vintagesIn(span, said)));
        at = end + 1;
      }
      expect(split).toEqual(rowsOf(vintagesOf(parsed(observationsIn(all, first, last)), new Map())));
      expect(split).toEqual(changesIn(all));
    }),
    { numRuns: runs(500) },
  );
});

test('a value said from a day on that is no vintage is refused: its partition was not asked for', () => {
  const said = { realtimeStart: '2020-01-05', realtimeEnd: '9999-12-31', date: '2020-01-01', value: '1' };
  expect(() => vintagesIn({ before: '2020-01-02', vintages: ['2020-01-04', '2020-01-06'] }, [said])).toThrow(
    /2020-01-01 is valid from 2020-01-05, which is not a requested vintage/,
  );
});

describe('descriptions', () => {
  const CPI = SERIES.find(({ seriesId }) => seriesId === 'CPIAUCSL')!;
  const described = (realtime_start: string, more: object = {}) => ({
    ...METADATA,
    id: 'CPIAUCSL',
    title: 'Consumer Price Index',
    units: 'Index 1967=100',
    realtime_start,
    ...more,
  });
  const REBASED = { units: 'Index 1982-1984=100', title: 'Consumer Price Index: All Items' };
  /** Values of two months, the second of which is only known when the index has another base; one stays the same number. */
  const said: Publication[] = [
    { vintage: '1988-01-20', said: { '1987-11-01': '345.8', '1987-12-01': '100' } },
    { vintage: '1988-02-26', said: { '1987-11-01': '115.4', '1988-01-01': '115.7' } },
    { vintage: '1988-03-23', said: { '1988-02-01': '116.0' } },
    { vintage: '1988-04-20', said: {} },
  ];

  /** What becomes of each vintage, in events; the list of vintages is cut into spans of so many. */
  async function eventsIn(series: readonly Described[], publications: readonly Publication[], most: number) {
    await using server = await startMacroProvider({ series, publications });
    const api = providerApi({
      baseUrl: server.url,
      key: KEY,
      timeoutMs: 60_000,
      maxAttempts: 1,
      archive: async () => {},
    });
    const { descriptions } = await fetchSeries(api, CPI);
    expect(server.asked).toHaveLength(1);
    const dates = publications.map(({ vintage }) => vintage);
    const isRedescribed = (a: string, b: string) => !isSameDescription(descriptions.asOf(a), descriptions.asOf(b));
    const events: unknown[] = [];
    for (let at = 0; at < dates.length; at += most) {
      const whole = { before: dates[at - 1], vintages: dates.slice(at, at + most) };
      for await (const one of fetchObservations(api, CPI, whole)) {
        if ('fault' in one) throw one.fault;
        for (const [vintage, rows] of vintagesIn(one.span, one.observations, isRedescribed)) {
          for (const { payload } of eventsOf({ ...CPI, ...descriptions.asOf(vintage)! }, vintage, rows)) {
            const { metric_unit, metric_value_text, dimensions, provenance } = JSON.parse(payload.toString());
            expect(provenance.units).toBe(metric_unit);
            events.push([vintage, dimensions.observation_date, metric_value_text, metric_unit, provenance.title]);
          }
        }
      }
    }
    return events.sort();
  }

  test.each([1, 2, 4])(
    'of each vintage are its own, and another base makes a row of each value (%i at a time)',
    async (most) => {
      const OLD = ['Index 1967=100', 'Consumer Price Index'];
      const NEW = [REBASED.units, REBASED.title];
      expect(await eventsIn([described('1972-07-21'), described('1988-02-26', REBASED)], said, most)).toEqual([
        ['1988-01-20', '1987-11-01', '345.8', ...OLD],
        ['1988-01-20', '1987-12-01', '100', ...OLD],
        ['1988-02-26', '1987-11-01', '115.4', ...NEW],
        ['1988-02-26', '1987-12-01', '100', ...NEW],
        ['1988-02-26', '1988-01-01', '115.7', ...NEW],
        ['1988-03-23', '1988-02-01', '116.0', ...NEW],
      ]);
    },
  );

  test.each([
    ['title', { title: 'Another title' }],
    ['frequency', { frequency: 'Quarterly' }],
    ['adjustment', { seasonal_adjustment: 'Not Seasonally Adjusted' }],
  ])('another %s makes rows too; one that begins between two vintages is that of the second', async (_, more) => {
    const events = await eventsIn([described('1972-07-21'), described('1988-04-01', more)], said, 4);
    const rows = events.map((event) => (event as string[]).slice(0, 2).join(' '));
    expect(rows.filter((row) => row.startsWith('1988-03-23'))).toHaveLength(1);
    expect(rows.filter((row) => row.startsWith('1988-04-20'))).toEqual(
      ['1987-11-01', '1987-12-01', '1988-01-01', '1988-02-01'].map((date) => `1988-04-20 ${date}`),
    );
  });

  test('a description that differs in nothing that rows have makes none', async () => {
    const same = [described('1972-07-21'), described('1988-04-01', { notes: 'more', observation_end: '1988-04-01' })];
    expect(await eventsIn(same, said, 4)).toEqual(await eventsIn(same.slice(0, 1), said, 4));
  });

  test('a value that is no longer said when the base changes has no row in the new one', () => {
    const valid = (date: string, realtimeStart: string, realtimeEnd: string) => ({
      date,
      realtimeStart,
      realtimeEnd,
      value: '1',
    });
    const span = { before: undefined, vintages: ['2020-01-02', '2020-01-03', '2020-01-04'] };
    const all = [valid('2019-11-01', '2020-01-02', '2020-01-02'), valid('2019-12-01', '2020-01-02', '9999-12-31')];
    expect(rowsOf(vintagesIn(span, all, (_, vintage) => vintage === '2020-01-04'))).toEqual([
      { vintage: '2020-01-02', date: '2019-11-01', value: '1' },
      { vintage: '2020-01-02', date: '2019-12-01', value: '1' },
      { vintage: '2020-01-04', date: '2019-12-01', value: '1' },
    ]);
  });
});

const RECORDED = new URL('../../../shared/data/macro/api_json/', import.meta.url);
givenData('macro/api_json').describe('recorded answers', () => {
  const recorded = (name: string) => readFileSync(new URL(name, RECORDED), 'utf8');
  const as = (seriesId: string, more: Partial<MacroSeries> = {}): MacroSeries => ({ ...UNRATE, seriesId, ...more });
  const HISTORY =
    'fred__series__observations__file_type=json__realtime_end=9999-12-31__realtime_start=1776-07-04__series_id=GDP.json';

  test('a series, with its instant of last update; one that the registry does not mean is refused', () => {
    const body = recorded('fred__series__file_type=json__series_id=CPILFESL.json');
    const facts = readSeries(body, as('CPILFESL'));
    expect(facts).toMatchObject({ observationEnd: '2024-09-01', lastUpdatedMs: Date.parse('2024-10-10T12:42:03Z') });
    expect(facts.descriptions.asOf('2024-10-10')).toMatchObject({
      title: 'Consumer Price Index for All Urban Consumers: All Items Less Food and Energy in U.S. City Average',
      unit: 'Index 1982-1984=100',
      frequency: 'Monthly',
      seasonalAdjustment: 'Seasonally Adjusted',
    });
    // It describes its own day: nothing is said of the years before.
    expect(facts.descriptions.asOf('1987-12-31')).toBeUndefined();
    expect(() => readSeries(body, UNRATE)).toThrow(/id is "CPILFESL"/);
  });

  test('all vintages of a series: each value is what was said that day, and a row only where the number changed', () => {
    const dates = readVintages(
      recorded('fred__series__vintagedates__file_type=json__series_id=GDP.json'),
      as('GDP'),
    ).dates;
    expect(dates).toHaveLength(393);
    const { observations, count } = readObservations(recorded(HISTORY), as('GDP'));
    expect([observations.length, count]).toEqual([3199, 3199]);
    const vintages = vintagesOf(observations, new Map());
    const known = new Map<string, string>();
    const days = [...new Set([...dates, ...vintages.keys()])].sort();
    for (const day of days) {
      for (const { date, value } of vintages.get(day) ?? []) {
        expect(known.has(date) && sameValue(known.get(date)!, value)).toBe(false);
        known.set(date, value);
      }
      if (day < '2015') continue;
      const said = observations.filter(({ realtimeStart, realtimeEnd }) => realtimeStart <= day && day <= realtimeEnd);
      for (const { date, value } of said)
        expect([day, date, Number(known.get(date))]).toEqual([day, date, Number(value)]);
    }
  });

  test('asked for over http as the feed asks, chunk by chunk, they are the vintages of the whole answer', async () => {
    const GDP = as('GDP');
    const whole = JSON.parse(recorded(HISTORY));
    await using server = await startMacroProvider({ series: METADATA, publications: [] });
    // The recorded bodies; of observations those said in the window asked for, cut to it, as the provider cuts them.
    server.fault = ({ path, query }) => {
      if (path === '/series') return { body: recorded('fred__series__file_type=json__series_id=GDP.json') };
      if (path === '/series/vintagedates') {
        return { body: recorded('fred__series__vintagedates__file_type=json__series_id=GDP.json') };
      }
      const [from, to] = [query.get('realtime_start')!, query.get('realtime_end')!];
      const observations = whole.observations
        .filter(({ realtime_start, realtime_end }: Said) => realtime_start <= to && realtime_end >= from)
        .map((one: Said) => ({
          ...one,
          realtime_start: [one.realtime_start, from].sort()[1],
          realtime_end: [one.realtime_end, to].sort()[0],
        }));
      return { body: JSON.stringify({ ...whole, count: observations.length, observations }) };
    };
    const api = providerApi({
      baseUrl: server.url,
      key: KEY,
      timeoutMs: 60_000,
      maxAttempts: 1,
      archive: async () => {},
    });
    expect(await fetchSeries(api, GDP)).toMatchObject({ lastUpdatedMs: Date.parse('2024-10-30T12:54:01Z') });
    const { dates } = await fetchVintageDates(api, GDP);
    const rows: Row[] = [];
    for await (const said of fetchObservations(api, GDP, { before: undefined, vintages: dates })) {
      if ('fault' in said) throw said.fault;
      rows.push(...rowsOf(vintagesIn(said.span, said.observations)));
    }
    expect(server.asked).toHaveLength(4);
    expect(rows).toEqual(rowsOf(vintagesOf(readObservations(recorded(HISTORY), GDP).observations, new Map())));
    expect([rows[0].vintage, rows[rows.length - 1].vintage]).toEqual([dates[0], dates[dates.length - 1]]);
  });

  test('another shape of the same facts is refused, not read as if it were the one asked for', () => {
    const name =
      'fred__series__observations__file_type=json__output_type=4__realtime_start=1776-07-04__series_id=GDP.json';
    expect(() => readObservations(recorded(name), as('GDP'))).toThrow(/output_type must be 1/);
  });

  test('the first page of a longer answer says how much is to come; the text of a number is not the number', () => {
    const page = readObservations(recorded('DGS10_2026-09-19_first_obs.json'), as('DGS10'));
    expect([page.observations.length, page.count]).toEqual([129, 469]);
    const padded = JSON.parse(recorded('caliber_DGS10.json')).observations as { date: string; value: string }[];
    expect(padded.length).toBeGreaterThan(0);
    for (const { value } of padded) {
      const short = String(Number(value));
      expect(short).not.toBe(value);
      expect(sameValue(short, value)).toBe(true);
      expect(sameValue(`${short}1`, value)).toBe(false);
    }
  });
});

test('the sample is what it says: as many vintages as declared, a revised month, days without a value, fresh', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'macro-sample-'));
  const todays = ['2026-03-01', '2026-03-08', '2024-02-29', '2026-01-01'];
  for (const today of todays) {
    const todayMs = Date.parse(today);
    const { location } = await makeSample({ directory, todayMs } as SampleNeeds);
    let count = 0;
    for (const series of SERIES) {
      const api = folderApi(location);
      const { lastUpdatedMs } = await fetchSeries(api, series);
      expect((todayMs - lastUpdatedMs) / 86_400_000).toBeLessThan(series.frequency === 'Daily' ? 4 : 32);
      const { dates } = await fetchVintageDates(api, series);
      expect(dates.every((date) => date < today)).toBe(true);
      const [said, ...more] = await Array.fromAsync(
        fetchObservations(api, series, { before: undefined, vintages: dates }),
      );
      if ('fault' in said) throw said.fault;
      expect(more).toEqual([]);
      const rows = rowsOf(vintagesIn(said.span, said.observations));
      const revised = rows.length - new Set(rows.map(({ date }) => date)).size;
      expect(revised > 0, series.seriesId).toBe(series.seriesId === 'CPIAUCSL');
      if (series.frequency === 'Daily' && today === todays[3])
        expect(rows.some(({ value }) => value === '.')).toBe(true);
      count += dates.length;
    }
    expect(count).toBe(SAMPLE_PARTITIONS);
  }
  await rm(directory, { recursive: true });
});
