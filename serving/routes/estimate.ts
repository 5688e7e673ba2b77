/** POST /v1/raw/estimate: the size and the cost of a query's answer, without running the query. */
import { shapeOf } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { INSTRUMENT_HEADERS, instrumentHeader, instrumentMember } from '../contract/instruments.ts';
import { parseQuery, querySchema } from '../contract/query.ts';
import { estimateAnswer } from '../discovery/estimate/bytes.ts';
import { type EstimateRules, estimate } from '../discovery/estimate/estimate.ts';
import type { Inspector } from '../discovery/inspector.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { answerJson, requireJson, strictProblem } from '../http/answer.ts';
import { backendToken } from '../http/caller.ts';
import type { Route } from '../http/routes.ts';
import { CATALOG_PROBLEMS, RIGHTS_PROBLEMS, type RouteDoc } from '../http/routes.ts';
import { queryExamples } from '../openapi/row-docs.ts';
import { mutableWindowWarning } from '../read/execute/warnings.ts';
import { CoverageProbe } from '../read/snapshot/session.ts';
import { admission, checkRights } from '../rights/gate.ts';
import { parseRequest, queryEnvelope } from './read.ts';

interface EstimateDeps {
  readonly instruments: Instruments;
  readonly inspector: Inspector;
  readonly rights: RightsStore;
  readonly rules: EstimateRules;
}

export function estimateRoute({ inspector, instruments, rights, rules }: EstimateDeps): Route {
  return {
    method: 'POST',
    path: '/v1/raw/estimate',
    access: 'read',
    doc: (): RouteDoc => ({
      operation: 'estimateQuery',
      tag: 'discovery',
      summary: 'The rows and bytes that a query would return, without running it',
      doc: 'The route takes the body of a query, checks it like a query, and estimates its rows and bytes within tens of milliseconds, whatever the length of the history. Without filters the service counts rows by the proofs of partitions and frames. With filters it uses the database’s statistics, and it warns when a filter passes so few rows that the query is likely to exceed its time budget.',
      body: querySchema,
      answers: [{ doc: 'The estimate.', content: { 'application/json': estimateAnswer }, headers: INSTRUMENT_HEADERS }],
      problems: [
        'QUERY_CONTRACT_ERROR',
        ...RIGHTS_PROBLEMS,
        'STRICT_MODE_WARNING_FAILURE',
        'ALIGNED_STORAGE_CONTRACT_VIOLATION',
        ...CATALOG_PROBLEMS,
      ],
      examples: queryExamples().map(({ title, body }) => ({ title, body })),
    }),
    async handle(exchange) {
      const { request, signal, caller } = exchange;
      requireJson(request);
      const { datasetKey, mode, strict, window, read } = await parseRequest(exchange, instruments, {
        parse: parseQuery,
      });
      caller.requireDatasets([read.dataset]);
      const grant = checkRights(rights, datasetKey, backendToken(request));
      const { dataset } = read;
      const admit = admission(grant, dataset);
      const mutable = mutableWindowWarning(window);
      // Where rights depend on what is proved, the session below checks both, rights first.
      if (strict && mutable.length > 0 && !admit) throw strictProblem(mutable);
      const found = await inspector.inspect(
        { signal, caller, token: grant.token },
        () => new CoverageProbe(read),
        async (session, probe) => {
          await admit?.(session);
          return await estimate(session, probe, read, rules, (evaluation) => queryEnvelope(read, grant, evaluation));
        },
      );
      const { view } = shapeOf(dataset, mode);
      answerJson(
        exchange,
        {
          mode,
          source: datasetKey,
          sources: [datasetKey],
          ...instrumentMember(dataset),
          ...found,
          view_id: view.id,
          view_version: view.version,
          rights_state: grant.state,
          rights_provisional: grant.provisional,
        },
        instrumentHeader(dataset),
      );
    },
  };
}
