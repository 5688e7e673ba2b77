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

/** @param columns of CSV: the members, and with a dot those of members that are objects */
export function answerList(
  exchange: Exchange,
  type: ListType,
  list: { readonly name: string; readonly items: readonly Item[]; readonly next: string | null },
  columns: readonly string[],
): void {
  const { name, items, next } = list;
  const text =
    type === NDJSON
      ? items.map((item) => `${JSON.stringify(item)}\n`).join('')
      : type === CSV
        ? [columns, ...items.map((item) => columns.map((column) => cellOf(item, column)))]
            .map((cells) => `${cells.join(',')}\n`)
            .join('')
        : JSON.stringify({ [name]: items, next_cursor: next });
  answerBytes(exchange, Buffer.from(text), {
    'Content-Type': type === CSV ? 'text/csv; charset=utf-8; header=present' : type,
    'Cache-Control': 'no-store',
    ...(type !== 'application/json' && next !== null && { [CURSOR_HEADER]: next }),
  });
}

/** Null is an empty field, and an empty text is quoted, as in rows. */
function cellOf(item: Item, column: string): string {
  const value = column.split('.').reduce<unknown>((at, name) => (at as Item | null | undefined)?.[name], item);
  if (value === null || value === undefined) return '';
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  return text === '' || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
