/**
 * Accepts an export: checks the request, the rights and the window; then writes the record of the intent, the row, and the record
 * of acceptance. Nothing is queued without a record, and the caller learns only of exports that are queued.
 */

import { createHash, randomUUID } from 'node:crypto';
import type { AuditPayload } from '../../shared/audit/records.ts';
import { shapeOf } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { writeJson } from '../../shared/strict-json.ts';
import { type ExportRequest, type ExportSubject, isFrame } from '../contract/export.ts';
import { Problem, type Warning } from '../contract/problems.ts';
import type { ReadRequest } from '../contract/read-request.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { strictProblem } from '../http/answer.ts';
import type { Caller } from '../http/caller.ts';
import { whyNoRows } from '../read/execute/answer.ts';
import { dryRun, type FreshnessRule, mutableWindowWarning } from '../read/execute/warnings.ts';
import { FRAME_VIEW, FrameProbe } from '../read/frame/frame.ts';
import type { PlanContext } from '../read/plan/context.ts';
import { provedThrough } from '../read/snapshot/proved-runs.ts';
import { CoverageProbe, type Session } from '../read/snapshot/session.ts';
import { AUDIT_EVENTS, type ExportAudit } from './audit.ts';
import type { ExportRow } from './rows.ts';
import { type ExportRights, exportProblem, exportRights } from './states.ts';
import type { ExportStore, NewExport, QueueLimits } from './store.ts';

/** What is known about an export before it runs. */
interface ExportDryRun {
  readonly warnings: readonly Warning[];
  readonly asOf: Date | null;
}

/** Finds the warnings of an export and whether anything of its window is proved. @throws Problem */
async function dryRunExport(
  inspector: Inspector,
  subject: ExportSubject,
  rule: FreshnessRule,
  by: Pick<Submission, 'signal' | 'caller'>,
): Promise<ExportDryRun> {
  try {
    if (isFrame(subject)) {
      const probe = () => new FrameProbe(subject);
      return await inspector.inspect(by, probe, (session, found) => dryRunFrame(session, found, rule));
    }
    return await inspector.inspect(
      by,
      () => new CoverageProbe(subject),
      (session, probe) => dryRunIn(session, probe, subject, rule),
    );
  } catch (error) {
    throw exportProblem(error);
  }
}

async function dryRunIn(
  session: Session,
  probe: CoverageProbe,
  request: ReadRequest,
  rule: FreshnessRule,
): Promise<ExportDryRun> {
  const {
    live,
    evaluation: { warnings },
  } = await dryRun(session, probe, request, rule);
  if (live.parts.length === 0) throw notProved(live, warnings);
  const asOfMs = provedThrough(live.coverage);
  return { warnings, asOf: asOfMs === undefined ? null : new Date(asOfMs) };
}

async function dryRunFrame(session: Session, probe: FrameProbe, rule: FreshnessRule): Promise<ExportDryRun> {
  const { contexts, extent, warnings } = await probe.evaluate(session, rule);
  if (!extent) throw notProved(contexts[0], warnings);
  return { warnings, asOf: null };
}

function notProved(context: PlanContext, warnings: readonly Warning[]): Problem {
  const why = whyNoRows(context, { gaps: [], parts: [], statements: [] });
  return new Problem('EXPORT_WINDOW_NOT_PROVED', `${why[0].toUpperCase()}${why.slice(1)}.`, {
    ...(warnings.length > 0 && { warnings }),
  });
}

export interface SubmitDeps {
  readonly store: ExportStore;
  readonly audit: ExportAudit;
  readonly inspector: Inspector;
  readonly rights: RightsStore;
  readonly freshness: FreshnessRule;
  readonly limits: QueueLimits;
}

interface Submission {
  readonly caller: Caller;
  readonly request: ExportRequest;
  readonly requestSha256: string;
  readonly idempotencyKey: string | null;
  /** Facts of the request for the audit log. */
  readonly facts: Readonly<Record<string, string | number | boolean | null>>;
  readonly signal: AbortSignal;
}

/** @returns the export, new or found by its idempotency key. @throws Problem */
export async function submitExport(
  deps: SubmitDeps,
  submission: Submission,
): Promise<{ readonly row: ExportRow; readonly isNew: boolean }> {
  const { store, audit, inspector, rights, freshness, limits } = deps;
  const { caller, request, requestSha256, idempotencyKey, facts, signal } = submission;
  const { admit, ...grant } = exportRights(rights, request.datasets);
  // The service checks the rights now, and again in the snapshot of the run.
  if (admit) await inspected(inspector.run({ signal, caller }, admit));
  const known =
    idempotencyKey === null ? undefined : await stored(store.findByIdempotencyKey(caller.name!, idempotencyKey));
  if (known) return knownExport(known, requestSha256);
  const mutable = mutableWindowWarning(request.window);
  if (request.strict && mutable.length > 0) throw strictProblem(mutable);
  const why = await stored(store.whyFull(caller.name!, limits));
  if (why !== undefined) throw queueFull(why);
  const { warnings, asOf } = await dryRunExport(inspector, request.subject, freshness, { signal, caller });

  const exportId = randomUUID();
  const payload = { ...facts, request: writeJson(request.body), request_sha256: requestSha256 };
  await recorded(audit.must(AUDIT_EVENTS.intent, exportId, { ...payload, ...keyFact(idempotencyKey) }));
  const row = newRow(exportId, submission, grant);
  let acceptance: 'not reached' | 'not recorded' | 'recorded' = 'not reached';
  const recordAcceptance = async () => {
    acceptance = 'not recorded';
    await audit.must(AUDIT_EVENTS.accepted, exportId, { ...facts });
    acceptance = 'recorded';
  };
  const submitted = await store.submit({ ...row, warnings, asOf }, limits, recordAcceptance).catch(async (cause) => {
    if (acceptance === 'not recorded') throw auditProblem(cause);
    if (acceptance === 'recorded') await audit.note(AUDIT_EVENTS.failed, exportId, { code: 'EXPORT_DISPATCH_ERROR' });
    throw dispatchProblem(cause);
  });
  if (submitted.kind === 'full') throw queueFull(submitted.why);
  if (submitted.kind === 'conflict') throw conflict();
  if (submitted.kind === 'known') return knownExport(submitted.row, requestSha256);
  return { row: submitted.row, isNew: true };
}

function newRow(
  exportId: string,
  { caller, request, requestSha256, idempotencyKey }: Submission,
  grant: Pick<ExportRights, 'state' | 'provisional'>,
): Omit<NewExport, 'warnings' | 'asOf'> {
  const [dataset] = request.datasets;
  const view = isFrame(request.subject) ? FRAME_VIEW : shapeOf(dataset, request.mode).view;
  return {
    exportId,
    request: request.body,
    requestSha256,
    apiKey: caller.name!,
    idempotencyKey,
    dataset: dataset.key,
    mode: request.mode,
    format: request.format,
    rightsState: grant.state,
    rightsProvisional: grant.provisional,
    viewId: view.id,
    viewVersion: view.version,
  };
}

function knownExport(row: ExportRow, requestSha256: string) {
  if (row.requestSha256 !== requestSha256) throw conflict();
  return { row, isNew: false };
}

const conflict = () =>
  new Problem(
    'EXPORT_IDEMPOTENCY_CONFLICT',
    'The Idempotency-Key belongs to an export with another body. Send the same body, or use another key.',
  );

const queueFull = (why: string) => new Problem('EXPORT_QUEUE_LIMIT_REACHED', `${why} Try again later.`);

/** The key belongs to the caller, so the log holds its digest: whoever has the key can prove it. */
const keyFact = (key: string | null): AuditPayload =>
  key === null ? {} : { idempotency_key_sha256: createHash('sha256').update(key).digest('hex') };

const auditProblem = (cause: unknown) =>
  new Problem(
    'EXPORT_AUDIT_WRITE_ERROR',
    'The audit log cannot be written, and every export must be recorded. Try again later.',
    {
      cause,
    },
  );

async function recorded<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (cause) {
    throw auditProblem(cause);
  }
}

const dispatchProblem = (cause: unknown) =>
  new Problem('EXPORT_DISPATCH_ERROR', 'The database takes no export. Try again later.', { cause });

/** @throws Problem EXPORT_DISPATCH_ERROR */
async function stored<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (cause) {
    throw dispatchProblem(cause);
  }
}

async function inspected<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw exportProblem(error);
  }
}
