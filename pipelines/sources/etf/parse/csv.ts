/** Tables in CSV: columns are found by name, whatever their case, punctuation and order. */
import { parse } from 'csv-parse/sync';
import { MAX_HOLDINGS } from './facts.ts';
import { unreadable } from './fault.ts';

export interface Table {
  readonly rows: readonly TableRow[];
}

export interface TableRow {
  /** Of the document, counted from 1; for messages. */
  readonly line: number;
  /** The cell of the first of these columns that the table has. @throws TidemarkError where it has none. */
  cell(...names: readonly string[]): string;
  /** The same; undefined where there is no such column. */
  optional(...names: readonly string[]): string | undefined;
}

const MAX_COLUMNS = 100;
/** Lines of one long text after the table are disclaimers; a row that was cut is not that long. */
const DISCLAIMER_CHARACTERS = 60;

const plain = (name: string) => name.toLowerCase().replaceAll(/[^a-z0-9]/g, '');

/** @param text the header line and the rows. @param firstLine the header's line in the document. */
export function parseTable(text: string, firstLine: number): Table {
  let records: string[][];
  try {
    records = parse(text, { relax_column_count: true, skip_empty_lines: false, max_record_size: 64 * 1024 });
  } catch (cause) {
    throw unreadable('the table is damaged', cause);
  }
  const [header = [], ...all] = records;
  const body = withoutDisclaimers(all);
  if (header.length > MAX_COLUMNS) throw unreadable(`the table has ${header.length} columns`);
  if (body.length > MAX_HOLDINGS) throw unreadable(`the table has ${body.length} rows, more than ${MAX_HOLDINGS}`);
  const uneven = body.findIndex((cells) => !isBlank(cells) && cells.length !== header.length);
  if (uneven >= 0) {
    const at = `line ${firstLine + 1 + uneven}`;
    throw unreadable(`the table is damaged: ${at} has ${body[uneven].length} cells, not ${header.length}`);
  }
  const columns = header.map(plain);
  const rows = body.map((cells, index): TableRow => {
    const line = firstLine + 1 + index;
    const optional = (...names: readonly string[]) => {
      const column = names.map((name) => columns.indexOf(plain(name))).find((found) => found >= 0);
      return column === undefined ? undefined : cells[column];
    };
    return {
      line,
      optional,
      cell: (...names) => {
        const found = optional(...names);
        if (found === undefined) throw unreadable(`the table has no column ${names.join(' or ')}`);
        return found;
      },
    };
  });
  return { rows: rows.filter((_, index) => !isBlank(body[index])) };
}

const isBlank = (cells: readonly string[]) => cells.every((cell) => cell.trim() === '');

function withoutDisclaimers(rows: readonly string[][]): readonly string[][] {
  const isDisclaimer = ([text, ...rest]: readonly string[]) => isBlank(rest) && text.length >= DISCLAIMER_CHARACTERS;
  return rows.slice(0, rows.findLastIndex((cells) => !isBlank(cells) && !isDisclaimer(cells)) + 1);
}
