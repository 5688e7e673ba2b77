/** POST /v1/historical/...: one route a registered dataset, and one more for the klines of each that has trades. */
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { type HistoricalKind, historicalParser } from '../contract/historical.ts';
import type { Route } from '../http/routes.ts';
import { historicalDoc } from '../openapi/row-docs.ts';
import { type ReadRouteDeps, readRoute } from './read-route.ts';

const PREFIX = '/v1/historical';

export function historicalRoutes(deps: ReadRouteDeps): Route[] {
  return [...DATASETS.values()].flatMap((dataset) => [
    historicalRoute(dataset, 'rows', `${PREFIX}/${dataset.historicalPath}`, deps),
    ...(dataset.trades ? [historicalRoute(dataset, 'klines', `${PREFIX}/${dataset.trades.klinesPath}`, deps)] : []),
  ]);
}

function historicalRoute(dataset: DatasetDefinition, kind: HistoricalKind, path: string, deps: ReadRouteDeps): Route {
  return readRoute(
    {
      path,
      family: 'HISTORICAL',
      doc: () => historicalDoc(dataset, kind),
      parse: historicalParser(dataset, kind),
      // These seven, `rows` and `row_count`: the contract knows no others.
      envelope: ({ mode, fields }, grant, { warnings }) => ({
        mode,
        source: dataset.key,
        sources: [dataset.key],
        warnings,
        schema: fields.map(({ name, dtype }) => ({ name, dtype })),
        rights_state: grant.state,
        rights_provisional: grant.provisional,
      }),
    },
    deps,
  );
}
