/**
 * The service's read connection beside `pg`'s own interface for streamed results, a `Submittable`, on one query of many
 * rows. Each side adds up every cell, so that all of them decode the same values; the sums are compared. Processor time is
 * that of this process, without the server's.
 */
import pg from 'pg';
import { FairScheduler, PgConnection, type RowSink } from '../serving/db/pg-connection.ts';
import { OID } from '../serving/db/pg-messages.ts';
import type { Note } from './harness.ts';
import { median, rounded } from './measure.ts';

/** Columns of a trade. */
const OIDS = [OID.int8, OID.int8, OID.float8, OID.float8, OID.float8, OID.bool, OID.bool];
const MAKE_ROWS = `create unlogged table bench_rows as
  select n::int8 as id, 1709251200000 + n::int8 as at, 42000 + n % 5000 / 100.0::float8 as price, n % 977 / 1000.0::float8 as quantity,
    n % 7919 / 8.0::float8 as amount, n % 3 = 0 as maker, n % 7 = 0 as best from generate_series(1, $rows) n`;
const QUERY = 'select * from bench_rows';

type Format = 'binary' | 'text';

interface Result {
  rows: number;
  sum: number;
}

/** Adds up the cells of rows as they arrive from the service's connection. */
class CellSum implements RowSink, Result {
  rows = 0;
  sum = 0;

  row(view: DataView, _bytes: Buffer, start: number): void {
    this.rows++;
    let at = start;
    for (const oid of OIDS) {
      const length = view.getInt32(at);
      at += 4;
      if (oid === OID.float8) this.sum += view.getFloat64(at);
      else if (oid === OID.int8) this.sum += view.getInt32(at) * 2 ** 32 + view.getUint32(at + 4);
      else this.sum += view.getUint8(at);
      at += length;
    }
  }
}

/** What a Submittable calls on `pg`'s connection; the published types do not list all of it. */
interface SubmitConnection {
  parse(message: object): void;
  bind(message: object): void;
  describe(message: object): void;
  execute(message: object): void;
  sync(): void;
}

/** The same query as a Submittable: `pg` splits the messages and hands over the cells as strings. */
class SubmittedSum implements Result {
  rows = 0;
  sum = 0;
  /** Binary cells whose decoded size differs from the size of their type. */
  damagedCells = 0;
  readonly ended = Promise.withResolvers<void>();
  readonly #format: Format;

  constructor(format: Format) {
    this.#format = format;
  }

  submit(connection: SubmitConnection): void {
    connection.parse({ text: QUERY, name: '', types: [] });
    connection.bind({ portal: '', statement: '', values: [], binary: this.#format === 'binary' });
    connection.describe({ type: 'P', name: '' });
    connection.execute({ portal: '', rows: 0 });
    connection.sync();
  }

  handleDataRow({ fields }: { readonly fields: readonly string[] }): void {
    this.rows++;
    if (this.#format === 'binary') {
      for (const [index, field] of fields.entries()) {
        if (Buffer.byteLength(field) !== (OIDS[index] === OID.bool ? 1 : 8)) this.damagedCells++;
      }
      return;
    }
    for (const [index, field] of fields.entries()) {
      this.sum += OIDS[index] === OID.bool ? Number(field === 't') : Number(field);
    }
  }

  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}

  handleReadyForQuery(): void {
    this.ended.resolve();
  }

  handleError(error: Error): void {
    this.ended.reject(error);
  }
}

interface Cost {
  /** Rows each second, by the clock. */
  readonly rows_per_second: number;
  /** Processor time of this process for a million rows, s. */
  readonly cpu_seconds_per_million: number;
}

export interface ReadConnectionFigures {
  readonly rows: number;
  readonly rounds: number;
  readonly read_connection: Cost;
  /** The format in which `pg` hands cells over unharmed. */
  readonly submittable_text: Cost;
  readonly submittable_binary: Cost & {
    /** Share of the cells that `pg` destroys, because it decodes each as UTF-8. */
    readonly damaged_cells: number;
  };
  /** Speed relative to the Submittable that returns right values: the median of the rounds' ratios. */
  readonly ratio: number;
  readonly cpu_ratio: number;
  readonly ratio_to_binary: number;
  readonly cpu_ratio_to_binary: number;
  /** How far the rounds are apart: the slowest of the read connection relative to its fastest. */
  readonly spread: number;
  readonly cpu_spread: number;
}

interface Sample {
  readonly seconds: number;
  readonly cpu: number;
}

async function sampled(work: () => Promise<unknown>): Promise<Sample> {
  const cpuBefore = process.cpuUsage();
  const startedAt = performance.now();
  await work();
  const seconds = (performance.now() - startedAt) / 1000;
  const { user, system } = process.cpuUsage(cpuBefore);
  return { seconds, cpu: (user + system) / 1e6 };
}

export async function measureReadConnection(
  databaseUrl: string,
  rows: number,
  rounds: number,
  note: Note,
): Promise<ReadConnectionFigures> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  await client.query(MAKE_ROWS.replace('$rows', String(rows)));
  const connection = await PgConnection.open({
    url: databaseUrl,
    name: 'tidemark bench',
    connectTimeoutMs: 10_000,
    scheduler: new FairScheduler(),
  });
  let damagedCells = 0;
  const readConnection = async (): Promise<Result> => {
    const sink = new CellSum();
    await connection.run([{ statement: { text: QUERY }, sink, oids: OIDS }]);
    return sink;
  };
  const submitted = (format: Format) => async (): Promise<Result> => {
    const query = client.query(new SubmittedSum(format) as SubmittedSum & pg.Submittable);
    await query.ended.promise;
    damagedCells = Math.max(damagedCells, query.damagedCells);
    return query;
  };
  const subjects = [readConnection, submitted('text'), submitted('binary')];
  const [ours, text] = await Promise.all(subjects.map((subject) => subject()));
  if (ours.rows !== rows || ours.sum !== text.sum) throw new Error('the two sides did not read the same rows');
  const samples: Sample[][] = subjects.map(() => []);
  for (let round = 1; round <= rounds; round++) {
    // Each side begins every third round.
    const order = subjects.map((_, index) => (index + round) % subjects.length);
    for (const index of order) samples[index].push(await sampled(subjects[index]));
    const latest = samples.map((side) => side.at(-1)!);
    const list = (of: (sample: Sample) => number) => latest.map((sample) => rounded(of(sample), 3)).join(', ');
    note(`round ${round}: ${list(({ seconds }) => seconds)} s, cpu ${list(({ cpu }) => cpu)} s`);
  }
  connection.end();
  await client.query('drop table bench_rows');
  await client.end();
  return figuresOf(rows, samples, damagedCells);
}

function figuresOf(rows: number, samples: readonly Sample[][], damagedCells: number): ReadConnectionFigures {
  const [ours, text, binary] = samples;
  const cost = (side: readonly Sample[]): Cost => ({
    rows_per_second: Math.round(rows / median(side.map(({ seconds }) => seconds))),
    cpu_seconds_per_million: rounded((median(side.map(({ cpu }) => cpu)) / rows) * 1e6, 3),
  });
  const ratio = (side: readonly Sample[], of: (sample: Sample) => number) =>
    rounded(median(side.map((sample, round) => of(sample) / of(ours[round]))));
  const spread = (of: (sample: Sample) => number) => rounded(Math.max(...ours.map(of)) / Math.min(...ours.map(of)));
  return {
    rows,
    rounds: ours.length,
    read_connection: cost(ours),
    submittable_text: cost(text),
    submittable_binary: { ...cost(binary), damaged_cells: rounded(damagedCells / (rows * OIDS.length)) },
    ratio: ratio(text, ({ seconds }) => seconds),
    cpu_ratio: ratio(text, ({ cpu }) => cpu),
    ratio_to_binary: ratio(binary, ({ seconds }) => seconds),
    cpu_ratio_to_binary: ratio(binary, ({ cpu }) => cpu),
    spread: spread(({ seconds }) => seconds),
    cpu_spread: spread(({ cpu }) => cpu),
  };
}
