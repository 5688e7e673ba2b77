/** Builds the application: Koa over the route table. Tests can use it without a process or a port. */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import Koa from 'koa';
import { defaultInstrument } from '../shared/config/instruments.ts';
import { keepFolderOf, proofLogFolderOf, type Settings } from '../shared/config/settings.ts';
import { createPool } from '../shared/db/connect.ts';
import { registeredInstruments } from '../shared/db/instruments.ts';
import { loadKeys } from '../shared/keys/store.ts';
import type { Logger } from '../shared/logger.ts';
import { RightsStore } from '../shared/rights/store.ts';
import { ChangeFeed } from './changes/change-feed.ts';
import { Problem } from './contract/problems.ts';
import { PgPool, poolOptions } from './db/pool.ts';
import { Inspector } from './discovery/inspector.ts';
import { Instruments } from './discovery/instruments.ts';
import { LogMessageReader } from './discovery/lineage.ts';
import { ProofLog } from './discovery/proof-log.ts';
import { ProvedFiles } from './exports/files.ts';
import { ExportService } from './exports/service.ts';
import { Cors, RefusalLog } from './http/access.ts';
import { answerProblem, ClientGone } from './http/answer.ts';
import { Caller, Callers, KeyWatch } from './http/caller.ts';
import { parseTarget } from './http/request.ts';
import { type Exchange, type Route, routerOf } from './http/routes.ts';
import { awaitUnreadBody, lacksLength } from './http/unread-body.ts';
import { ConcurrencyLimiter } from './limits/concurrency-limiter.ts';
import { KeyLimits } from './limits/key-limits.ts';
import { StreamPlaces } from './limits/stream-places.ts';
import { Metrics, type Place } from './monitoring/metrics.ts';
import { Monitor } from './monitoring/monitor.ts';
import { Checks } from './monitoring/startup.ts';
import { Reader } from './read/execute/answer.ts';
import { freshnessRule } from './read/execute/warnings.ts';
import { FrameReader } from './read/frame/frame.ts';
import { BufferPool, breakOff } from './render/response.ts';
import { openers, shadowedBy } from './rights/gate.ts';
import { changesRoute } from './routes/changes.ts';
import { conditionsRoute } from './routes/conditions.ts';
import { coverageRoute } from './routes/coverage.ts';
import { datasetsRoute } from './routes/datasets.ts';
import { estimateRoute } from './routes/estimate.ts';
import { type ExportFileDeps, exportFileRoutes } from './routes/export-files.ts';
import { exportRoutes } from './routes/exports.ts';
import { healthRoutes, metricsRoute } from './routes/health.ts';
import { instrumentsRoute } from './routes/instruments.ts';
import { lakeRoutes } from './routes/lake.ts';
import { lineageRoute } from './routes/lineage.ts';
import { openapiRoutes, VERSION } from './routes/openapi.ts';
import { opsRoutes } from './routes/ops.ts';
import { pageRoutes } from './routes/page.ts';
import { PROOF_PATHS, proofRoutes } from './routes/proofs.ts';
import type { ReadRouteDeps } from './routes/read.ts';
import { frameRoute, historicalRoutes, queryRoute } from './routes/read.ts';
import { revisionRoutes } from './routes/revisions.ts';
import { type SignIn, signInRoute } from './routes/sign-in.ts';

interface AppDeps {
  readonly settings: Settings;
  readonly databaseUrl: string;
  readonly apiKey: string;
  readonly identity?: string;
  readonly rightsMatrixPath: string;
  readonly log: Logger;
  readonly now?: () => number;
  /** The most time that the log may take to answer, ms. */
  readonly logTimeoutMs?: number;
  /** Among several processes on the same port. */
  readonly place?: Place;
  /** Where a link signs in. */
  readonly signIn?: SignIn;
}

export interface App extends AsyncDisposable {
  readonly koa: Koa;
  readonly checks: Checks;
  readonly limiters: Readonly<Record<'plain' | 'aligned', ConcurrencyLimiter>>;
  readonly pool: PgPool;
  readonly monitor: Monitor;
  readonly metrics: Metrics;
  readonly exports: ExportService;
  readonly changes: ChangeFeed;
  readonly refusals: RefusalLog;
}

export function createApp(deps: AppDeps): App {
  const { settings, log } = deps;
  const keyPool = createPool({ url: deps.databaseUrl, name: 'tidemark keys', max: 1, ...KEY_TIMEOUTS });
  const instruments = new Instruments(settings, () => registeredInstruments(keyPool));
  const services = createServices(deps);
  const { pool, limiters, logReader, checks, monitor, metrics, exports, changes } = services;
  const callers = new Callers({
    owner: [deps.apiKey, settings.SVC_INTERNAL_API_KEY_PREVIOUS],
    scraper: settings.SVC_METRICS_KEY,
    load: () => loadKeys(keyPool),
    symbolOf: (dataset) => dataset.instrument ?? defaultInstrument(settings, dataset),
  });
  const refusals = new RefusalLog(log);
  const origins = settings.SVC_HTTP_CORS_ORIGINS;
  const cors = origins.length > 0 ? new Cors(origins) : undefined;
  return {
    koa: createKoa(createRoutes({ ...services, instruments }, deps), { callers, cors, metrics, log, refusals }),
    refusals,
    checks,
    limiters,
    pool,
    monitor,
    metrics,
    exports,
    changes,
    async [Symbol.asyncDispose]() {
      logReader.stopConnecting();
      await changes[Symbol.asyncDispose]();
      refusals[Symbol.dispose]();
      await exports[Symbol.asyncDispose]();
      await monitor[Symbol.asyncDispose]();
      await logReader[Symbol.asyncDispose]();
      await pool[Symbol.asyncDispose]();
      await keyPool.end();
    },
  };
}

/** A look-up of keys reads one small table. Callers wait for it, so it is refused early. */
const KEY_TIMEOUTS = { connectTimeoutMs: 2000, statementTimeoutMs: 2000 };

/** The services behind the routes. */
function createServices(deps: AppDeps) {
  const { settings, databaseUrl, log, now } = deps;
  const pool = new PgPool(poolOptions(databaseUrl));
  const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
  const rights = new RightsStore(deps.rightsMatrixPath, { byokRole, log, shadowed: shadowedBy(settings) });
  const limiters = createLimiters(settings);
  const logUrl = (settings.SVC_NATS_READER_URL ?? settings.SVC_NATS_URL)?.href;
  const logReader = new LogMessageReader(logUrl, log, deps.logTimeoutMs);
  const budget = {
    firstRowMs: settings.limits.firstRowMs,
    nextRowMs: settings.limits.nextRowMs,
  };
  const freshness = freshnessRule(settings, now);
  const checks = new Checks({ pool, rights, byokRole, log });
  const queues = {
    native: limiters.plain,
    aligned: limiters.aligned,
    discovery: limiters.discovery,
    lineage: limiters.lineage,
  };
  const monitor = new Monitor({
    databaseUrl: settings.SVC_DATABASE_MONITOR_URL?.href ?? databaseUrl,
    manager: () => logReader.manager(),
    log,
    now,
  });
  const changes = new ChangeFeed({
    databaseUrl,
    limits: {
      heartbeatMs: settings.limits.heartbeatMs,
      stallMs: settings.limits.stallMs,
    },
    openers: () => openers(rights),
    log,
  });
  const places = new StreamPlaces(settings.SVC_CHANGES_MAX_LISTENERS);
  const metrics = new Metrics({
    status: () => monitor.status(),
    checks: () => checks.run(),
    queues,
    listeners: () => ({
      ...{ listeners: places.taken, limit: places.limit },
      evicted: changes.load.evicted + places.displaced,
    }),
    connections: () => pool.open,
    version: VERSION,
    place: deps.place,
  });
  return {
    pool,
    rights,
    limiters,
    queues,
    changes,
    places,
    proofLog: new ProofLog(proofLogFolderOf(settings), log),
    inspector: new Inspector({ pool, byokRole, limiter: limiters.discovery }),
    logReader,
    budget,
    freshness,
    reader: new Reader({
      pool,
      byokRole,
      budget,
      granuleLookupRows: settings.limits.granuleLookupRows,
      log,
      ...freshness,
    }),
    frames: new FrameReader({
      ...{ pool, byokRole, budget, log, ...freshness },
      confirmations: settings.SVC_BITCOIN_CONFIRMATION_DEPTH,
    }),
    checks,
    monitor,
    metrics,
    exports: new ExportService({ settings, databaseUrl, rights, freshness, log, role: 'serving' }),
  };
}

/** One limiter per queue. Lineage has its own, so that a slow log does not hold up the catalog. */
function createLimiters(settings: Settings) {
  const timeoutMs = settings.limits.queueMs;
  const discoveryLimiter = () =>
    new ConcurrencyLimiter({
      running: settings.limits.discoveryRunning,
      waiting: settings.limits.discoveryWaiting,
      timeoutMs,
      code: 'QUERY_QUEUE_LIMIT_REACHED',
    });
  return {
    plain: new ConcurrencyLimiter({
      running: settings.SVC_QUERY_MAX_CONCURRENCY,
      waiting: settings.SVC_QUERY_MAX_QUEUE,
      timeoutMs,
      code: 'QUERY_QUEUE_LIMIT_REACHED',
    }),
    aligned: new ConcurrencyLimiter({
      running: settings.SVC_ALIGNED_QUERY_MAX_CONCURRENCY,
      waiting: settings.SVC_ALIGNED_QUERY_MAX_QUEUE,
      timeoutMs,
      code: 'ALIGNED_QUERY_QUEUE_LIMIT_REACHED',
    }),
    discovery: discoveryLimiter(),
    lineage: discoveryLimiter(),
  };
}

function createRoutes(
  services: ReturnType<typeof createServices> & { readonly instruments: Instruments },
  { settings, identity, log, signIn, now = Date.now }: AppDeps,
): Route[] {
  const { rights, limiters, queues, inspector, instruments, budget, freshness, checks, monitor, metrics, exports } =
    services;
  const stallTimeoutMs = settings.limits.stallMs;
  const reads: ReadRouteDeps = {
    reader: services.reader,
    instruments,
    rights,
    plainLimiter: limiters.plain,
    alignedLimiter: limiters.aligned,
    buffers: new BufferPool(),
    stallTimeoutMs,
    log,
    observe: (labels, seconds, rows) => metrics.read(labels, seconds, rows),
  };
  const exportDeps: ExportFileDeps = {
    store: exports.store,
    audit: exports.audit,
    directories: exports.directories,
    limits: exports.limits,
    inspector,
    instruments,
    rights,
    freshness,
    files: new ProvedFiles(),
    stallTimeoutMs,
  };
  const described = [
    ...healthRoutes(checks, identity),
    queryRoute(reads),
    frameRoute({ ...reads, frames: services.frames }),
    ...historicalRoutes(reads),
    ...exportRoutes(exportDeps),
    ...exportFileRoutes(exportDeps),
    datasetsRoute({ inspector, rights }),
    instrumentsRoute({ inspector, instruments }),
    coverageRoute({ inspector, instruments, proofLog: services.proofLog, rights }),
    conditionsRoute({ inspector, instruments, rights, now }),
    estimateRoute({ inspector, instruments, rights, rules: { budget, freshness } }),
    lineageRoute({
      inspector,
      instruments,
      rights,
      log: services.logReader,
      limiter: limiters.lineage,
      proofLog: services.proofLog,
    }),
    ...revisionRoutes({
      inspector,
      instruments,
      rights,
      folder: keepFolderOf(settings),
      files: new ProvedFiles(),
      stallTimeoutMs,
    }),
    changesRoute({ feed: services.changes, limiter: limiters.discovery, places: services.places }),
    ...lakeRoutes({ inspector, instruments, folder: settings.SVC_LAKE_FOLDER, rights, stallTimeoutMs }),
    ...proofRoutes(services.proofLog.source),
    ...opsRoutes({ monitor, checks, queues, changes: services.changes, places: services.places }),
    metricsRoute(metrics),
    ...pageRoutes(),
  ];
  return [...described, ...openapiRoutes(described), ...(signIn ? [signInRoute(signIn)] : [])];
}

/** The service uses the caller's request id if it has this form. */
const REQUEST_ID = /^[A-Za-z0-9._-]{1,128}$/;

interface KoaDeps {
  readonly callers: Callers;
  /** Undefined where no page of another origin may call. */
  readonly cors: Cors | undefined;
  readonly metrics: Metrics;
  readonly log: Logger;
  readonly refusals: RefusalLog;
}

/** Any page may read the proof log: no key is needed. */
const OF_ANY_PAGE = new Cors(['*'], { shared: true });

function createKoa(routes: readonly Route[], { callers, cors, metrics, log, refusals }: KoaDeps): Koa {
  const corsOf = ({ url }: IncomingMessage) => (url!.startsWith(PROOF_PATHS) ? OF_ANY_PAGE : cors);
  const koa = new Koa();
  koa.silent = true;
  koa.use(async (context, next) => {
    const { req: request, res: response } = context;
    const offered = request.headers['x-request-id'];
    const requestId = typeof offered === 'string' && REQUEST_ID.test(offered) ? offered : randomUUID();
    // Handlers write to the response themselves: they stream bodies from pooled buffers.
    context.respond = false;
    context.state.requestId = requestId;
    measure(context, metrics);
    response.setHeader('X-Request-Id', requestId);
    corsOf(request)?.allow(request, response);
    try {
      const url = parseTarget(request.url!);
      context.state.url = url;
      // Koa reads the path from here, and would parse an absolute URL differently.
      request.url = url.pathname + url.search;
      await next();
    } catch (error) {
      if (error instanceof ClientGone) {
        log.debug({ requestId }, 'the client closed the connection');
        response.destroy();
        return;
      }
      await awaitUnreadBody(request);
      const key: string | null = context.state.caller?.name ?? null;
      if (error instanceof Problem) {
        if (key !== null) metrics.keyRefusal(key, error.code);
        refusals.note(error.code, error.message, { requestId, clientAddress: request.socket.remoteAddress, key });
      }
      answerProblem(response, error, requestId, key === null ? log : log.child({ key }));
    }
  });
  const dispatch = dispatcher({ callers, log });
  koa.use(
    routerOf(routes, dispatch, ({ req: request, res: response }, methods) => {
      const answering = corsOf(request);
      if (!answering?.isPreflight(request)) return false;
      answering.answerPreflight(response, methods);
      return true;
    }),
  );
  return koa;
}

/** Hands a request to its route, if its key may use it. */
function dispatcher({ callers, log }: Pick<KoaDeps, 'callers' | 'log'>): Parameters<typeof routerOf>[1] {
  const limits = new KeyLimits();
  const watch = new KeyWatch(callers);
  return async (route, { req: request, res: response, state }, params) => {
    const gone = new AbortController();
    let endWatch = () => {};
    response.on('close', () => {
      endWatch();
      if (!response.writableFinished) gone.abort(new ClientGone());
    });
    state.route = route.path;
    if (lacksLength(request)) {
      throw new Problem(
        'HTTP_LENGTH_REQUIRED',
        'The request has neither Content-Length nor Transfer-Encoding, so the end of its body is unknown. Send one of them.',
      );
    }
    const { url, requestId } = state;
    let caller = Caller.ANONYMOUS;
    let endRead = () => {};
    const exchangeOf = (): Exchange => ({
      ...{ request, response, url, params, requestId, caller, signal: gone.signal },
      log: caller.isNamed ? log.child({ key: caller.name }) : log,
    });
    if (route.access !== 'open') {
      try {
        const identified = await callers.identify(request, route.access);
        caller = identified.caller;
        state.caller = caller;
        // The client may have gone meanwhile, and `close` comes once.
        gone.signal.throwIfAborted();
        if (identified.refusal) throw identified.refusal;
        if (caller.isNamed) limits.countRequest(caller, response);
        caller.requireScope(route.access);
        if (caller.isNamed) endRead = limits.beginRead(caller, route.access);
      } catch (error) {
        if (error instanceof Problem) await route.keyRefused?.(exchangeOf(), error.code);
        throw error;
      }
      if (caller.isNamed) {
        endWatch = watch.watch(request, route.access, (refusal) => {
          endWatch();
          gone.abort(refusal);
          if (response.headersSent) breakOff(response);
        });
      }
    }
    try {
      await route.handle(exchangeOf());
    } finally {
      endRead();
    }
  };
}

/** Counts the request. A path without a route gets the label `none`; otherwise anybody could create new labels. */
function measure({ req: request, res: response, state }: Koa.Context, metrics: Metrics): void {
  const startedAt = performance.now();
  response.once('close', () => {
    const status = response.writableFinished ? response.statusCode : 0;
    const labels = {
      method: METHODS.has(request.method ?? '') ? request.method! : 'other',
      route: state.route ?? 'none',
      status,
    };
    metrics.request(labels, (performance.now() - startedAt) / 1000);
    if (state.caller) metrics.keyRequest(state.caller.name, status);
  });
}

const METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS']);
