/**
 * `backfill` and `reingest`: plan documents, publish them to the log, and await the proof of each partition.
 */
import { codeOf, explain, outageCode, TidemarkError } from '../../../shared/errors.ts';
import { type Plan, type PlannedRun, runsOfPlan } from '../../publisher/publish-plan.ts';
import type { Feed, Selection } from '../../sources/feed-types.ts';
import { feedOf } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import { archivedOf, checkSelection, type IngestRequest, ingest, planned } from '../ingest.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { SELECTING } from '../options.ts';
import { Summary, table } from '../output.ts';
import { selectedFeeds } from '../over-partitions.ts';
import { settingsFor } from '../pinned.ts';
import type { WaitingProjector } from '../projector.ts';

/** While one feed waits for its vendor, the other publishes: a third would have no core of its own. */
const FEEDS_AT_ONCE = 2;

export const runBackfill = (command: ParsedCommand, waiting?: WaitingProjector): Promise<number> =>
  fromSources(command, 'backfill', waiting);

export async function runReingest(command: ParsedCommand, waiting?: WaitingProjector): Promise<number> {
  if (command.values.kept === true) return await fromArchive(command, waiting);
  if (command.values.reason === undefined)
    throw new TidemarkError('USAGE', 'reingest needs --reason: it is kept in the ledger');
  return await fromSources(command, 'reingest', waiting);
}

async function fromSources(
  command: ParsedCommand,
  kind: 'backfill' | 'reingest',
  waiting: WaitingProjector | undefined,
): Promise<number> {
  const { reason, compare } = command.values as { reason?: string; compare?: boolean };
  const named = command.positionals.includes('all') ? [] : selectedFeeds(command.positionals, {} as never);
  for (const feed of named) checkSelection(feed, selectionFor(feed, command, named.length > 1));
  await using context = await openContext(command, kind);
  const chosen = selectedFeeds(command.positionals, context.settings);
  await settingsFor(context, chosen);
  const requestOf = (feed: Feed): IngestRequest => {
    const selection = selectionFor(feed, command, chosen.length > 1);
    checkSelection(feed, selection);
    return { kind, line: command.line, selection, reason, compare, synthetic: false, waiting };
  };
  if (command.values['dry-run'] === true) return await showPlans(context, kind, chosen, requestOf);
  const summary = new Summary(kind, chosen, context.output);
  await inParallel(chosen, FEEDS_AT_ONCE, async (feed) => {
    if (context.signal.aborted) return;
    try {
      await backfillOne(context, feed, requestOf(feed), summary);
    } catch (error) {
      // With several feeds, a feed that fails does not stop the others.
      if (chosen.length === 1 && !context.signal.aborted) throw error;
      const code = context.signal.aborted ? 'INTERRUPTED' : (codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED');
      summary.of(feed).error = { code, message: explain(error) };
    }
  });
  return exitOf(context, summary);
}

/** Parses archived documents again. Publishes missing partitions; with a reason, replaces those that differ. */
async function fromArchive(command: ParsedCommand, waiting: WaitingProjector | undefined): Promise<number> {
  const { positionals, values } = command;
  if (positionals.length > 1) throw new TidemarkError('USAGE', '--kept takes one feed');
  if (values['dry-run'] === true) throw new TidemarkError('USAGE', '--kept has no plan to show: leave --dry-run out');
  const feed = feedOf(positionals[0]);
  const { reason } = values as { reason?: string };
  const options = Object.fromEntries(SELECTING.map((name) => [name, values[name] as string]));
  const selection = { options, reingest: reason !== undefined };
  checkSelection({ name: feed.name, options: archivedOf(feed).options }, selection);
  await using context = await openContext(command, 'reingest');
  const summary = new Summary('reingest', [feed], context.output);
  const request = {
    kind: 'reingest',
    line: command.line,
    selection,
    reason,
    fromArchive: true,
    synthetic: false,
    waiting,
  } as const;
  await backfillOne(context, feed, request, summary);
  return exitOf(context, summary);
}

function exitOf({ signal }: Context, summary: Summary): number {
  const interrupted = signal.aborted;
  const ok = summary.answer(interrupted);
  return interrupted ? EXIT.INTERRUPTED : ok ? EXIT.DONE : EXIT.FAILED;
}

async function backfillOne(context: Context, feed: Feed, request: IngestRequest, summary: Summary): Promise<void> {
  let skipped = 0;
  const onPlan = (plan: Plan) => {
    const { skip, ...rest } = plan.partitions;
    skipped = plan.skipped.length;
    const left = Object.values(rest).reduce((sum, count) => sum + count, 0);
    summary.of(feed).planned = skip + left;
    if (skipped > 0)
      context.output.note(`${feed.name}: ${skip} of ${skip + left} partitions are proved; still to do: ${left}`);
  };
  for await (const unit of ingest(context, feed, { ...request, onPlan })) summary.add(feed, unit, skipped-- > 0);
}

/** Runs at most `limit` items at once, started in order. */
async function inParallel<T>(items: readonly T[], limit: number, work: (item: T) => Promise<void>): Promise<void> {
  const left = [...items];
  const worker = async () => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
}

/** With several feeds, each takes the options that it knows; a single feed refuses unknown ones. */
function selectionFor(feed: Feed, { values, positionals }: ParsedCommand, several: boolean): Selection {
  const known = new Set([...feed.options.required, ...(feed.options.optional ?? [])]);
  const given = SELECTING.filter((name) => values[name] !== undefined);
  const taken = several ? given.filter((name) => known.has(name)) : given;
  if (several && given.length > 0 && taken.length === 0 && !positionals.includes('all')) {
    throw new TidemarkError('USAGE', `${feed.name} does not take ${given.map((name) => `--${name}`).join(' ')}`);
  }
  const options = Object.fromEntries(taken.map((name) => [name, values[name] as string]));
  return { options, reingest: values.reason !== undefined };
}

async function showPlans(
  context: Context,
  command: string,
  chosen: readonly Feed[],
  requestOf: (feed: Feed) => IngestRequest,
): Promise<number> {
  const plans: { feed: string; partitions: Plan['partitions'] | null; runs: PlannedRun[] }[] = [];
  for (const feed of chosen) {
    const plan = await planned(context, feed, requestOf(feed));
    plans.push({ feed: feed.name, partitions: plan?.partitions ?? null, runs: plan ? runsOfPlan(plan) : [] });
  }
  context.output.answer({ command, ok: true, dry_run: true, plans }, () => plans.map(describePlan).join('\n\n'));
  return EXIT.DONE;
}

const MEANINGS = {
  fetch: 'to be fetched',
  replace: 'to be fetched as a new revision',
  compare: 'proved; will be compared with the source',
  skip: 'proved',
  held: 'quarantined; `./tidemark quarantine` shows why',
} as const;

function describePlan({
  feed,
  partitions,
  runs,
}: {
  feed: string;
  partitions: Plan['partitions'] | null;
  runs: PlannedRun[];
}) {
  if (!partitions) return `${feed}: no plan in advance; the source lists its documents during the backfill.`;
  const rows = runs.map((run) => [run.from, run.to, run.documents, run.partitions, MEANINGS[run.action]]);
  const counts = Object.entries(partitions).filter(([, count]) => count > 0);
  const total = counts.map(([action, count]) => `${count} ${action}`).join(', ') || 'nothing';
  return `${feed}: ${total}\n${table(['from', 'to', 'documents', 'partitions', ''], rows)}`;
}
