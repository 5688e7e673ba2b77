/** POST /v1/raw/query */
import { shapeOf } from '../../shared/registry/index.ts';
import { parseQuery } from '../contract/query.ts';
import type { Route } from '../http/routes.ts';
import { queryDoc } from '../openapi/row-docs.ts';
import type { Judgement } from '../read/judge.ts';
import type { ReadRequest } from '../read/types.ts';
import type { Envelope } from '../rendering/envelope.ts';
import type { Grant } from '../rights/gate.ts';
import { type ReadRouteDeps, readRoute } from './read-route.ts';

export function queryRoute(deps: ReadRouteDeps): Route {
  return readRoute(
    {
      path: '/v1/raw/query',
      family: 'QUERY',
      doc: queryDoc,
      parse: parseQuery,
      envelope: queryEnvelope,
    },
    deps,
  );
}

/** The members of an answer beside its rows. */
export function queryEnvelope(
  { dataset, mode, fields }: ReadRequest,
  grant: Grant,
  { warnings, freshness }: Judgement,
): Envelope {
  const { view } = shapeOf(dataset, mode);
  return {
    mode,
    source: dataset.key,
    sources: [dataset.key],
    warnings,
    freshness,
    schema: fields.map(({ name, dtype }) => ({ name, dtype })),
    view_id: view.id,
    view_version: view.version,
    rights_state: grant.state,
    rights_provisional: grant.provisional,
  };
}
