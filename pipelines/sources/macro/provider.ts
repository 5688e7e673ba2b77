/**
 * The provider over http. The key travels in the query of each request and nowhere else: addresses are shown without
 * their query, and an answer that repeats the key is neither kept nor shown.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log/logger.ts';
import { fetchAnswer, type SourceLimits } from '../documents/fetch.ts';
import { displayUrl, urlBelow } from '../documents/urls.ts';
import { refusalOf } from './answers.ts';
import type { MacroApi } from './api.ts';

export interface ProviderOptions extends SourceLimits {
  readonly baseUrl: URL;
  readonly key: string;
  /** Takes each answer as it came, before it is looked into; what it throws ends the request. */
  readonly keep: (bytes: Buffer, question: Question) => Promise<unknown>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

/** What was asked, without the key. */
export interface Question {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

/** 100,000 observations of a hundred bytes are a third of it. */
const MAX_ANSWER_BYTES = 32 * 1024 * 1024;
/** The provider says in the body what it refuses; an edge before it answers with a page. */
const REFUSALS = [400, 401, 403];

export function providerApi(options: ProviderOptions): MacroApi {
  const { baseUrl, key, keep, ...limits } = options;
  return {
    async ask(path, query) {
      const url = urlBelow(baseUrl, ...path.split('/'));
      url.search = new URLSearchParams({ ...query, file_type: 'json', api_key: key }).toString();
      const { status, bytes } = await fetchAnswer({ ...limits, url, answers: REFUSALS, maxBytes: MAX_ANSWER_BYTES });
      const text = bytes.toString('utf8');
      if (repeats(text, key)) {
        const what = `The answer about ${path} repeats the key it was asked with; it is not kept`;
        throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', what, { details: { url: displayUrl(url), status } });
      }
      if (status !== 200) throw refused(url, status, refusalOf(text));
      const atMs = Date.now();
      await keep(bytes, { path, query });
      return { bytes, atMs };
    },
  };
}

/** As it is, or as an address or JSON would write it; hex digits of either case. */
function repeats(text: string, key: string): boolean {
  const inQuery = new URLSearchParams({ key }).toString().slice('key='.length);
  const forms = [key, inQuery, encodeURIComponent(key), JSON.stringify(key).slice(1, -1)];
  const lower = text.toLowerCase();
  return forms.some((form) => lower.includes(form.toLowerCase()));
}

function refused(url: URL, status: number, said: string | undefined): TidemarkError {
  if (said === undefined) {
    const what = `${displayUrl(url)} answered ${status}, without saying why`;
    return new TidemarkError('SOURCE_UNREACHABLE', what, { details: { url: displayUrl(url), status } });
  }
  const what = `${displayUrl(url)} refused the request: ${JSON.stringify(said)}`;
  return new TidemarkError('SOURCE_REFUSED', what, { details: { url: displayUrl(url), status } });
}
