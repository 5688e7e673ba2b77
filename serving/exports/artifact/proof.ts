/** The proved partitions that an artifact's rows come from, read in the snapshot of the rows. */
import { createHash } from 'node:crypto';
import type { Range } from '../../../shared/db/ranges.ts';
import { int2, int8, OID, Params, text } from '../../db/params.ts';
import type { RowSink } from '../../db/wire.ts';
import { knownTest } from '../../read/as-of.ts';
import type { LiveContext, Plan } from '../../read/context.ts';
import type { Manifest, ManifestPartition } from './types.ts';

/** A manifest lists so many; their number and digest are of all. A snapshot a minute is half a million a year. */
const MAX_LISTED = 20_000;

export interface Proof {
  readonly manifest: Manifest['proof'];
  /** Rows, of the mode that is asked for, in all partitions that the window touches. */
  readonly rows: number;
}

const COLUMNS = `partition_key, source_id, revision::text, rows::text, aligned_rows::text, manifest->>'rows_hash',
  aligned_hash, manifest->>'events_sha256', manifest->'document'->>'sha256'`;
const OIDS = COLUMNS.split(',').map(() => OID.text);

export async function readProof({ session, request }: LiveContext, plan: Plan): Promise<Proof> {
  const { dataset, mode } = request;
  const [[version] = ['0']] = await session.rows(
    'select version::text from coverage where dataset_id = $1',
    withParams(int2(dataset.number)),
  );
  const ranges: Range[] = [...plan.parts, ...(plan.carried ?? []).map(({ ms }) => ({ from: ms, to: ms + 1 }))];
  const sink = new PartitionSink(dataset.sources[0]);
  if (ranges.length > 0) {
    const params = new Params();
    const id = params.add(int2(dataset.number));
    const from = params.add(int8(Math.min(...ranges.map((range) => range.from))));
    const to = params.add(int8(Math.max(...ranges.map((range) => range.to))));
    const spans = params.add(text(`{${ranges.map((range) => `[${range.from},${range.to})`).join(',')}}`));
    const statement = `select ${COLUMNS} from partitions p where dataset_id = ${id} and state = 'proved'
      and to_ms > ${from} and from_ms < ${to} and int8range(from_ms, to_ms) && ${spans}::int8multirange
      and ${knownTest(request) ?? 'true'} order by from_ms, partition_key collate "C"`;
    await session.stream({ text: statement, params: params.list }, OIDS, sink);
  }
  return {
    rows: mode === 'native' ? sink.rows : sink.alignedRows,
    manifest: {
      coverage_version: Number(version),
      partitions: sink.partitions,
      sha256: sink.digest.digest('hex'),
      listed: sink.listed,
    },
  };
}

function withParams(...list: Parameters<Params['add']>[0][]): Params {
  const params = new Params();
  for (const param of list) params.add(param);
  return params;
}

/** Makes no more of a partition than is listed: there may be millions. */
class PartitionSink implements RowSink {
  partitions = 0;
  rows = 0;
  alignedRows = 0;
  readonly listed: ManifestPartition[] = [];
  readonly digest = createHash('sha256');
  readonly #onlySource: string;

  /** @param onlySource of a dataset whose partitions name none */
  constructor(onlySource: string) {
    this.#onlySource = onlySource;
  }

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const cells: (string | null)[] = [];
    for (let from = at; from < at + length; ) {
      const size = view.getInt32(from);
      from += 4;
      cells.push(size < 0 ? null : bytes.toString('utf8', from, from + size));
      from += Math.max(size, 0);
    }
    const number = (cell: string | null) => (cell === null ? null : Number(cell));
    cells[1] ??= this.#onlySource;
    const [key, source, revision, rows, alignedRows, rowsHash, alignedHash, events, document] = cells;
    this.partitions++;
    this.rows += number(rows) ?? 0;
    this.alignedRows += number(alignedRows) ?? 0;
    this.digest.update(`${cells.map((cell) => cell ?? '').join('|')}\n`);
    if (this.listed.length === MAX_LISTED) return;
    this.listed.push({
      partition: key!,
      source_id: source!,
      revision: Number(revision),
      rows: number(rows),
      aligned_rows: number(alignedRows),
      rows_hash: rowsHash,
      aligned_hash: alignedHash,
      events_sha256: events,
      document_sha256: document,
    });
  }
}
