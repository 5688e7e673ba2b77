/** Answers that are a list of objects: as JSON with the rest of the answer, or as NDJSON or CSV with the rest in headers. */
import { Problem } from '../contract/problems.ts';
import { mediaQuality } from '../render/representations.ts';
import { answerBytes } from './answer.ts';
import type { Exchange } from './routes.ts';

const NDJSON = 'application/x-ndjson';
const CSV = 'text/csv';
/** In order of preference. */
export const LIST_TYPES = ['application/json', NDJSON, CSV] as const;
export type ListType = (typeof LIST_TYPES)[number];

export const CURSOR_HEADER = 'X-Svc-Next-Cursor';
export const LIST_HEADERS = {
  [CURSOR_HEADER]: 'The `cursor` of the next page, of NDJSON and CSV; absent on the last page.',
} as const;

/** Chooses by Accept. @throws Problem NOT_ACCEPTABLE */
export function listType({ request, response }: Exchange): ListType {
  response.appendHeader('Vary', 'Accept');
  const qualities = LIST_TYPES.map((type) => mediaQuality(request.headers.accept, type));
  const best = Math.max(...qualities);
  if (best > 0) return LIST_TYPES[qualities.indexOf(best)];
  throw new Problem(
    'NOT_ACCEPTABLE',
    `The Accept header names no type of this path. Accept one of ${LIST_TYPES.join(', ')}.`,
  );
}

type Item = Readonly<Record<string, unknown>>;

/**
 * @param list.answer the whole answer in JSON, with the list in its member `name`
 * @param list.columns of CSV: the members, and with a dot those of members that are objects; those that no item has are left out
 */
export function answerList<Name extends string>(
  exchange: Exchange,
  type: ListType,
  list: {
    readonly answer: Readonly<Record<Name, readonly Item[]>> & { readonly next_cursor?: string | null };
    readonly name: Name;
    readonly columns: readonly string[];
  },
): void {
  const { answer, name, columns } = list;
  const items: readonly Item[] = answer[name];
  const next = answer.next_cursor ?? null;
  const text =
    type === NDJSON
      ? items.map((item) => `${JSON.stringify(item)}\n`).join('')
      : type === CSV
        ? csvOf(items, columns)
        : JSON.stringify(answer);
  answerBytes(exchange, Buffer.from(text), {
    'Content-Type': type === CSV ? 'text/csv; charset=utf-8; header=present' : type,
    'Cache-Control': 'no-store',
    ...(type !== 'application/json' && next !== null && { [CURSOR_HEADER]: next }),
  });
}

function csvOf(items: readonly Item[], columns: readonly string[]): string {
  const isAbsent = (column: string) =>
    items.length > 0 && items.every((item) => item[column.split('.', 1)[0]] === undefined);
  const shown = columns.filter((column) => !isAbsent(column));
  const lines = [shown, ...items.map((item) => shown.map((column) => cellOf(item, column)))];
  return lines.map((cells) => `${cells.join(',')}\n`).join('');
}

/** Null is an empty field, and an empty text is quoted, as in rows; names in a list have spaces between them. */
function cellOf(item: Item, column: string): string {
  const value = column.split('.').reduce<unknown>((at, name) => (at as Item | null | undefined)?.[name], item);
  if (value === null || value === undefined) return '';
  const isNames = Array.isArray(value) && value.every((one) => typeof one === 'string');
  const text = isNames ? value.join(' ') : typeof value === 'object' ? JSON.stringify(value) : String(value);
  return (text === '' && !isNames) || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
