/** Issuers for tests: archives by day in folders, and a server that shows each fund's document of today. */
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import type { Issuer } from '../../pipelines/sources/etf/issuers/issuer.ts';
import { DOCUMENTS, type FundDocument, fundDocument } from '../../pipelines/sources/etf/sample.ts';
import { nextMarketDay } from '../../shared/dates.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';

export const fundOf = (ticker: string): Issuer => ISSUERS.find((issuer) => issuer.ticker === ticker)!;
export const idOf = (ticker: string): string => fundOf(ticker).sourceId;
const settingOf = (ticker: string): string =>
  (etfDailyMetrics.locations as Readonly<Record<string, readonly string[]>>)[idOf(ticker)][0];

/** What a fund says of a day here, unless it is to say something else. */
export const dayOf = (ticker: string, day: string, more: Partial<FundDocument> = {}): FundDocument => ({
  ...fundDocument(day, ISSUERS.indexOf(fundOf(ticker)) + 1 + Number(day.slice(8)) * 10),
  ...more,
});
export const documentOf = (ticker: string, fund: FundDocument): string => DOCUMENTS[idOf(ticker)](fund);

export const marketDays = (first: string, count: number): string[] => {
  const days = [first];
  while (days.length < count) days.push(nextMarketDay(days.at(-1)!));
  return days;
};

/** A folder for each fund. */
export class Archives {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  /** Base URLs of these funds; of all ten without. */
  settings(...tickers: readonly string[]): Record<string, string> {
    const funds = tickers.length > 0 ? tickers : ISSUERS.map(({ ticker }) => ticker);
    return Object.fromEntries(
      funds.map((ticker) => [settingOf(ticker), pathToFileURL(`${join(this.#root, ticker)}/`).href]),
    );
  }

  /** @param name below the fund's folder; by the day without. */
  async write(ticker: string, day: string, document: string | Buffer, name?: string): Promise<void> {
    const path = join(this.#root, ticker, name ?? `${day}.${fundOf(ticker).document.extension}`);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, document);
  }

  /** All ten funds of each of the days. */
  async fill(days: readonly string[]): Promise<void> {
    for (const { ticker } of ISSUERS) {
      for (const day of days) await this.write(ticker, day, documentOf(ticker, dayOf(ticker, day)));
    }
  }
}

export interface IssuerServer extends AsyncDisposable {
  /** With each fund's ticker as its first folder. */
  readonly url: URL;
  /** Paths and queries that were asked for, with the ticker in front. */
  readonly asked: string[];
  /** What is answered there: a body, or a status. */
  readonly answers: Map<string, string | number>;
  settings(...tickers: readonly string[]): Record<string, string>;
  /** Shows this where the fund's document of now is. */
  show(ticker: string, body: string | number): void;
}

export async function startIssuers(): Promise<IssuerServer> {
  const asked: string[] = [];
  const answers = new Map<string, string | number>();
  const server = createServer(({ url = '' }, response) => {
    asked.push(url);
    const answer = answers.get(url) ?? 404;
    if (typeof answer === 'number') response.writeHead(answer).end('<html><body>no</body></html>');
    else response.writeHead(200, { 'content-type': 'text/html; charset=utf-8' }).end(answer);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  return {
    url,
    asked,
    answers,
    settings: (...tickers) => Object.fromEntries(tickers.map((ticker) => [settingOf(ticker), `${url.href}${ticker}`])),
    show: (ticker, body) => void answers.set(`/${ticker}${fundOf(ticker).document.path}`, body),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
