/** GET /v1/conditions: what each day of a dataset is worth, and why. */
import { z } from 'zod';
import { DAY, DAY_MS, DAY_RULE, parseDay } from '../../shared/dates.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentKey } from '../contract/instruments.ts';
import { Problem } from '../contract/problems.ts';
import { datasetKey, parsedText } from '../contract/shapes.ts';
import { conditionsAnswer, type DayCondition, readConditions } from '../discovery/conditions.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { answerBytes } from '../http/answer.ts';
import { contractProblem, queryParams } from '../http/request.ts';
import { CATALOG_PROBLEMS, type Route, type RouteDoc } from '../http/routes.ts';
import { mediaQuality } from '../render/representations.ts';
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

type Cells = Readonly<Record<string, string | number | null | undefined>>;

/** A condition in one row; what it has not, for the dataset, has no column. */
const cellsOf = (one: DayCondition): Cells => ({
  day: one.day,
  start_utc: one.start_utc,
  end_utc: one.end_utc,
  condition: one.condition,
  reasons: one.reasons.join(' '),
  ...('observed_increment' in one && {
    price_increment: one.observed_increment?.price,
    quantity_increment: one.observed_increment?.quantity,
  }),
  ...('silences' in one && {
    silences_count: one.silences?.count,
    silences_longest_ms: one.silences?.longest_ms,
    silences_unknown: one.silences?.unknown,
    silences_list: one.silences?.list && JSON.stringify(one.silences.list),
  }),
  ...('ids_missing' in one && { ids_missing: one.ids_missing }),
  ...('repeats' in one && { repeats: one.repeats }),
  ...('first' in one && { first: one.first, last: one.last }),
  ...('document' in one && {
    document_name: one.document?.name,
    document_sha256: one.document?.sha256,
    document_captured_utc: one.document?.captured_utc,
  }),
  ...('revisions' in one && { revisions: one.revisions?.length }),
});

const cell = (value: Cells[string]): string => {
  const text = value === null || value === undefined ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

function csvOf(conditions: readonly DayCondition[]): string {
  const rows = conditions.map(cellsOf);
  const lines = [Object.keys(rows[0]).join(','), ...rows.map((row) => Object.values(row).map(cell).join(','))];
  return `${lines.join('\r\n')}\r\n`;
}

type Answer = Parameters<typeof conditionsAnswer.encode>[0];

const FORMS: readonly { readonly type: string; readonly contentType: string; body(answer: Answer): string }[] = [
  { type: 'application/json', contentType: 'application/json', body: (answer) => JSON.stringify(answer) },
  {
    type: 'application/x-ndjson',
    contentType: 'application/x-ndjson',
    body: ({ conditions }) => conditions.map((one) => `${JSON.stringify(one)}\n`).join(''),
  },
  {
    type: 'text/csv',
    contentType: 'text/csv; charset=utf-8; header=present',
    body: ({ conditions }) => csvOf(conditions),
  },
];

/** @throws Problem NOT_ACCEPTABLE */
function formFor(accept: string | undefined): (typeof FORMS)[number] {
  const [best] = FORMS.map((form) => ({ form, quality: mediaQuality(accept, form.type) }))
    .filter(({ quality }) => quality > 0)
    .sort((a, b) => b.quality - a.quality);
  if (best) return best.form;
  const types = FORMS.map(({ type }) => type).join(', ');
  throw new Problem('NOT_ACCEPTABLE', `The Accept header names no type of this path. Accept one of ${types}.`);
}

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
      const { request, response, url, caller } = exchange;
      response.appendHeader('Vary', 'Accept');
      const form = formFor(request.headers.accept);
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
      answerBytes(exchange, Buffer.from(form.body(answer)), {
        'Content-Type': form.contentType,
        ...instrumentHeader(dataset),
      });
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
