/** The application: Koa over the route table. It can be tested without a process or a port of its own. */
import { randomUUID } from 'node:crypto';
import Koa from 'koa';
import type { Settings } from '../shared/config/settings.ts';
import type { Logger } from '../shared/log/logger.ts';
import { WirePool } from './db/pool.ts';
import { discardBody } from './http/body.ts';
import { ClientGone } from './http/client-gone.ts';
import { KeyCheck } from './http/key.ts';
import { answerProblem } from './http/problem-response.ts';
import { type Route, routerOf } from './http/routes.ts';
import { Slots } from './limits/slots.ts';
import { Reader } from './read/reader.ts';
import { BufferPool } from './rendering/response.ts';
import { RightsStore } from './rights/store.ts';
import { healthRoutes } from './routes/health.ts';
import { queryRoute } from './routes/query.ts';
import { Checks } from './startup.ts';

export interface AppDeps {
  readonly settings: Settings;
  readonly databaseUrl: string;
  readonly apiKey: string;
  readonly rightsMatrixPath: string;
  readonly log: Logger;
  readonly now?: () => number;
}

export interface App extends AsyncDisposable {
  readonly koa: Koa;
  readonly checks: Checks;
  readonly slots: { readonly plain: Slots; readonly aligned: Slots };
  readonly pool: WirePool;
}

export function createApp(deps: AppDeps): App {
  const { settings, log } = deps;
  const pool = new WirePool({ url: deps.databaseUrl, name: 'tidemark serving', connectTimeoutMs: 5000 });
  const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
  const rights = new RightsStore(deps.rightsMatrixPath, { byokRole, log });
  const timeoutMs = settings.SVC_QUERY_QUEUE_TIMEOUT_MS;
  const slots = {
    plain: new Slots({
      running: settings.SVC_QUERY_MAX_CONCURRENCY,
      waiting: settings.SVC_QUERY_MAX_QUEUE,
      timeoutMs,
      code: 'QUERY_QUEUE_LIMIT_REACHED',
    }),
    aligned: new Slots({
      running: settings.SVC_ALIGNED_QUERY_MAX_CONCURRENCY,
      waiting: settings.SVC_ALIGNED_QUERY_MAX_QUEUE,
      timeoutMs,
      code: 'ALIGNED_QUERY_QUEUE_LIMIT_REACHED',
    }),
  };
  const reader = new Reader({
    pool,
    byokRole,
    firstRowTimeoutMs: settings.SVC_QUERY_FIRST_ROW_TIMEOUT_MS,
    alignedMaxAgeSeconds: settings.SVC_ALIGNED_FRESHNESS_MAX_AGE_SECONDS,
    now: deps.now ?? Date.now,
  });
  const checks = new Checks({ pool, rights, log });
  const routes = [
    ...healthRoutes(checks),
    queryRoute({
      reader,
      rights,
      plainSlots: slots.plain,
      alignedSlots: slots.aligned,
      buffers: new BufferPool(),
      maxBodyBytes: settings.SVC_HTTP_MAX_BODY_BYTES,
      stallTimeoutMs: settings.SVC_QUERY_STALL_TIMEOUT_MS,
      log,
    }),
  ];
  const keys = new KeyCheck([deps.apiKey, settings.SVC_INTERNAL_API_KEY_PREVIOUS]);
  return {
    koa: createKoa(routes, keys, log),
    checks,
    slots,
    pool,
    [Symbol.asyncDispose]: () => pool[Symbol.asyncDispose](),
  };
}

/** A caller's own id is kept when it is one: letters, digits and a few signs. */
const REQUEST_ID = /^[A-Za-z0-9._-]{1,128}$/;

function createKoa(routes: readonly Route[], keys: KeyCheck, log: Logger): Koa {
  const koa = new Koa();
  koa.silent = true;
  koa.use(async (context, next) => {
    const { req: request, res: response } = context;
    const offered = request.headers['x-request-id'];
    const requestId = typeof offered === 'string' && REQUEST_ID.test(offered) ? offered : randomUUID();
    // Handlers write to the response themselves: bodies are streamed from buffers that go round.
    context.respond = false;
    context.state.requestId = requestId;
    response.setHeader('X-Request-Id', requestId);
    try {
      await next();
    } catch (error) {
      if (error instanceof ClientGone) {
        log.debug({ requestId }, 'the client went away');
        response.destroy();
        return;
      }
      await discardBody(request);
      answerProblem(response, error, requestId, log);
    }
  });
  koa.use(
    routerOf(routes, async (route, { req: request, res: response, state }, params) => {
      const gone = new AbortController();
      response.on('close', () => {
        if (!response.writableFinished) gone.abort(new ClientGone());
      });
      if (route.access === 'key') keys.check(request);
      const url = new URL(request.url ?? '/', 'http://service');
      await route.handle({ request, response, url, params, requestId: state.requestId, log, signal: gone.signal });
    }),
  );
  return koa;
}
