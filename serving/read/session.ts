/** One read's transaction: a read-only snapshot on one connection, begun by looking at coverage. */
import { parseMultirange, type Range } from '../../shared/db/ranges.ts';
import type { DatasetDefinition, Mode } from '../../shared/registry/index.ts';
import { int2, type Params } from '../db/params.ts';
import type { RowSink, Step, Wire } from '../db/wire.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { Coverage } from './coverage.ts';
import { type ContractRow, contractStatement, violationOf } from './storage-contract.ts';

export type TextRow = readonly (string | null)[];

/** Partitions in order of time, newest first, as far as they were asked for. */
export interface PartitionTail {
  readonly fromMs: number;
  readonly rows: number;
}

export interface Snapshot {
  readonly coverage: Coverage;
  /** The one series of a dataset that has no series key. */
  readonly seriesId: number | undefined;
  /** What the aligned storage lacks; undefined in native mode and where it is as declared. */
  readonly violation: string | undefined;
  readonly tail: readonly PartitionTail[];
}

/** A read-only snapshot: see the session settings of a connection. */
const BEGIN: Statement = { text: 'begin', keep: true };
const COMMIT: Statement = { text: 'commit', keep: true };

const coverageStatements = new Map<string, Statement>();

function coverageStatement(dataset: DatasetDefinition): Statement {
  let statement = coverageStatements.get(dataset.key);
  if (!statement) {
    statement = {
      keep: true,
      text: `select c.proved::text, c.synthetic::text, (select s.series_id::text from series s
        where s.dataset_id = c.dataset_id and s.key = ''), c.version::text from coverage c where c.dataset_id = $1`,
      params: [int2(dataset.number)],
    };
    coverageStatements.set(dataset.key, statement);
  }
  return statement;
}

/** The newest partitions hold the latest rows: their counts say how far back those go. */
const TAIL_PARTITIONS = 8;

const tailStatement = (dataset: DatasetDefinition, mode: Mode): Statement => {
  const rows = mode === 'native' ? 'rows' : 'aligned_rows';
  return {
    keep: true,
    text: `select from_ms::text, ${rows}::text from partitions where dataset_id = $1 and state = 'proved'
      order by from_ms desc limit ${TAIL_PARTITIONS}`,
    params: [int2(dataset.number)],
  };
};

/** Parsed ranges by their text: coverage changes when a partition is proved, not with every read. */
const parsedRanges = new Map<number, { readonly text: string; readonly ranges: readonly Range[] }>();

/** What a snapshot is asked first: all a plan needs, in one message. */
export class Look {
  readonly steps: readonly Step[];
  readonly #dataset: DatasetDefinition;
  readonly #coverage = new TextRows();
  readonly #contract = new TextRows();
  readonly #tail = new TextRows();

  constructor(dataset: DatasetDefinition, mode: Mode, wantTail: boolean) {
    this.#dataset = dataset;
    const steps: Step[] = [{ statement: coverageStatement(dataset), sink: this.#coverage }];
    if (mode === 'aligned_1s') steps.push({ statement: contractStatement(dataset), sink: this.#contract });
    if (wantTail) steps.push({ statement: tailStatement(dataset, mode), sink: this.#tail });
    this.steps = steps;
  }

  /** Two looks with the same signature saw the same: no partition is proved or withdrawn without a new version. */
  get signature(): string {
    return JSON.stringify([this.#coverage.rows, this.#contract.rows]);
  }

  snapshot(): Snapshot {
    const [proved, synthetic, seriesId] = this.#coverage.rows[0] ?? ['{}', 'false', null];
    return {
      coverage: { ranges: rangesOf(this.#dataset.number, proved!), synthetic: synthetic === 'true' },
      seriesId: seriesId === null ? undefined : Number(seriesId),
      violation: violationOf(this.#contract.rows as ContractRow[]),
      tail: this.#tail.rows.map(([fromMs, rows]) => ({ fromMs: Number(fromMs), rows: Number(rows) })),
    };
  }
}

export class Session {
  readonly #wire: Wire;

  constructor(wire: Wire) {
    this.#wire = wire;
  }

  /** Opens the transaction. */
  async begin(look: Look): Promise<void> {
    await this.#wire.run([{ statement: BEGIN }, ...look.steps]);
  }

  /** A whole transaction in one message: the look, and a read that goes by what it is thought to say. */
  async all(look: Look, statement: Statement, oids: readonly number[], sink: RowSink): Promise<void> {
    await this.#wire.run([...look.steps, { statement, oids, sink }]);
  }

  /** A result small enough to keep. */
  async rows(textOf: string, params?: Params): Promise<readonly TextRow[]> {
    const sink = new TextRows();
    await this.#wire.run([{ statement: { text: textOf, params: params?.list }, sink }]);
    return sink.rows;
  }

  /** A result of any size, in binary. */
  async stream(statement: Statement, oids: readonly number[], sink: RowSink): Promise<void> {
    await this.#wire.run([{ statement, oids, sink }]);
  }

  async commit(): Promise<void> {
    await this.#wire.run([{ statement: COMMIT }]);
  }
}

function rangesOf(dataset: number, text: string): readonly Range[] {
  let parsed = parsedRanges.get(dataset);
  if (parsed?.text !== text) {
    parsed = { text, ranges: parseMultirange(text) };
    parsedRanges.set(dataset, parsed);
  }
  return parsed.ranges;
}

class TextRows implements RowSink {
  readonly rows: (string | null)[][] = [];

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const cells: (string | null)[] = [];
    for (let from = at; from < at + length; ) {
      const size = view.getInt32(from);
      from += 4;
      cells.push(size < 0 ? null : bytes.toString('utf8', from, from + Math.max(size, 0)));
      from += Math.max(size, 0);
    }
    this.rows.push(cells);
  }
}
