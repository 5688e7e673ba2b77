/** `runs`: what is at work, and what was. */
import { latestRuns, openRuns } from '../../../shared/db/runs.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';

export async function runRuns(command: ParsedCommand): Promise<number> {
  const limit = Number(command.values.limit ?? 20);
  await using context = await openContext(command, 'runs');
  const runs = command.values.open === true ? await openRuns(context.pool) : await latestRuns(context.pool, limit);
  context.output.answer({ command: 'runs', ok: true, runs }, () =>
    runs.length === 0
      ? 'Nothing.'
      : table(
          ['run', 'state', 'kind', 'subject', 'done', 'planned', 'failed', 'rows', 'who', 'since', 'fault'],
          runs.map((run) => [
            run.run_id,
            run.state,
            run.kind,
            run.subject,
            run.proved + run.unchanged,
            run.planned ?? '-',
            run.failed + run.refused + run.quarantined,
            run.rows,
            `${run.host}:${run.pid}`,
            run.started_at_utc,
            run.fault ?? '',
          ]),
        ),
  );
  return EXIT.DONE;
}
