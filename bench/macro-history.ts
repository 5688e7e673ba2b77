/** A generated history of the macro provider, as long as the real one and the same on every run. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  observationsAnswer,
  type Publication,
  seriesAnswer,
  vintagesAnswer,
} from '../pipelines/sources/macro/sample.ts';
import { type MacroSeries, SERIES } from '../pipelines/sources/macro/series.ts';
import { DAY_MS, dayKey } from '../shared/dates.ts';

export interface History {
  readonly series: MacroSeries;
  readonly publications: readonly Publication[];
}

/** The number of vintages of a series, by its frequency. */
interface VintageCounts {
  readonly monthly: number;
  readonly daily: number;
}

/** The first observation. The first vintage publishes all observations before it. */
const FIRST_MS = Date.parse('1950-01-01');
const LAST_MS = Date.parse('2026-01-01');
/** Months that the price index revises each January: five years. */
const REVISED_MONTHS = 60;

export const historyOf = ({ monthly, daily }: VintageCounts): History[] =>
  SERIES.map((series) => ({
    series,
    publications:
      series.frequency === 'Daily'
        ? published(weekdays(), daily, 1, () => 0)
        : published(months(), monthly, 42, (date) =>
            series.seriesId === 'CPIAUCSL' && date.slice(5, 7) === '01' ? REVISED_MONTHS : 1,
          ),
  }));

export const vintagesOf = (histories: readonly History[]): number =>
  histories.reduce((sum, { publications }) => sum + publications.length, 0);

/** The first vintage publishes all but the last dates. Each of those has a vintage of its own, which may revise earlier ones. */
function published(
  dates: readonly string[],
  vintages: number,
  lagDays: number,
  revisedBy: (date: string) => number,
): Publication[] {
  const first = dates.length - vintages;
  const vintageOf = (at: number) => dayKey(Date.parse(dates[at]) + lagDays * DAY_MS);
  const textOf = (at: number, vintage: number) => (100 + (at % 977) / 10 + (vintage % 89) / 100).toFixed(2);
  return dates.slice(first).map((date, index) => {
    const vintage = first + index;
    const from = index === 0 ? 0 : Math.max(0, vintage - revisedBy(date));
    const values: Record<string, string> = {};
    for (let at = from; at <= vintage; at++) values[dates[at]] = textOf(at, vintage);
    return { vintage: vintageOf(vintage), said: values };
  });
}

function months(): string[] {
  const found: string[] = [];
  for (let at = new Date(FIRST_MS); at.getTime() < LAST_MS; at.setUTCMonth(at.getUTCMonth() + 1)) {
    found.push(dayKey(at.getTime()));
  }
  return found;
}

function weekdays(): string[] {
  const found: string[] = [];
  for (let ms = FIRST_MS; ms < LAST_MS; ms += DAY_MS) {
    if (![0, 6].includes(new Date(ms).getUTCDay())) found.push(dayKey(ms));
  }
  return found;
}

interface Provider extends AsyncDisposable {
  readonly url: string;
}

/** Serves the history from memory, in the form of the provider's answers. */
export async function serveHistory(histories: readonly History[]): Promise<Provider> {
  const answerTo = ({ pathname, searchParams }: URL): object | undefined => {
    const history = histories.find(({ series }) => series.seriesId === searchParams.get('series_id'));
    if (!history) return undefined;
    const { series, publications } = history;
    if (pathname.endsWith('/vintagedates')) return vintagesAnswer(publications);
    if (pathname.endsWith('/series')) return seriesAnswer(series, publications, '2026-03-06 08:12:35-06');
    const [from, to] = ['realtime_start', 'realtime_end'].map((name) => searchParams.get(name) ?? '');
    return observationsAnswer(publications, { from, to });
  };
  const server = createServer((request, response) => {
    const answer = answerTo(new URL(request.url ?? '/', 'http://provider'));
    response.writeHead(answer ? 200 : 404, { 'content-type': 'application/json' });
    response.end(JSON.stringify(answer ?? {}));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
