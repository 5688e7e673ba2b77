/** `recover`: database and log put in step after they were restored to different points. A plan first, then the act. */

import { jetstreamManager } from '@nats-io/jetstream';
import { connect } from '../../../shared/db/connect.ts';
import { Run } from '../../../shared/db/runs.ts';
import { REWOUND } from '../../project/checkpoint.ts';
import { type RecoveryPlan, recover, recoveryPlan } from '../../prove/recover.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../exit.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';
import { selectedDatasets } from '../over-partitions.ts';

/** Partitions that are named in the text; `--json` names all. */
const MAX_NAMED = 20;

export async function runRecover(command: ParsedCommand): Promise<number> {
  const datasets = selectedDatasets(command.positionals);
  const dryRun = command.values['dry-run'] === true;
  const reason = (command.values.reason as string | undefined) ?? 'the two stores were not in step';
  await using context = await openContext(command, 'recover');
  const databaseUrl = context.databaseUrls.ingest;
  await using client = await connect({ url: databaseUrl, name: 'tidemark recover' });
  const connection = await context.nats('operator');
  await jetstreamManager(connection);
  const plans: RecoveryPlan[] = [];
  for (const dataset of datasets) {
    const needs = { client, connection, dataset };
    const plan = await recoveryPlan(needs);
    if (dryRun || !REWOUND.has(plan.verdict)) {
      plans.push(plan);
      continue;
    }
    await using run = await Run.open({
      databaseUrl,
      kind: 'recover',
      subject: dataset.key,
      datasets: [dataset],
      command: command.line,
      exclusive: true,
    });
    plans.push(await recover(needs, reason));
    await run.end('done');
  }
  const changed = plans.filter(({ verdict }) => REWOUND.has(verdict)).length;
  context.output.answer({ command: 'recover', ok: true, dry_run: dryRun, changed: dryRun ? 0 : changed, plans }, () =>
    describe(plans, dryRun),
  );
  return EXIT.DONE;
}

function describe(plans: readonly RecoveryPlan[], dryRun: boolean): string {
  const rows = plans.map((plan) => [
    plan.dataset,
    plan.verdict,
    plan.checkpoint_sequence,
    plan.common_sequence,
    plan.lost.length,
  ]);
  const lines = [
    table(['dataset', 'verdict', 'checkpoint', dryRun ? 'would become' : 'now', 'lost from the log'], rows),
  ];
  for (const { dataset, lost } of plans.filter((plan) => plan.lost.length > 0)) {
    const named = lost.slice(0, MAX_NAMED).join(' ');
    const more = lost.length > MAX_NAMED ? ` and ${lost.length - MAX_NAMED} more` : '';
    lines.push(
      '',
      `${dataset}: served as before, and to be put into the log again by \`./tidemark reingest\`: ${named}${more}`,
    );
  }
  return lines.join('\n');
}
