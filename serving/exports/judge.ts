/** What can be said of an export before it runs: its warnings, and whether anything of its window is proved. */

import { Problem, type Warning } from '../contract/problems.ts';
import type { Inspector } from '../discovery/inspector.ts';
import { whyNoRows } from '../read/answer.ts';
import { provedThrough } from '../read/coverage.ts';
import { type FreshnessRule, foresee } from '../read/judge.ts';
import { Look, type Session } from '../read/session.ts';
import type { ReadRequest } from '../read/types.ts';
import { exportProblem } from './problems.ts';

export interface Judged {
  readonly warnings: readonly Warning[];
  readonly asOf: Date | null;
}

/** @throws Problem */
export async function judgeExport(
  inspector: Inspector,
  request: ReadRequest,
  rule: FreshnessRule,
  signal: AbortSignal,
): Promise<Judged> {
  const { contractViolationStatus } = request.dataset;
  try {
    return await inspector.look(
      { signal, contractViolationStatus },
      () => new Look(request),
      (session, look) => judged(session, look, request, rule),
    );
  } catch (error) {
    throw exportProblem(error);
  }
}

async function judged(session: Session, look: Look, request: ReadRequest, rule: FreshnessRule): Promise<Judged> {
  const {
    live,
    judgement: { warnings },
  } = await foresee(session, look, request, rule);
  if (live.parts.length === 0) {
    const why = whyNoRows(live, { gaps: [], parts: [], statements: [] });
    throw new Problem('EXPORT_WINDOW_NOT_PROVED', `${why[0].toUpperCase()}${why.slice(1)}.`, {
      ...(warnings.length > 0 && { warnings }),
    });
  }
  const asOfMs = provedThrough(live.coverage);
  return { warnings, asOf: asOfMs === undefined ? null : new Date(asOfMs) };
}
