/** A server that speaks the macro provider's protocol over publications given, and refuses as it is told to. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { SERIES } from '../../pipelines/sources/macro/series.ts';

export interface Publication {
  readonly vintage: string;
  /** What it changed: value by observation date. */
  readonly said: Readonly<Record<string, string>>;
}

export interface Said {
  readonly realtime_start: string;
  readonly realtime_end: string;
  readonly date: string;
  readonly value: string;
}

export interface Asked {
  readonly path: string;
  readonly query: URLSearchParams;
}

export interface Fault {
  readonly status?: number;
  readonly body?: string;
  readonly delayMs?: number;
}

const FIRST_DAY = '1776-07-04';
const LAST_DAY = '9999-12-31';
const dayBefore = (day: string) => new Date(Date.parse(day) - 86_400_000).toISOString().slice(0, 10);

/** Each value with the days it was said from and to, cut to the window asked for, as the provider cuts it. */
export function observationsIn(publications: readonly Publication[], from: string, to: string): Said[] {
  const dates = [...new Set(publications.flatMap(({ said }) => Object.keys(said)))].sort();
  return dates.flatMap((date) => {
    const saying = publications.filter(({ said }) => date in said);
    return saying.flatMap(({ vintage, said }, index) => {
      const last = index + 1 < saying.length ? dayBefore(saying[index + 1].vintage) : LAST_DAY;
      if (last < from || vintage > to) return [];
      const [start, end] = [vintage < from ? from : vintage, last > to ? to : last];
      return [{ realtime_start: start, realtime_end: end, date, value: said[date] }];
    });
  });
}

export interface ProviderServer extends AsyncDisposable {
  readonly url: URL;
  readonly asked: Asked[];
  /** Judges each request first. */
  fault: (asked: Asked) => Fault | undefined;
}

/** A description of the series, from the vintage on that it has as `realtime_start` until the next; without one always. */
export type Described = Readonly<Record<string, unknown>>;

/** The descriptions of a window, each with its days, cut to the window as the provider cuts them. */
export function descriptionsIn(all: readonly Described[], from: string, to: string): Described[] {
  return all.flatMap((one, index) => {
    const [start, next] = [one, all[index + 1]].map((each) => each?.realtime_start as string | undefined);
    const [first, last] = [start ?? FIRST_DAY, next === undefined ? LAST_DAY : dayBefore(next)];
    if (last < from || first > to) return [];
    return [{ ...one, realtime_start: first < from ? from : first, realtime_end: last > to ? to : last }];
  });
}

export interface ProviderSpec {
  /** Its description; several where it changes. */
  readonly series: Described | readonly Described[];
  readonly publications: readonly Publication[];
  /** Of other series, by their id; where none is given every series is answered alike. */
  readonly all?: Readonly<Record<string, Pick<ProviderSpec, 'series' | 'publications'>>>;
  /** Rows of a page, however many are asked for. */
  readonly pageRows?: number;
}

export async function startMacroProvider({
  series,
  publications,
  all = {},
  pageRows = 1e9,
}: ProviderSpec): Promise<ProviderServer> {
  const asked: Asked[] = [];
  const paged = (rows: readonly unknown[], query: URLSearchParams) => {
    const offset = Number(query.get('offset'));
    return {
      count: rows.length,
      offset,
      rows: rows.slice(offset, offset + Math.min(pageRows, Number(query.get('limit')))),
    };
  };
  const answer = ({ path, query }: Asked): unknown => {
    const asked = all[query.get('series_id')!] ?? { series, publications };
    // Asked for no window, the provider describes today.
    const [from, to] = [query.get('realtime_start') ?? LAST_DAY, query.get('realtime_end') ?? LAST_DAY];
    if (path === '/series') return { seriess: descriptionsIn([asked.series].flat(), from, to) };
    if (path === '/series/vintagedates') {
      const { rows, ...page } = paged(
        asked.publications.map(({ vintage }) => vintage),
        query,
      );
      return { ...page, vintage_dates: rows };
    }
    const observations = observationsIn(asked.publications, from, to);
    const { rows, ...page } = paged(observations, query);
    return { ...page, output_type: 1, observations: rows };
  };
  const server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url!, 'http://provider');
    const question = { path: pathname.replace(/^\/base/, ''), query: searchParams };
    asked.push(question);
    const fault = provider.fault(question);
    if (fault?.delayMs) await sleep(fault.delayMs);
    response.writeHead(fault?.status ?? 200, { 'content-type': 'application/json' });
    response.end(fault?.body ?? (fault?.status === undefined ? JSON.stringify(answer(question)) : 'no'));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const provider: ProviderServer = {
    url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/base`),
    asked,
    fault: () => undefined,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return provider;
}

// Publications of four series out of real values, and what was said when, by a model that shares nothing with the code.

export const CSV_DIR = new URL('../../../shared/data/macro/fredgraph/', import.meta.url);

type Values = readonly (readonly [date: string, value: string])[];

/** As downloaded: the last so many. */
function realValues(seriesId: string, count: number): Values {
  const [, ...lines] = readFileSync(new URL(`${seriesId}.csv`, CSV_DIR), 'utf8')
    .trim()
    .split('\n');
  return lines.slice(-count).map((line) => line.trim().split(',') as [string, string]);
}

const after = (day: string, days: number) => new Date(Date.parse(day) + days * 86_400_000).toISOString().slice(0, 10);

/** The first vintage says all but the last `single` values, each of which then has a vintage of its own. */
function publicationsOf(values: Values, single: number, lagDays: number): Publication[] {
  const first = values.slice(0, -single);
  return [
    { vintage: after(first[first.length - 1][0], lagDays), said: Object.fromEntries(first) },
    ...values.slice(-single).map(([date, value]) => ({ vintage: after(date, lagDays), said: { [date]: value } })),
  ];
}

export const metadataOf = (seriesId: string, lastUpdated: string) => {
  const series = SERIES.find((one) => one.seriesId === seriesId)!;
  return {
    id: seriesId,
    title: series.metricName,
    units: series.unit,
    frequency: series.frequency,
    seasonal_adjustment: series.seasonalAdjustment,
    observation_start: '1947-01-01',
    observation_end: '2026-01-01',
    last_updated: lastUpdated,
  };
};

/** The real values of all four series, the newest of each published one by one; the price index revises a month. */
export function realProvider(lastUpdated: string): { all: NonNullable<ProviderSpec['all']>; revised: Revision } {
  const cpi = publicationsOf(realValues('CPIAUCSL', 60), 6, 42);
  const revised = {
    date: Object.keys(cpi[2].said)[0],
    first: '',
    second: '999.125',
    vintage: cpi[3].vintage,
    firstVintage: cpi[2].vintage,
  };
  revised.first = cpi[2].said[revised.date];
  const all = {
    CPIAUCSL: cpi.map((one) =>
      one.vintage === revised.vintage ? { ...one, said: { ...one.said, [revised.date]: revised.second } } : one,
    ),
    UNRATE: publicationsOf(realValues('UNRATE', 60), 5, 35),
    FEDFUNDS: publicationsOf(realValues('FEDFUNDS', 60), 5, 32),
    DGS10: publicationsOf(realValues('DGS10', 400), 12, 1),
  };
  return {
    all: Object.fromEntries(
      Object.entries(all).map(([id, publications]) => [id, { series: metadataOf(id, lastUpdated), publications }]),
    ),
    revised,
  };
}

export interface Revision {
  readonly date: string;
  readonly first: string;
  readonly second: string;
  readonly firstVintage: string;
  readonly vintage: string;
}
