/** GET /v1/datasets: everything that a caller has to know to request rows. */

import { DATASETS, type DatasetKey } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { OPERATORS_OF } from '../contract/filters.ts';
import {
  datasetsAnswer,
  describeDataset,
  KNOWN,
  NOTHING,
  readAvailability,
  readRealOthers,
} from '../discovery/datasets.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { requireJson } from '../http/answer.ts';
import { answerDocument, TAGGED, UNCHANGED } from '../http/document.ts';
import { NO_PARAMETERS, queryParams } from '../http/request.ts';
import { CATALOG_PROBLEMS, type Route, type RouteDoc } from '../http/routes.ts';
import { reportRights } from '../rights/gate.ts';

interface DatasetsDeps {
  readonly inspector: Inspector;
  readonly rights: RightsStore;
}

export function datasetsRoute({ inspector, rights }: DatasetsDeps): Route {
  return {
    method: 'GET',
    path: '/v1/datasets',
    access: 'read',
    doc: (): RouteDoc => ({
      operation: 'listDatasets',
      tag: 'discovery',
      summary: 'All datasets: fields, units, rights, and proved coverage',
      doc: 'The service checks requests against these tables: the fields of both modes with type, unit and meaning, the order of rows, the views, and the operators of filters. Rights and availability are those of this moment. A named key sees the datasets that it covers.',
      query: NO_PARAMETERS,
      headers: ['If-None-Match'],
      answers: [{ doc: 'The datasets.', content: { 'application/json': datasetsAnswer }, headers: TAGGED }, UNCHANGED],
      problems: ['QUERY_CONTRACT_ERROR', ...CATALOG_PROBLEMS],
      examples: [{ title: 'All datasets' }],
    }),
    async handle(exchange) {
      requireJson(exchange.request);
      queryParams(exchange.url, NO_PARAMETERS);
      const { availabilityOf, others } = await inspector.run(exchange, async (session) => ({
        availabilityOf: await readAvailability(session),
        others: await readRealOthers(session),
      }));
      const real = others.filter((one) => exchange.caller.covers(one));
      const datasets = [...DATASETS.values()]
        .filter(({ key }) => exchange.caller.coversAny(key))
        .map((dataset) => {
          const available = exchange.caller.covers(dataset) ? availabilityOf(dataset) : NOTHING;
          const holdsReal =
            (available.partitions > 0 && !available.synthetic) || real.some(({ base }) => base === dataset);
          return describeDataset(dataset, reportRights(rights, dataset.key as DatasetKey, holdsReal), available);
        });
      const answer = Buffer.from(JSON.stringify({ datasets, operators: OPERATORS_OF, known: KNOWN }));
      await answerDocument(exchange, answer, {
        'Content-Type': 'application/json',
        // Rights and availability are those of this moment, and those of the key.
        'Cache-Control': 'private, no-cache',
      });
    },
  };
}
