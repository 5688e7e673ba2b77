/** A process of other engines that counts the rows of a lake's newest versions all the time, and what it may count. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Client } from '../../shared/db/connect.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { Tool } from '../support/tools.ts';

/** Rows by date of a version of a table. */
interface Counted {
  readonly engine: string;
  readonly table: string;
  readonly version: number;
  readonly change: number;
  readonly rows: Readonly<Record<string, number>>;
}

type Line = Counted & { readonly fault?: string; readonly overtaken?: string };

export class LakeReader {
  readonly faults: string[] = [];
  /** Reads by engine, and those of a version whose bytes were withdrawn meanwhile. */
  readonly reads: Record<string, number> = {};
  readonly #child: ChildProcess;
  readonly #done: Promise<unknown>;
  readonly #states = new Map<string, Counted>();
  #stderr = '';

  constructor(python: Tool, lake: string) {
    const args = [join(import.meta.dirname, 'lake-reader.py'), lake];
    this.#child = spawn(python.path, args, { stdio: ['pipe', 'pipe', 'pipe'] });
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-3000);
    });
    const lines = createInterface({ input: this.#child.stdout! }).on('line', (line) => this.#take(JSON.parse(line)));
    this.#done = Promise.all([once(this.#child, 'exit'), once(lines, 'close')]);
  }

  #take(line: Line): void {
    const { engine, table, version, fault, overtaken } = line;
    const name = overtaken === undefined ? engine : `${engine}, overtaken`;
    if (fault !== undefined) this.faults.push(`${engine}: ${table}, version ${version}: ${fault}`);
    else {
      this.reads[name] = (this.reads[name] ?? 0) + 1;
      if (overtaken === undefined) this.#states.set(JSON.stringify([table, version, line.rows]), line);
    }
  }

  /** Versions of tables that were counted. */
  get versions(): number {
    return this.#states.size;
  }

  /** What is wrong with what was counted so far. @param client whose leaves all have an index */
  async faultsOf(client: Client): Promise<string[]> {
    if (this.#child.exitCode !== null)
      this.faults.push(`the reader ended with ${this.#child.exitCode}: ${this.#stderr}`);
    return [...this.faults, ...notProved(await provedOf(client), [...this.#states.values()])];
  }

  async stop(): Promise<void> {
    this.#child.stdin!.end();
    await this.#done;
  }
}

interface Proof {
  readonly change: number;
  readonly rows: number;
}

/** By table of trades and date: the rows that it has from each change on. */
async function provedOf(client: Client): Promise<Map<string, Proof[]>> {
  const { rows } = await client.query(
    `select d.key || '/native ' || l.partition_key as of, l.leaf_index::int + 1 as change,
       case when l.kind in ('proved', 'revised') then (convert_from(l.body, 'UTF8')::json->>'rows')::int else 0 end as rows
     from proof_leaves l join datasets d using (dataset_id)
     where l.kind in ('proved', 'revised', 'retracted', 'quarantined') order by l.entry_id`,
  );
  return Map.groupBy(rows as (Proof & { of: string })[], ({ of }) => of);
}

/** Whether a partition has the rows of a date in UTC, and no others. */
const isByDate = ({ trades, partition }: DatasetDefinition) =>
  trades !== undefined && partition.kind === 'file_day' && partition.startOffsetMs === 0;

/**
 * A version of change N has of each day of trades what was proved at N, or at a later change that the writer already saw.
 * Other tables, exchange B's among them, are cut otherwise than their proofs: of those, counts are held against the version's log and note alone.
 */
function notProved(proved: ReadonlyMap<string, readonly Proof[]>, states: readonly Counted[]): string[] {
  return states.flatMap(({ table, version, change, rows }) => {
    const [key] = table.split('/');
    if (!isByDate(DATASETS.get(key)!) || !table.endsWith('/native')) return [];
    const dates = [...proved.keys()].filter((of) => of.startsWith(`${table} `)).map((of) => of.split(' ')[1]);
    return [...new Set([...dates, ...Object.keys(rows)])].flatMap((date) => {
      const proofs = proved.get(`${table} ${date}`) ?? [];
      const now = proofs.findLast((proof) => proof.change <= change)?.rows ?? 0;
      const legal = new Set([now, ...proofs.filter((proof) => proof.change > change).map((proof) => proof.rows)]);
      const found = rows[date] ?? 0;
      if (legal.has(found)) return [];
      return [
        `${table}, version ${version} of change ${change}: ${found} rows on ${date}, not ${[...legal].join(' or ')}`,
      ];
    });
  });
}
