/** What is recorded of exports: who asked for what, what was decided, what became of it, who took it. Never a secret. */
import type { AuditPayload, AuditRecord } from '../../shared/audit/records.ts';
import { AuditWriter } from '../../shared/audit/writer.ts';
import type { Logger } from '../../shared/log/logger.ts';
import type { ProblemCode } from '../contract/problems.ts';
import { RefusedRuns } from './refused-runs.ts';
import type { Transition } from './store.ts';

export const AUDIT_EVENTS = {
  intent: 'export_submit_intent',
  accepted: 'export_submit_accepted',
  rejected: 'export_submit_rejected',
  /** Accepted, and then it could not be queued. */
  failed: 'export_submit_failed',
  transition: 'export_transition',
  cancel: 'export_cancel_requested',
  download: 'export_download',
  refused: 'export_access_refused',
  expired: 'export_artifact_deleted',
} as const;

export interface ExportAuditOptions {
  readonly directory: string;
  readonly role: string;
  readonly log: Logger;
  readonly now?: () => number;
  /** How long refusals of an address are counted before their number is recorded. */
  readonly refusedRunMs?: number;
  /** Keeps where the chain ends in another place than the log. */
  readonly keepHead: (chain: string, sequence: number, hash: string) => Promise<void>;
}

/** Heads are kept this often at most; what was recorded since is missed by nobody if it is cut off. */
const HEAD_INTERVAL_MS = 500;
/** Refusals of requests that were not understood; all others are recorded one by one. */
const COUNTED: ReadonlySet<ProblemCode> = new Set([
  'NOT_ACCEPTABLE',
  'EXPORT_CONTRACT_ERROR',
  'EXPORT_AUTH_TOKEN_UNSUPPORTED',
]);

export class ExportAudit implements AsyncDisposable {
  readonly #writer: AuditWriter;
  readonly #options: ExportAuditOptions;
  #head: { readonly chain: string; readonly sequence: number; readonly hash: string } | undefined;
  #keeping: NodeJS.Timeout | undefined;
  #kept: Promise<void> = Promise.resolve();
  readonly #refusals: RefusedRuns;

  constructor(options: ExportAuditOptions) {
    this.#options = options;
    const { directory, role, now, refusedRunMs } = options;
    this.#refusals = new RefusedRuns({
      record: (event, payload) => this.note(event, null, payload),
      now: now ?? Date.now,
      runMs: refusedRunMs,
    });
    this.#writer = new AuditWriter({
      directory,
      role,
      now,
      onHead: (head) => {
        this.#head = head;
        this.#keeping ??= setTimeout(() => this.#keep(), HEAD_INTERVAL_MS).unref();
      },
    });
  }

  /** What must be on record before anything happens. @throws where it cannot be. */
  async must(event: string, exportId: string | null, payload: AuditPayload): Promise<AuditRecord> {
    return await this.#writer.append({ event, export_id: exportId, payload });
  }

  /** What happens whether it can be recorded or not: the log's fault stops new exports alone. */
  async note(event: string, exportId: string | null, payload: AuditPayload): Promise<void> {
    try {
      await this.must(event, exportId, payload);
    } catch (error) {
      this.#options.log.error({ err: error, event, exportId }, 'the audit log cannot be written');
    }
  }

  async transition({ event, from, row }: Transition): Promise<void> {
    await this.note(AUDIT_EVENTS.transition, row.exportId, {
      event,
      from,
      to: row.state,
      fence: row.fence,
      worker: row.worker,
      ...(row.artifact && { row_count: row.artifact.row_count, sha256: row.artifact.sha256 }),
      ...(row.errorCode !== null && { error_code: row.errorCode }),
    });
  }

  /** A key that was missing or wrong. */
  async refusedKey(payload: AuditPayload): Promise<void> {
    await this.#refusals.note(AUDIT_EVENTS.refused, payload);
  }

  /** A submit that was refused. */
  async rejected(code: ProblemCode, facts: AuditPayload): Promise<void> {
    const payload = { ...facts, code };
    if (COUNTED.has(code)) await this.#refusals.note(AUDIT_EVENTS.rejected, payload);
    else await this.note(AUDIT_EVENTS.rejected, null, payload);
  }

  #keep(): void {
    this.#keeping = undefined;
    const head = this.#head;
    if (!head) return;
    this.#kept = this.#options.keepHead(head.chain, head.sequence, head.hash).catch((error) => {
      this.#options.log.warn({ err: error }, 'where the audit log ends could not be kept');
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#refusals[Symbol.asyncDispose]();
    await this.#writer[Symbol.asyncDispose]();
    clearTimeout(this.#keeping);
    if (this.#keeping !== undefined) this.#keep();
    await this.#kept;
  }
}
