/** One read's transaction: a read-only snapshot on one connection, begun by looking at coverage. */
import { parseMultirange } from '../../../shared/ranges.ts';
import { ALIGNED_KEY, ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { ALIGNED_COLUMNS, type Mode, type PartitionKind, seriesValues } from '../../../shared/registry/types.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { int2, int8, type Params } from '../../db/params.ts';
import type { PgConnection, RowSink, Step } from '../../db/pg-connection.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { newestKnown } from '../types.ts';
import { type Coverage, coverageOf, type ProvedRun, type SourceRuns } from './coverage.ts';

/*
 * The aligned storage contract: the columns a dataset needs are there, with the declared types. Asked in the snapshot
 * of every aligned read, so that a drift by hand is met by a code and not by wrong numbers.
 */

/** Rows of the check's result: column, declared type, found type or null, whether the table is there. */
export type ContractRow = readonly (string | null)[];

const statements = new Map<string, Statement>();

/** One row for each column that is not as declared. */
export function contractStatement(dataset: DatasetDefinition): Statement {
  let statement = statements.get(dataset.key);
  if (!statement) {
    const types: Record<string, string> = { ...ALIGNED_KEY };
    for (const field of dataset.aligned.fields) {
      for (const column of field.columns) types[column] = ALIGNED_COLUMNS[column as keyof typeof ALIGNED_COLUMNS];
    }
    const values = Object.entries(types).map(([column, type]) => `('${column}', '${type}')`);
    statement = {
      keep: true,
      text: `select c.name, c.type, t.typname, to_regclass('${ALIGNED_TABLE}') is not null
        from (values ${values.join(', ')}) as c (name, type)
        left join pg_attribute a on a.attrelid = to_regclass('${ALIGNED_TABLE}') and a.attname = c.name
          and a.attnum > 0 and not a.attisdropped
        left join pg_type t on t.oid = a.atttypid
        where t.typname is distinct from c.type`,
    };
    statements.set(dataset.key, statement);
  }
  return statement;
}

/** What is violated, for people; undefined when the storage is as declared. */
export function violationOf(rows: readonly ContractRow[]): string | undefined {
  if (rows.length === 0) return undefined;
  if (rows[0][3] === 'f') return `the table ${ALIGNED_TABLE} is missing`;
  return rows
    .map(([column, declared, found]) =>
      found === null ? `column ${column} is missing` : `column ${column} is ${found}, declared ${declared}`,
    )
    .join('; ');
}

export type TextRow = readonly (string | null)[];

/** Partitions in order of time, newest first, as far as they were asked for. */
export interface PartitionTail {
  readonly fromMs: number;
  readonly rows: number;
}

/** One series of a dataset that has a series key. */
export interface Series {
  readonly id: number;
  /** Values of the series key's fields, in their order. */
  readonly key: readonly string[];
}

export interface Snapshot {
  readonly coverage: Coverage;
  /** The one series of a dataset that has no series key. */
  readonly seriesId: number | undefined;
  /** The series of a dataset that has a series key, for aligned reads. */
  readonly series: readonly Series[];
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

/** Runs of partitions that are no stretches of time, in the order of `SpanRow`. */
const spansStatement = (dataset: DatasetDefinition): Statement => ({
  keep: true,
  text: `select source_id, lower(span)::text, upper(span)::text, from_ms::text, to_ms::text, through_ms::text
    from coverage_spans where dataset_id = $1 order by source_id collate "C", span`,
  params: [int2(dataset.number)],
});

/** The same as of a time: of what was known then, and proved no further. */
const knownSpansStatement = (dataset: DatasetDefinition, newest: number, asOfMs: number): Statement => ({
  keep: true,
  text: `select s.source_id, lower(s.span)::text, max(upper(p.span))::text, min(p.from_ms)::text, max(p.to_ms)::text,
      least(s.through_ms, $3)::text
    from coverage_spans s join partitions p on p.dataset_id = s.dataset_id and p.source_id = s.source_id
      and p.span <@ s.span and p.state = 'proved' and p.rows > 0 and lower(p.span) <= $2
    where s.dataset_id = $1 group by s.source_id, s.span, s.through_ms order by s.source_id collate "C", s.span`,
  params: [int2(dataset.number), int8(newest), int8(asOfMs)],
});

const seriesStatement = (dataset: DatasetDefinition): Statement => ({
  keep: true,
  text: `select series_id::text, key from series where dataset_id = $1 order by series_id`,
  params: [int2(dataset.number)],
});

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

/** Parsed coverage by its text: it changes when a partition is proved, not with every read. */
const parsedCoverage = new Map<string, { readonly text: string; readonly coverage: Coverage }>();

/** What a snapshot is asked first: all a plan needs, in one message. */
export class CoverageProbe {
  readonly steps: readonly Step[];
  readonly #dataset: DatasetDefinition;
  readonly #mode: Mode;
  readonly #coverage = new TextRows();
  readonly #spans = new TextRows();
  readonly #series = new TextRows();
  readonly #contract = new TextRows();
  readonly #tail = new TextRows();

  constructor(request: Pick<ReadRequest, 'dataset' | 'mode' | 'asOfMs'>, wantTail = false) {
    const { dataset, mode, asOfMs } = request;
    const newest = newestKnown(request);
    this.#dataset = dataset;
    this.#mode = mode;
    const steps: Step[] = [{ statement: coverageStatement(dataset), sink: this.#coverage }];
    if (dataset.native.scope.kind === 'column') {
      const known = newest === undefined ? undefined : knownSpansStatement(dataset, newest, asOfMs!);
      steps.push({ statement: known ?? spansStatement(dataset), sink: this.#spans });
    }
    if (mode === 'aligned_1s') {
      steps.push({ statement: contractStatement(dataset), sink: this.#contract });
      if (dataset.aligned.seriesKey.length > 0) {
        steps.push({ statement: seriesStatement(dataset), sink: this.#series });
      }
    }
    if (wantTail) steps.push({ statement: tailStatement(dataset, mode), sink: this.#tail });
    this.steps = steps;
  }

  /** Two looks with the same signature saw the same: no partition is proved or withdrawn without a new version. */
  get signature(): string {
    return JSON.stringify([this.#coverage.rows, this.#spans.rows, this.#contract.rows]);
  }

  snapshot(): Snapshot {
    const [proved, synthetic, seriesId] = this.#coverage.rows[0] ?? ['{}', 'false', null];
    return {
      coverage: this.#parse(proved!, synthetic === 'true'),
      series: this.#series.rows.map(([id, key]) => ({
        id: Number(id),
        key: seriesValues(key!, this.#dataset.aligned.seriesKey.length),
      })),
      seriesId: seriesId === null ? undefined : Number(seriesId),
      violation: violationOf(this.#contract.rows as ContractRow[]),
      tail: this.#tail.rows.map(([fromMs, rows]) => ({ fromMs: Number(fromMs), rows: Number(rows) })),
    };
  }

  #parse(provedText: string, synthetic: boolean): Coverage {
    const { key, partition } = this.#dataset;
    const spans = this.#spans.rows;
    const text = `${synthetic} ${provedText} ${spans.length === 0 ? '' : JSON.stringify(spans)}`;
    const place = `${key} ${this.#mode}`;
    let parsed = parsedCoverage.get(place);
    if (parsed?.text !== text) {
      const proved = parseMultirange(provedText);
      const sources: readonly SourceRuns[] =
        partition.kind === 'file_day'
          ? [
              {
                sourceId: '',
                runs: proved.map((range) => ({ ...range, through: range.to, rowsTo: range.to, span: range })),
              },
            ]
          : [...Map.groupBy(spans, ([sourceId]) => sourceId!)].map(([sourceId, rows]) => ({
              sourceId,
              runs: rows.map((row) => runOf(row, this.#mode, partition.kind)),
            }));
      parsed = { text, coverage: coverageOf(partition.kind, { synthetic, proved, sources }) };
      parsedCoverage.set(place, parsed);
    }
    return parsed.coverage;
  }
}

/** A row of `spansStatement`. */
function runOf([, lower, upper, from, to, through]: TextRow, mode: Mode, kind: PartitionKind['kind']): ProvedRun {
  // The second of a snapshot begins before it.
  const start = mode === 'native' ? Number(from) : Math.floor(Number(from) / 1000) * 1000;
  return {
    from: start,
    // The span of a capture ends with the next market day: until then nothing is missing, and the last state holds.
    to: kind === 'capture' ? Math.max(Number(through), Number(upper)) : Number(through),
    through: Number(through),
    rowsTo: Number(to),
    span: { from: Number(lower), to: Number(upper) },
  };
}

export class Session {
  readonly #wire: PgConnection;

  constructor(wire: PgConnection) {
    this.#wire = wire;
  }

  /** Opens the transaction. */
  async begin(look: Pick<CoverageProbe, 'steps'>): Promise<void> {
    await this.#wire.run([{ statement: BEGIN }, ...look.steps]);
  }

  /** A whole transaction in one message: the look, and a read that goes by what it is thought to say. */
  async all(look: CoverageProbe, statement: Statement, oids: readonly number[], sink: RowSink): Promise<void> {
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
