/** GET /v1/conditions: what each day of a dataset is worth, and why. */
import { z } from 'zod';
import { DAY, DAY_MS, DAY_RULE, parseDay } from '../../shared/dates.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentKey } from '../contract/instruments.ts';
import { datasetKey, parsedText } from '../contract/shapes.ts';
import { conditionsAnswer, readConditions } from '../discovery/conditions.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { answerList, listType } from '../http/list-answer.ts';
import { contractProblem, queryParams } from '../http/request.ts';
import { CATALOG_PROBLEMS, type Route, type RouteDoc } from '../http/routes.ts';
import { openers } from '../rights/gate.ts';

/** A century: more is a mistake. */
const MAX_DAYS = 36_600;

const day = (doc: string) => parsedText(parseDay, DAY_RULE, DAY).meta({ description: doc });

const parameters = z.strictObject({
  dataset: datasetKey,
  from: day('The first day.'),
  to: day('The last day.'),
  instrument: instrumentKey,
  silences: z
    .enum(['list'], { error: 'must be list, or left out' })
    .optional()
    .meta({ description: '`list` adds every silence of each day.' }),
});

/** Of CSV. */
const COLUMNS = [
  ...['day', 'start_utc', 'end_utc', 'condition', 'reasons', 'observed_increment.price', 'observed_increment.quantity'],
  ...['count', 'longest_ms', 'unknown', 'list'].map((name) => `silences.${name}`),
  ...['ids_missing', 'repeats', 'first', 'last'],
  ...['name', 'sha256', 'captured_utc'].map((name) => `document.${name}`),
  'revisions',
];

export function conditionsRoute({
  inspector,
  instruments,
  rights,
  now,
}: {
  readonly inspector: Inspector;
  readonly instruments: Instruments;
  readonly rights: RightsStore;
  readonly now: () => number;
}): Route {
  return {
    method: 'GET',
    path: '/v1/conditions',
    access: 'read',
    doc: conditionsDoc,
    async handle(exchange) {
      const { response, url, caller } = exchange;
      const type = listType(exchange);
      const { dataset: key, from, to, instrument, silences } = queryParams(url, parameters);
      const base = DATASETS.get(key) as DatasetDefinition & { readonly key: DatasetKey };
      caller.requireAny(base);
      if (from > to) throw contractProblem([{ pointer: '?from', message: 'must not be after to' }]);
      if (to - from >= MAX_DAYS * DAY_MS) {
        throw contractProblem([{ pointer: '?to', message: `must be less than ${MAX_DAYS} days after from` }]);
      }
      const dataset = await instruments.ofPath(caller, base, instrument);
      const mayOpen = openers(rights);
      const answer = await inspector.run(exchange, (session) =>
        readConditions(session, dataset, {
          ...{ fromMs: from, toMs: to, withList: silences === 'list', nowMs: now() },
          listed: instruments.listed(dataset),
          mayRead: (synthetic) => mayOpen(key, synthetic),
        }),
      );
      for (const [name, value] of Object.entries(instrumentHeader(dataset))) response.setHeader(name, value);
      answerList(exchange, type, { answer, name: 'conditions', columns: COLUMNS });
    },
  };
}

const conditionsDoc = (): RouteDoc => ({
  operation: 'listConditions',
  tag: 'discovery',
  summary: 'What each day of a dataset is worth: condition, increments, silences, document and revisions',
  doc: 'A day is `available`, `degraded` (`ids_missing`; `late_arrival`: the vendor’s document differs now; `silence_unknown`: more than an hour without a trade that nobody can prove), `pending` (not proved yet, and expected) or `missing` (`quarantined`, `retracted`, `not_listed`, `not_proved`). Days are both included; days of trades are those of the vendor’s files.',
  query: parameters,
  answers: [
    {
      doc: 'The days, in order.',
      content: {
        'application/json': conditionsAnswer,
        'application/x-ndjson': { type: 'string' },
        'text/csv': { type: 'string' },
      },
      headers: INSTRUMENT_HEADERS,
    },
  ],
  problems: ['QUERY_CONTRACT_ERROR', 'NOT_ACCEPTABLE', 'AUTH_DATASET_NOT_COVERED', ...CATALOG_PROBLEMS],
  examples: [
    {
      title: 'Two days, with their silences',
      query: { dataset: 'exchange_a_spot_trades', from: '2024-01-01', to: '2024-01-02', silences: 'list' },
    },
  ],
});
