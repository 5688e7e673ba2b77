/** The transaction of one read: a read-only snapshot on one connection, which begins with a coverage probe; and its connection. */
import { parseMultirange } from '../../../shared/ranges.ts';
import { ALIGNED_KEY, ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import {
  ALIGNED_COLUMNS,
  type Mode,
  type PartitionKind,
  SERIES_SOURCE,
  seriesValues,
} from '../../../shared/registry/definition.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { seriesKeyFor } from '../../../shared/registry/instruments.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import {
  ConnectFault,
  PgConnection,
  type PgConnectionOptions,
  type RowSink,
  type Step,
  UnprovedCredentials,
} from '../../db/pg-connection.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { int2, int8, type Params } from '../../db/pg-messages.ts';
import type { PgPool } from '../../db/pool.ts';
import { ReadFault } from '../read-model.ts';
import { type AskedDays, FileDays, fileDaysStatement } from './file-days.ts';
import { type Coverage, coverageOf, knownTest, type ProvedRun, type SourceRuns } from './proved-runs.ts';

/** A row of the storage check: column, declared type, found type or null, whether the table exists. */
export type ContractRow = readonly (string | null)[];

const contractStatements = new Map<string, Statement>();

/**
 * Checks the storage contract of aligned rows: the columns that a dataset needs exist with the declared types. Every aligned
 * read runs the check in its snapshot, so that a change by hand causes an error code and not wrong numbers. The result has one
 * row per column that differs.
 */
export function contractStatement(dataset: DatasetDefinition): Statement {
  let statement = contractStatements.get(dataset.key);
  if (!statement) {
    const types: Record<string, string> = { ...ALIGNED_KEY };
    for (const field of dataset.aligned.fields) {
      for (const column of field.columns) types[column] = ALIGNED_COLUMNS[column as keyof typeof ALIGNED_COLUMNS];
    }
    const values = Object.entries(types).map(([column, type]) => `('${column}', '${type}')`);
    statement = {
      prepared: true,
      text: `select c.name, c.type, t.typname, to_regclass('${ALIGNED_TABLE}') is not null
        from (values ${values.join(', ')}) as c (name, type)
        left join pg_attribute a on a.attrelid = to_regclass('${ALIGNED_TABLE}') and a.attname = c.name
          and a.attnum > 0 and not a.attisdropped
        left join pg_type t on t.oid = a.atttypid
        where t.typname is distinct from c.type`,
    };
    contractStatements.set(dataset.key, statement);
  }
  return statement;
}

/** Describes the violations; undefined when the storage is as declared. */
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

/** The newest partitions, newest first. */
interface PartitionTail {
  readonly fromMs: number;
  readonly rows: number;
}

/** One series of a dataset with a series key. */
export interface Series {
  readonly id: number;
  /** Values of the series key's fields, in the order of the key. */
  readonly key: readonly string[];
}

export interface Snapshot {
  readonly coverage: Coverage;
  /** The single series of a dataset without a series key. */
  readonly seriesId: number | undefined;
  /** The series of a dataset with a series key, for aligned reads. */
  readonly series: readonly Series[];
  /** How the aligned storage violates its contract; undefined in native mode and when it does not. */
  readonly violation: string | undefined;
  readonly tail: readonly PartitionTail[];
  readonly days: FileDays;
  /** The last signed checkpoint of the proof log. */
  readonly checkpoint: string | undefined;
}

/** Begins a read-only snapshot: see the session settings of a connection. */
const BEGIN: Statement = { text: 'begin', prepared: true };
const COMMIT: Statement = { text: 'commit', prepared: true };

/** Cells of the coverage statement before the checkpoint. */
const COVERAGE_CELLS = 4;

const coverageStatements = new Map<DatasetDefinition, Statement>();

function coverageStatement(dataset: DatasetDefinition): Statement {
  let statement = coverageStatements.get(dataset);
  if (!statement) {
    statement = {
      prepared: true,
      text: `select c.proved::text, c.synthetic::text, (select s.series_id::text from series s
        where s.dataset_id = c.dataset_id and s.key = '${seriesKeyFor(dataset)}'), c.version::text, (select checkpoint from proof_head) from coverage c where c.dataset_id = $1`,
      params: [int2(dataset.number)],
    };
    coverageStatements.set(dataset, statement);
  }
  return statement;
}

/** Runs of partitions that are not stretches of time, in the order of `runOf`. */
const spansStatement = (dataset: DatasetDefinition): Statement => ({
  prepared: true,
  text: `select source_id, lower(span)::text, upper(span)::text, from_ms::text, to_ms::text, through_ms::text
    from coverage_spans where dataset_id = $1 order by source_id collate "C", span`,
  params: [int2(dataset.number)],
});

/**
 * The same as of a time: the runs that were known then. A run of vintages loses its later part. Captures may be taken in any
 * order, so those that were known may have gaps between them, and each run ends with its last capture.
 */
function knownSpansStatement(dataset: DatasetDefinition, known: string, asOfMs: number): Statement {
  const isKnown = `p.state = 'proved' and p.rows > 0 and ${known}`;
  const vintages = `select s.source_id, lower(s.span)::text, max(upper(p.span))::text, min(p.from_ms)::text, max(p.to_ms)::text,
      least(s.through_ms, $2)::text
    from coverage_spans s join partitions p on p.dataset_id = s.dataset_id and p.source_id = s.source_id
      and p.span <@ s.span and ${isKnown}
    where s.dataset_id = $1 group by s.source_id, s.span, s.through_ms order by s.source_id collate "C", s.span`;
  const captures = `select k.source_id, lower(k.span)::text, upper(k.span)::text, min(p.from_ms)::text, max(p.to_ms)::text,
      least(max(coalesce(p.through_ms, p.to_ms)), $2)::text
    from (select p.source_id, unnest(range_agg(p.span)) as span from partitions p
      where p.dataset_id = $1 and ${isKnown} group by p.source_id) k
    join partitions p on p.dataset_id = $1 and p.source_id = k.source_id and p.span <@ k.span and ${isKnown}
    group by k.source_id, k.span order by k.source_id collate "C", k.span`;
  return {
    text: dataset.partition.kind === 'vintage' ? vintages : captures,
    params: [int2(dataset.number), int8(asOfMs)],
  };
}

/** The series of a sample stay in their table when it is retired: those of sources without proved coverage are left out. */
const seriesStatement = (dataset: DatasetDefinition): Statement => ({
  prepared: true,
  text: `select series_id::text, key from series where dataset_id = $1
    and ${SERIES_SOURCE} in (select source_id from coverage_spans where dataset_id = $1) order by series_id`,
  params: [int2(dataset.number)],
});

/** The newest partitions hold the latest rows; their counts tell how far back those rows reach. */
const TAIL_PARTITIONS = 8;

const tailStatement = (dataset: DatasetDefinition, mode: Mode): Statement => {
  const rows = mode === 'native' ? 'rows' : 'aligned_rows';
  return {
    prepared: true,
    text: `select from_ms::text, ${rows}::text from partitions where dataset_id = $1 and state = 'proved'
      order by from_ms desc limit ${TAIL_PARTITIONS}`,
    params: [int2(dataset.number)],
  };
};

/** Caches parsed coverage by its text, which changes when a partition is proved, not with every read. */
const parsedCoverage = new Map<string, { readonly text: string; readonly coverage: Coverage }>();

/** The first queries of a snapshot: everything that a plan needs, in one message. */
export class CoverageProbe {
  readonly steps: readonly Step[];
  readonly #dataset: DatasetDefinition;
  readonly #mode: Mode;
  readonly #coverage = new TextRows();
  readonly #spans = new TextRows();
  readonly #series = new TextRows();
  readonly #contract = new TextRows();
  readonly #tail = new TextRows();
  readonly #days = new TextRows();
  readonly #asked: AskedDays | undefined;

  constructor(
    request: Pick<ReadRequest, 'dataset' | 'mode' | 'asOfMs'>,
    { tail = false, days }: { readonly tail?: boolean; readonly days?: AskedDays } = {},
  ) {
    const { dataset, mode, asOfMs } = request;
    const knownThen = knownTest(request);
    this.#dataset = dataset;
    this.#mode = mode;
    const steps: Step[] = [{ statement: coverageStatement(dataset), sink: this.#coverage }];
    if (dataset.native.scope.kind === 'column') {
      const known = knownThen === undefined ? undefined : knownSpansStatement(dataset, knownThen, asOfMs!);
      steps.push({ statement: known ?? spansStatement(dataset), sink: this.#spans });
    }
    if (mode === 'aligned_1s') {
      steps.push({ statement: contractStatement(dataset), sink: this.#contract });
      if (dataset.aligned.seriesKey.length > 0) {
        steps.push({ statement: seriesStatement(dataset), sink: this.#series });
      }
    }
    this.#asked = days;
    if (days) steps.push({ statement: fileDaysStatement(dataset, days), sink: this.#days });
    if (tail) steps.push({ statement: tailStatement(dataset, mode), sink: this.#tail });
    this.steps = steps;
  }

  /** Probes with equal signatures saw the same state: every proof and withdrawal raises the coverage version. */
  get signature(): string {
    // A checkpoint may be of other datasets.
    const coverage = this.#coverage.rows.map((row) => row.slice(0, COVERAGE_CELLS));
    return JSON.stringify([coverage, this.#spans.rows, this.#contract.rows]);
  }

  /** The last signed checkpoint of the proof log in this snapshot. */
  get checkpoint(): string | undefined {
    return this.#coverage.rows[0]?.[COVERAGE_CELLS] ?? undefined;
  }

  snapshot(): Snapshot {
    const [proved, synthetic, seriesId] = this.#coverage.rows[0] ?? ['{}', 'false', null];
    return {
      coverage: this.#parse(proved!, synthetic === 'true'),
      series: this.#series.rows.map(([id, key]) => ({
        id: Number(id),
        key: seriesValues(key!, this.#dataset.aligned.seriesKey.length),
      })),
      checkpoint: this.checkpoint,
      seriesId: seriesId === null ? undefined : Number(seriesId),
      violation: violationOf(this.#contract.rows as ContractRow[]),
      days: new FileDays(this.#dataset, this.#asked, this.#days.rows),
      tail: this.#tail.rows.map(([fromMs, rows]) => ({ fromMs: Number(fromMs), rows: Number(rows) })),
    };
  }

  #parse(provedText: string, synthetic: boolean): Coverage {
    const { number, partition } = this.#dataset;
    const spans = this.#spans.rows;
    const text = `${synthetic} ${provedText} ${spans.length === 0 ? '' : JSON.stringify(spans)}`;
    const cacheKey = `${number} ${this.#mode}`;
    let parsed = parsedCoverage.get(cacheKey);
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
      parsedCoverage.set(cacheKey, parsed);
    }
    return parsed.coverage;
  }
}

/** Parses a row of `spansStatement`. */
function runOf([, lower, upper, from, to, through]: TextRow, mode: Mode, kind: PartitionKind['kind']): ProvedRun {
  // A snapshot's second begins before the snapshot.
  const start = mode === 'native' ? Number(from) : Math.floor(Number(from) / 1000) * 1000;
  return {
    from: start,
    // The span of a capture ends with the next market day. Until then nothing is missing, and the last state stays valid.
    to: kind === 'capture' ? Math.max(Number(through), Number(upper)) : Number(through),
    through: Number(through),
    rowsTo: Number(to),
    span: { from: Number(lower), to: Number(upper) },
  };
}

/** Settings of the transaction, which the connection's forbid. */
const sortsBy = (sort: 'on' | 'off', workers: number): Statement => ({
  text: `select set_config('enable_sort', '${sort}', true), set_config('max_parallel_workers_per_gather', '${workers}', true)`,
});

export class Session {
  readonly #connection: PgConnection;

  constructor(connection: PgConnection) {
    this.#connection = connection;
  }

  /** Opens the transaction and runs the probe. */
  async begin(probe: Pick<CoverageProbe, 'steps'>): Promise<void> {
    await this.#connection.run([{ statement: BEGIN }, ...probe.steps]);
  }

  /** Opens a transaction in the snapshot of another one. @param snapshot what pg_export_snapshot gave there */
  async join(snapshot: string): Promise<void> {
    await this.#connection.run([
      { statement: BEGIN },
      { statement: { text: `set transaction snapshot '${snapshot}'` } },
    ]);
  }

  /** Runs a whole transaction in one message: the probe, and a statement that assumes the probe's result. */
  async all(probe: CoverageProbe, statement: Statement, oids: readonly number[], sink: RowSink): Promise<void> {
    await this.#connection.run([...probe.steps, { statement, oids, sink }]);
  }

  /** A result small enough to hold in memory. */
  async rows(textOf: string, params?: Params): Promise<readonly TextRow[]> {
    return await this.found({ text: textOf, params: params?.list });
  }

  /** The same, of a statement that may be prepared. */
  async found(statement: Statement): Promise<readonly TextRow[]> {
    const sink = new TextRows();
    await this.#connection.run([{ statement, sink }]);
    return sink.rows;
  }

  /** A result of any size, in binary. */
  async stream(statement: Statement, oids: readonly number[], sink: RowSink): Promise<void> {
    const { sorted } = statement;
    if (!sorted) return await this.#connection.run([{ statement, oids, sink }]);
    const [allowed, forbidden] = [sortsBy('on', sorted.workers), sortsBy('off', 0)];
    await this.#connection.run([{ statement: allowed }, { statement, oids, sink }, { statement: forbidden }]);
  }

  async commit(): Promise<void> {
    await this.#connection.run([{ statement: COMMIT }]);
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

/** Ends the connections that it owns when the time of a read is over. */
interface ConnectionOwner {
  own(connection: PgConnection): void;
  readonly hasFired: boolean;
}

export interface SnapshotOptions {
  readonly pool: PgPool;
  readonly byokRole: string | undefined;
}

/** Opens snapshots on connections of the service's own pool, or on one of the caller's role. */
export class Snapshots {
  readonly #options: SnapshotOptions;

  constructor(options: SnapshotOptions) {
    this.#options = options;
  }

  /**
   * Opens a connection whose snapshot has answered the probe. A pooled connection may have died unnoticed while idle, so the
   * method retries once on a fresh one. @throws ReadFault credentials_refused
   */
  async begin<L extends Pick<CoverageProbe, 'steps'>>(
    createProbe: () => L,
    token: string | undefined,
    deadline: ConnectionOwner,
  ): Promise<{ connection: PgConnection; probe: L }> {
    for (let fresh = false; ; fresh = true) {
      const probe = createProbe();
      const { connection, reused } = await this.#connect(token, fresh, deadline);
      try {
        await new Session(connection).begin(probe);
        return { connection, probe };
      } catch (error) {
        this.discard(connection);
        if (!reused || deadline.hasFired) throw error;
      }
    }
  }

  /** Ends the transaction in the background: the caller already has its rows. */
  end(connection: PgConnection, token: string | undefined): void {
    new Session(connection).commit().then(
      () => (token === undefined ? this.#options.pool.release(connection) : connection.end()),
      () => this.discard(connection),
    );
  }

  discard(connection: PgConnection): void {
    this.#options.pool.discard(connection);
  }

  async #connect(
    token: string | undefined,
    fresh: boolean,
    deadline: ConnectionOwner,
  ): Promise<{ connection: PgConnection; reused: boolean }> {
    const { pool, byokRole } = this.#options;
    if (token !== undefined) {
      const caller = { user: byokRole!, password: token };
      return { connection: await openAsCaller({ ...pool.options, caller }, deadline), reused: false };
    }
    const connected = await pool.acquire(fresh);
    deadline.own(connected.connection);
    return connected;
  }
}

const PRIVILEGES_SQL = `select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls
  from pg_roles where rolname = session_user`;

/** @throws ReadFault credentials_refused, or credentials_unfit where the credentials prove or restrict nothing. */
async function openAsCaller(options: PgConnectionOptions, deadline: ConnectionOwner): Promise<PgConnection> {
  let connection: PgConnection;
  try {
    connection = await PgConnection.open(options);
  } catch (cause) {
    if (cause instanceof UnprovedCredentials) throw new ReadFault('credentials_unfit', cause.message, { cause });
    // SQLSTATE class 28: invalid authorization.
    if (!(cause instanceof ConnectFault && cause.sqlState.startsWith('28'))) throw cause;
    throw new ReadFault('credentials_refused', 'the role or password was refused', { cause });
  }
  deadline.own(connection);
  try {
    const [[isPrivileged]] = await new Session(connection).rows(PRIVILEGES_SQL);
    if (isPrivileged === 'f') return connection;
    throw new ReadFault('credentials_unfit', 'the role of SVC_BYOK_DATABASE_ROLE can do more than read');
  } catch (error) {
    connection.abandon();
    throw error;
  }
}
