/** `audit`: verifies the hash-chained log of exports, or deletes segments older than the retention. */

import { verifyAudit } from '../../../shared/audit/verify.ts';
import { pruneAudit } from '../../../shared/audit/writer.ts';
import { auditFolderOf } from '../../../shared/config/settings.ts';
import { openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, seconds } from '../output.ts';

export async function verify(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'audit');
  const { settings, pool, output } = context;
  const startedAt = performance.now();
  const directory = auditFolderOf(settings);
  // The heads are read first: a chain that grows meanwhile is longer than its recorded head, never shorter.
  const { rows } = await pool.query('select chain, sequence, hash from export_audit_heads');
  const heads = rows.map(({ chain, sequence, hash }) => ({ chain, sequence: Number(sequence), hash }));
  const report = await verifyAudit(directory, heads);
  const ok = report.findings.length === 0;
  const elapsedMs = Math.round(performance.now() - startedAt);
  output.answer({ command: 'audit', action: 'verify', ok, directory, ...report, elapsed_ms: elapsedMs }, () =>
    [
      ...report.findings.map(
        ({ fault, chain, segment, line, message }) =>
          `${fault}  ${chain}${segment === null ? '' : `/${segment}`}${line === null ? '' : `:${line}`}  ${message}`,
      ),
      `${ok ? 'Unbroken' : `${report.findings.length} ${report.findings.length === 1 ? 'finding' : 'findings'}`}: ${grouped(report.records)} records, ${report.segments} segments, ${report.chains} chains in ${seconds(elapsedMs)}`,
    ].join('\n'),
  );
  return ok ? 0 : 1;
}

export async function prune(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'audit');
  const { settings, output } = context;
  const dryRun = command.values['dry-run'] === true;
  const days = settings.SVC_AUDIT_LOG_RETENTION_DAYS;
  const directory = auditFolderOf(settings);
  const pruned = await pruneAudit(directory, days, { dryRun });
  const segments = pruned.reduce((sum, one) => sum + one.segments, 0);
  output.answer(
    { command: 'audit', action: 'prune', ok: true, directory, dry_run: dryRun, retention_days: days, segments, pruned },
    () =>
      segments === 0
        ? `No segment is older than ${days} days.`
        : `${segments} segments older than ${days} days ${dryRun ? 'would be' : 'are'} deleted.`,
  );
  return 0;
}
