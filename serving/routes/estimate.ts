/** POST /v1/raw/estimate: what a query would answer with, and what it would cost, without running it. */
import { shapeOf } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { parseQuery, querySchema } from '../contract/query.ts';
import { estimateAnswer } from '../discovery/estimate/bytes.ts';
import { type EstimateRules, estimate } from '../discovery/estimate/estimate.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { backendToken } from '../http/access.ts';
import { answerJson, requireJson, strictProblem } from '../http/answer.ts';
import type { Route } from '../http/routes.ts';
import { CATALOG_PROBLEMS, RIGHTS_PROBLEMS, type RouteDoc } from '../http/routes.ts';
import { queryExamples } from '../openapi/row-docs.ts';
import { mutableWindowWarning } from '../read/execute/warnings.ts';
import { CoverageProbe } from '../read/snapshot/session.ts';
import { admission, checkRights } from '../rights/gate.ts';
import { parseRequest, queryEnvelope } from './read.ts';

export interface EstimateDeps {
  readonly inspector: Inspector;
  readonly rights: RightsStore;
  readonly rules: EstimateRules;
  readonly maxBodyBytes: number;
}

export function estimateRoute({ inspector, rights, rules, maxBodyBytes }: EstimateDeps): Route {
  return {
    method: 'POST',
    path: '/v1/raw/estimate',
    access: 'key',
    doc: (): RouteDoc => ({
      tag: 'discovery',
      summary: 'Rows and bytes a query would answer with, without running it',
      doc: 'Takes the body of a query, checks it as a query is checked, and says in tens of milliseconds how many rows and bytes it would be, whatever the length of the history. Without filters rows are counted, by what was proved of partitions and frames. With filters they are what the database’s statistics say, and a filter that hardly any row passes is told to be likely to exceed the time budget.',
      body: querySchema,
      answers: [{ doc: 'The estimate.', content: { 'application/json': estimateAnswer } }],
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
      const { request, signal } = exchange;
      requireJson(request);
      const { datasetKey, mode, strict, window, read } = await parseRequest(
        exchange,
        { parse: parseQuery },
        maxBodyBytes,
      );
      const grant = checkRights(rights, datasetKey, backendToken(request));
      const { dataset } = read;
      const admit = admission(grant, dataset);
      const mutable = mutableWindowWarning(window);
      // Where rights depend on what is proved, both are asked below, rights first.
      if (strict && mutable.length > 0 && !admit) throw strictProblem(mutable);
      const found = await inspector.look(
        { signal, token: grant.token, contractViolationStatus: dataset.contractViolationStatus },
        () => new CoverageProbe(read),
        async (session, look) => {
          await admit?.(session);
          return await estimate(session, look, read, rules, (judgement) => queryEnvelope(read, grant, judgement));
        },
      );
      const { view } = shapeOf(dataset, mode);
      answerJson(exchange, {
        mode,
        source: datasetKey,
        sources: [datasetKey],
        ...found,
        view_id: view.id,
        view_version: view.version,
        rights_state: grant.state,
        rights_provisional: grant.provisional,
      });
    },
  };
}
