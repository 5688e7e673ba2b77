/** `explain`: asks the running HTTP service how much of the history a query would search. */

import { TidemarkError } from '../../../shared/errors.ts';
import { detailOf } from '../../../shared/mirror/source.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, table } from '../output.ts';
import { runningService } from '../running.ts';

const DEFAULT_PORT = 8080;
const ANSWER_TIMEOUT_MS = 60_000;

/** The members of POST /v1/raw/estimate that are shown. */
interface Estimate {
  readonly source: string;
  readonly rows: number;
  readonly rows_is_exact: boolean;
  readonly rows_searched: number;
  readonly ruled_out: Readonly<Record<string, number>> | null;
  readonly partitions: number | null;
}

export async function runExplain(command: ParsedCommand): Promise<number> {
  const [request] = command.positionals;
  if (!isJson(request)) {
    throw new TidemarkError('USAGE', `The request must be the JSON body of a query, got ${request.slice(0, 80)}`);
  }
  await using context = await openContext(command, 'explain');
  const { settings, stack, output } = context;
  const given = command.values.url as string | undefined;
  const running = given === undefined ? await runningService(settings.SVC_STATE_DIR) : undefined;
  const base = given ?? running?.url ?? `http://${settings.SVC_HTTP_HOST}:${settings.SVC_HTTP_PORT ?? DEFAULT_PORT}`;
  const found = await estimateOf(base, request, settings.SVC_INTERNAL_API_KEY ?? stack.apiKey ?? '');
  const { source, rows, rows_is_exact, rows_searched, ruled_out, partitions } = found;
  output.answer(
    { command: 'explain', ok: true, source, partitions, ...ruled_out, rows_searched, rows, rows_is_exact },
    () => {
      const about = rows_is_exact ? '' : 'about ';
      const answer = `${source}: ${about}${grouped(rows)} rows of ${grouped(rows_searched)} searched`;
      if (!ruled_out)
        return `${answer}. Ranges of values rule nothing out: the query has no filters, or the dataset is not of trades.`;
      const lines = ['partitions', 'frames'].map((what) => [
        what,
        ruled_out[`${what}_read`],
        ruled_out[`${what}_skipped`],
      ]);
      return `${answer}\n${table(['', 'read', 'skipped'], lines)}`;
    },
  );
  return EXIT.DONE;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** @throws TidemarkError USAGE, SERVICE_UNREACHABLE, SERVICE_REFUSED */
async function estimateOf(base: string, body: string, apiKey: string): Promise<Estimate> {
  if (!/^https?:\/\//i.test(base) || !URL.canParse(base))
    throw new TidemarkError('USAGE', `--url must be an http or https URL, got ${base}`);
  let response: Response;
  let text: string;
  try {
    response = await fetch(`${base.replace(/\/+$/, '')}/v1/raw/estimate`, {
      method: 'POST',
      headers: { 'X-API-Key': apiKey, 'Content-Type': 'application/json' },
      body,
      // The key is for this address alone.
      redirect: 'manual',
      signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
    });
    text = await response.text();
  } catch (cause) {
    throw new TidemarkError('SERVICE_UNREACHABLE', `No HTTP service answers at ${base}`, { cause });
  }
  if (!response.ok) {
    const said = detailOf(text);
    throw new TidemarkError('SERVICE_REFUSED', `${base} answered ${response.status}${said === '' ? '' : `: ${said}`}`);
  }
  return JSON.parse(text) as Estimate;
}
