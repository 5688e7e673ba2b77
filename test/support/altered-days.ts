/** Days that a vendor repaired: what is done to the rows of a file, and which rows differ then, by DuckDB from the two files. */
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DuckDBInstance } from '@duckdb/node-api';
import fc from 'fast-check';
import type { Json } from './command.ts';
import { VENDOR_A, VENDOR_B, type Vendor } from './vendors.ts';

interface FileLayout {
  readonly columns: readonly string[];
  readonly hasHeader: boolean;
  readonly id: string;
  readonly price: string;
  /** A stored column, as SQL over the texts of the file. */
  readonly stored: Readonly<Record<string, string>>;
}

const layoutOf = (vendor: Vendor): FileLayout =>
  vendor === VENDOR_A
    ? {
        columns: ['id', 'price', 'qty', 'quote_qty', 'time', 'is_buyer_maker', 'is_best_match'],
        hasHeader: false,
        ...{ id: 'id', price: 'price' },
        stored: {
          timestamp: 'case length(time) when 16 then time::bigint // 1000 else time::bigint end',
          trade_id: 'id::bigint',
          ...{ price: 'price::double', quantity: 'qty::double', quote_quantity: 'quote_qty::double' },
          ...{ is_buyer_maker: 'is_buyer_maker::boolean', is_best_match: 'is_best_match::boolean' },
        },
      }
    : vendor === VENDOR_B
      ? {
          columns: ['instrument_name', 'trade_id', 'side', 'price', 'size', 'created_time'],
          hasHeader: true,
          ...{ id: 'trade_id', price: 'price' },
          stored: {
            ...{ timestamp: 'created_time::bigint', trade_id: 'trade_id::bigint' },
            ...{
              price: 'price::double',
              size: 'size::double',
              side: 'lower(side)',
              instrument_name: 'instrument_name',
            },
          },
        }
      : {
          columns: ['id', 'timestamp', 'price', 'volume', 'side'],
          hasHeader: true,
          ...{ id: 'id', price: 'price' },
          stored: {
            ...{ timestamp: 'timestamp::bigint', trade_id: 'id::bigint' },
            ...{ price: 'price::double', size: 'volume::double', side: 'lower(side)' },
          },
        };

/** What becomes of a row; `spelled`: the same value in other digits. */
type Fate = 'kept' | 'removed' | 'priced' | 'spelled';

export interface Alterations {
  /** By the place of a row in thousandths of the file. */
  readonly fates: readonly (readonly [place: number, fate: Fate])[];
  /** Rows that come behind the last. */
  readonly added: number;
  readonly order: 'kept' | 'reversed';
}

export const alterations: fc.Arbitrary<Alterations> = fc.record({
  fates: fc.array(
    fc.tuple(fc.integer({ min: 0, max: 999 }), fc.constantFrom<Fate>('kept', 'removed', 'priced', 'priced', 'spelled')),
    { maxLength: 8 },
  ),
  added: fc.constantFrom(0, 0, 1, 3),
  order: fc.constantFrom('kept', 'kept', 'kept', 'reversed'),
});

/** The text of a file as its vendor repaired it. */
export function alteredText(vendor: Vendor, text: string, { fates, added, order }: Alterations): string {
  const { columns, hasHeader, id, price } = layoutOf(vendor);
  const lines = text.trimEnd().split('\n');
  const header = hasHeader ? [lines.shift()!] : [];
  const at = new Map(fates.map(([place, fate]) => [Math.floor((place * lines.length) / 1000), fate]));
  const changed = (line: string, column: string, change: (cell: string) => string) => {
    const cells = line.split(',');
    cells[columns.indexOf(column)] = change(cells[columns.indexOf(column)]);
    return cells.join(',');
  };
  const pointed = (cell: string) => (cell.includes('.') ? cell : `${cell}.`);
  const rows = lines.flatMap((line, index) => {
    const fate = at.get(index);
    if (fate === 'removed') return [];
    if (fate === 'priced') return [changed(line, price, (cell) => `${pointed(cell)}5`)];
    return fate === 'spelled' ? [changed(line, price, (cell) => `${pointed(cell)}0`)] : [line];
  });
  for (let more = 1; more <= added; more++) {
    rows.push(changed(lines.at(-1)!, id, (cell) => String(Number(cell) + more)));
  }
  if (order === 'reversed') rows.reverse();
  return `${[...header, ...rows].join('\n')}\n`;
}

export interface RowChange {
  readonly kind: 'added' | 'removed' | 'altered';
  readonly served: Json | null;
  readonly found: Json | null;
}

/** The rows that differ between two files, in the order of their ids. */
export async function expectedChanges(vendor: Vendor, before: string, after: string): Promise<RowChange[]> {
  const { columns, hasHeader, stored } = layoutOf(vendor);
  const folder = await mkdtemp(join(tmpdir(), 'altered-'));
  const connection = await (await DuckDBInstance.create()).connect();
  try {
    for (const [name, text] of Object.entries({ before, after })) {
      await writeFile(join(folder, `${name}.csv`), text);
      const types = columns.map((column) => `'${column}': 'varchar'`).join(', ');
      const values = Object.entries(stored).map(([column, sql]) => `${sql} as "${column}"`);
      await connection.run(
        `create table "${name}" as select ${values.join(', ')} from read_csv('${join(folder, `${name}.csv`)}',
           header = ${hasHeader}, delim = ',', columns = {${types}})`,
      );
    }
    const of = (table: string) => `to_json({${Object.keys(stored).map((name) => `"${name}": ${table}."${name}"`)}})`;
    const reader = await connection.runAndReadAll(
      `select case when b.trade_id is null then 'added' when a.trade_id is null then 'removed' else 'altered' end,
         case when b.trade_id is not null then ${of('b')} end, case when a.trade_id is not null then ${of('a')} end
       from "before" b full join "after" a on b.trade_id = a.trade_id
       where b is distinct from a order by coalesce(b.trade_id, a.trade_id)`,
    );
    return reader.getRows().map(([kind, served, found]) => ({
      kind: kind as RowChange['kind'],
      served: served === null ? null : JSON.parse(String(served)),
      found: found === null ? null : JSON.parse(String(found)),
    }));
  } finally {
    connection.closeSync();
    await rm(folder, { recursive: true });
  }
}

/**
 * The file of a late arrival, which has its digest. Members that a vendor does not state are left out, and rows that differ in
 * them alone: a price that is another one changes the tick of the row behind it.
 */
export async function readDiff(
  folder: string,
  { dataset_id, diff_sha256: sha256, diff_bytes }: Json,
): Promise<{ head: Json; changes: RowChange[] }> {
  const bytes = await readFile(join(folder, 'objects', sha256.slice(0, 2), sha256));
  const digest = createHash('sha256').update(bytes).digest('hex');
  if (digest !== sha256 || String(bytes.length) !== String(diff_bytes)) throw new Error(`${sha256} has other bytes`);
  const [head, ...lines] = bytes
    .toString()
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  const { stored } = layoutOf({ 1: VENDOR_A, 2: VENDOR_B }[dataset_id as number] ?? ({} as Vendor));
  const stated = (row: Json) => row && Object.fromEntries(Object.keys(stored).map((name) => [name, row[name]]));
  const changes = lines
    .map(({ kind, served, found }) => ({ kind, served: stated(served), found: stated(found) }))
    .filter(({ served, found }) => JSON.stringify(served) !== JSON.stringify(found));
  return { head, changes };
}
