/** GET /v1/instruments: the instruments of the trade datasets, those that are read and those that ever were. */
import { z } from 'zod';
import { DATASETS } from '../../shared/registry/index.ts';
import { INSTRUMENT_DATASETS } from '../contract/instruments.ts';
import { oneOf } from '../contract/shapes.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { type Instruments, instrumentsAnswer, readInstruments } from '../discovery/instruments.ts';
import { answerJson, requireJson } from '../http/answer.ts';
import { queryParams } from '../http/request.ts';
import { CATALOG_PROBLEMS, type Route, type RouteDoc } from '../http/routes.ts';

const parameters = z.strictObject({
  dataset: z
    .enum(INSTRUMENT_DATASETS, oneOf(INSTRUMENT_DATASETS, 'must be a dataset with instruments: '))
    .optional()
    .meta({ description: 'The instruments of this dataset. Without it: of all that have any.' }),
});

export function instrumentsRoute({
  inspector,
  instruments,
}: {
  readonly inspector: Inspector;
  readonly instruments: Instruments;
}): Route {
  return {
    method: 'GET',
    path: '/v1/instruments',
    access: 'read',
    doc: (): RouteDoc => ({
      operation: 'listInstruments',
      tag: 'discovery',
      summary: 'The instruments of the trade datasets, and what is proved of each',
      doc: 'The list holds the default and the configured instruments, and every one that was ever proved, whether it is still read or not. A named key sees those that it covers.',
      query: parameters,
      answers: [{ doc: 'The instruments.', content: { 'application/json': instrumentsAnswer } }],
      problems: ['QUERY_CONTRACT_ERROR', 'AUTH_DATASET_NOT_COVERED', ...CATALOG_PROBLEMS],
      examples: [{ title: 'Of one exchange', query: { dataset: 'exchange_a_spot_trades' } }],
    }),
    async handle(exchange) {
      const { request, url, caller } = exchange;
      requireJson(request);
      const { dataset } = queryParams(url, parameters);
      if (dataset !== undefined) caller.requireAny(DATASETS.get(dataset)!);
      const asked = INSTRUMENT_DATASETS.filter((key) => dataset === undefined || key === dataset);
      const known = await instruments.list(
        caller,
        asked.map((key) => DATASETS.get(key)!),
      );
      const found = await inspector.run(exchange, (session) => readInstruments(session, known));
      answerJson(exchange, { instruments: found });
    },
  };
}
