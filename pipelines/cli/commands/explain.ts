/** `explain`: asks the running HTTP service how much of the history a query would search. */

import { TidemarkError } from '../../../shared/errors.ts';
import { detailOf } from '../../../shared/mirror/source.ts';
import { printable } from '../../../shared/proof-log/printable.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { grouped, table } from '../output.ts';
import { provenService } from '../running.ts';

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
  const { settings, stack, output, signal } = context;
  const given = command.values.url as string | undefined;
  const named = command.io.env.TIDEMARK_KEY ?? settings.SVC_INTERNAL_API_KEY;
  if (given !== undefined && named === undefined) {
    throw new TidemarkError(
      'USAGE',
      'With --url the key of that service must be in TIDEMARK_KEY: the key of the state folder is not sent elsewhere',
    );
  }
  const base = given ?? (await provenService(settings.SVC_STATE_DIR)).url;
  const key = given === undefined ? (settings.SVC_INTERNAL_API_KEY ?? stack.apiKey) : named;
  const found = await estimateOf(base, request, key ?? '', signal);
  const { source, rows, rows_is_exact, rows_searched, ruled_out, partitions } = found;
  output.answer(
    { command: 'explain', ok: true, source, partitions, ...ruled_out, rows_searched, rows, rows_is_exact },
    () => {
      const about = rows_is_exact ? '' : 'about ';
      const answer = `${printable(String(source))}: ${about}${grouped(rows)} rows of ${grouped(rows_searched)} searched`;
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

/** @throws TidemarkError USAGE, SERVICE_UNREACHABLE, SERVICE_REFUSED; the reason of the signal */
async function estimateOf(base: string, body: string, apiKey: string, signal: AbortSignal): Promise<Estimate> {
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
      signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_TIMEOUT_MS)]),
    });
    text = await response.text();
  } catch (cause) {
    signal.throwIfAborted();
    throw new TidemarkError('SERVICE_UNREACHABLE', `No HTTP service answers at ${base}`, { cause });
  }
  if (!response.ok) {
    const said = printable(detailOf(text));
    throw new TidemarkError('SERVICE_REFUSED', `${base} answered ${response.status}${said === '' ? '' : `: ${said}`}`);
  }
  const found = isJson(text) ? (JSON.parse(text) as Estimate | null) : undefined;
  const numbers = [found?.rows, found?.rows_searched];
  if (typeof found?.source !== 'string' || numbers.some((one) => typeof one !== 'number'))
    throw new TidemarkError(
      'SERVICE_REFUSED',
      `${base} answered 200, and not with an estimate: it is no service of this kind`,
    );
  return found;
}
