/** What docs/etf.md says of funds and metrics: derived from their adapters, and from documents in their layouts. */

import { ISSUERS } from '../pipelines/sources/etf/issuers/index.ts';
import type { Issuer } from '../pipelines/sources/etf/issuers/types.ts';
import { FACTS, type FactName, metricsOf } from '../pipelines/sources/etf/parse/facts.ts';
import { DOCUMENTS, fundDocument } from '../pipelines/sources/etf/sample.ts';
import { etfDailyMetrics } from '../shared/registry/datasets/etf_daily_metrics.ts';
import { table } from './table.ts';

const namesOf = ({ sourceId, issuer, ticker, parse }: Issuer): Set<string> => {
  const facts = parse(DOCUMENTS[sourceId](fundDocument('2026-03-05', 1)));
  return new Set(metricsOf({ issuer, ticker, ...facts }).map(({ name }) => name));
};

export const etfFunds = (): string =>
  table(
    ['fund', '`source_id`', 'setting', 'document', 'past days', 'metrics'],
    ISSUERS.map((issuer) => [
      issuer.ticker,
      `\`${issuer.sourceId}\``,
      `\`${(etfDailyMetrics.locations as Readonly<Record<string, readonly string[]>>)[issuer.sourceId][0]}\``,
      `${issuer.document.extension}${issuer.document.by === 'browser' ? ', in a browser' : ''}: \`${issuer.document.path}\``,
      issuer.document.firstDay === undefined ? 'none' : `from ${issuer.document.firstDay}`,
      `${namesOf(issuer).size}`,
    ]),
  );

export function etfMetrics(): string {
  const funds = ISSUERS.map((issuer) => ({ ticker: issuer.ticker, names: namesOf(issuer) }));
  return table(
    ['metric', 'unit', 'kind', 'may be null', 'funds', 'what it is'],
    (Object.keys(FACTS) as FactName[]).map((name) => {
      const { kind, unit, doc, ...rule } = FACTS[name];
      const having = funds.filter(({ names }) => names.has(name)).map(({ ticker }) => ticker);
      return [
        `\`${name}\``,
        unit ?? '',
        KINDS[kind],
        'required' in rule ? 'no' : 'yes',
        having.length === funds.length ? 'all' : having.join(', '),
        doc,
      ];
    }),
  );
}

const KINDS = { number: 'float', integer: 'int', text: 'string' } as const;
