/** Funds and metrics in docs/etf.md: derived from their adapters, and from documents in their layouts. */

import { ISSUERS } from '../pipelines/sources/etf/issuers/index.ts';
import type { Issuer } from '../pipelines/sources/etf/issuers/issuer.ts';
import { FACTS, type FactName, metricsOf } from '../pipelines/sources/etf/parse/facts.ts';
import { DOCUMENTS, fundDocument } from '../pipelines/sources/etf/sample.ts';
import { etfDailyMetrics } from '../shared/registry/datasets/etf_daily_metrics.ts';

const namesOf = ({ sourceId, issuer, ticker, parse }: Issuer): Set<string> => {
  const facts = parse(DOCUMENTS[sourceId](fundDocument('2026-03-05', 1)));
  return new Set(metricsOf({ issuer, ticker, ...facts }).map(({ name }) => name));
};

export const etfFunds = (): string =>
  ISSUERS.map(({ ticker, sourceId, document }) => {
    const locations: Readonly<Record<string, readonly string[]>> = etfDailyMetrics.locations;
    const facts = [
      `\`${sourceId}\``,
      `\`${locations[sourceId][0]}\``,
      `${document.extension} \`${document.path}\``,
      ...(document.by === 'browser' ? ['in a browser'] : []),
      ...(document.firstDay === undefined ? [] : [`days from ${document.firstDay} on`]),
    ];
    return wrapped(`- ${ticker}: ${facts.join(', ')}`);
  }).join('');

const MAX_COLUMNS = 132;

/** An item of a list over as many lines as it needs; a long path keeps a line to itself. */
const wrapped = (item: string): string => {
  const lines: string[] = [];
  for (const word of item.split(' ')) {
    const last = lines.at(-1);
    if (last !== undefined && `${last} ${word}`.length <= MAX_COLUMNS) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(last === undefined ? word : `  ${word}`);
  }
  return `${lines.join('\n')}\n`;
};

/** Each metric in the form of docs/fields.md, with the funds that have it. */
export function etfMetrics(): string {
  const funds = ISSUERS.map((issuer) => ({ ticker: issuer.ticker, names: namesOf(issuer) }));
  const rows = funds.reduce((sum, { names }) => sum + names.size, 0);
  const lines = (Object.keys(FACTS) as FactName[]).map((name) => {
    const { kind, unit, doc, ...rule } = FACTS[name];
    const having = funds.filter(({ names }) => names.has(name)).map(({ ticker }) => ticker);
    const type = `${KINDS[kind]}${'required' in rule ? '' : '?'}${unit ? ` ${unit}` : ''}`;
    return `- \`${name}\` ${type}${having.length === funds.length ? '' : ` (${having.join(', ')})`}: ${doc}\n`;
  });
  return `A full day of all funds has ${rows} rows.\n\n${lines.join('')}`;
}

const KINDS = { number: 'float', integer: 'int', text: 'string' } as const;
