/** Bodies of rows read by parsers that are not ours, to one form: each cell as the text JSON shows, or null. */
import { tableFromIPC } from 'apache-arrow';
import { parse } from 'csv-parse/sync';

export interface ReadBack {
  readonly names: readonly string[];
  readonly rows: readonly (readonly (string | null)[])[];
}

type Reader = (body: Buffer, dtypes: ReadonlyMap<string, string>) => ReadBack;

/** By media type. An Arrow timestamp is a number of milliseconds: `dtypes` tells which columns are times. */
export const READERS: Readonly<Record<string, Reader>> = {
  'application/json': (body) => objectsBack(exactly(body.toString()).rows as Record<string, Cell>[]),
  'application/x-ndjson'(body) {
    const text = body.toString();
    if (text !== '' && !text.endsWith('\n')) throw new Error('the last line is not ended');
    return objectsBack(text.split('\n').slice(0, -1).map(exactly) as unknown as Record<string, Cell>[]);
  },
  'text/csv'(body) {
    const options = {
      cast: (text: string, { quoting }: { quoting: boolean }) => (text === '' && !quoting ? null : text),
    };
    const [names, ...rows] = parse(body, options) as unknown as (string | null)[][];
    return { names: names as string[], rows };
  },
  'application/vnd.apache.arrow.stream'(body, dtypes) {
    const table = tableFromIPC(body);
    const columns = table.schema.fields.map(({ name }) => {
      const vector = table.getChild(name)!;
      const isTime = dtypes.get(name) === 'timestamp_utc';
      return Array.from({ length: table.numRows }, (_, row) => cellText(vector.get(row), isTime));
    });
    const rows = Array.from({ length: table.numRows }, (_, row) => columns.map((column) => column[row]));
    return { names: table.schema.fields.map(({ name }) => name), rows };
  },
};

type Cell = string | null | { readonly digits: string };

/** JSON with its numbers as they are written. */
function exactly(text: string): Record<string, unknown> {
  const parseExactly = JSON.parse as (
    text: string,
    revive: (key: string, value: unknown, context: { readonly source?: string }) => unknown,
  ) => Record<string, unknown>;
  return parseExactly(text, (_, value, { source }) => (typeof value === 'number' ? { digits: source } : value));
}

function objectsBack(objects: readonly Record<string, Cell>[]): ReadBack {
  return {
    names: Object.keys(objects[0] ?? {}),
    rows: objects.map((object) =>
      Object.values(object).map((cell) => (cell === null || typeof cell === 'string' ? cell : cell.digits)),
    ),
  };
}

function cellText(value: unknown, isTime: boolean): string | null {
  if (value === null) return null;
  if (isTime) return new Date(value as number).toISOString();
  return typeof value === 'number' ? JSON.stringify(value) : String(value);
}
