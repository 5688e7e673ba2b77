/**
 * What a document that a vendor published in place of another changes of the rows that are served, row by row. Its rows go to
 * a temporary table, where SQL compares them with those of the partition; the differences go to a file that is kept by its
 * digest, and the document beside it. Nothing of it is proved.
 */
import { createReadStream } from 'node:fs';
import { to as copyTo } from 'pg-copy-streams';
import { type Client, connect } from '../../shared/db/connect.ts';
import type { RowChanges } from '../../shared/db/late-arrivals.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { nativeRows } from '../../shared/registry/instruments.ts';
import { dayOfKey, windowOf } from '../../shared/registry/keys.ts';
import { CopySeries } from '../rows/copy-in.ts';
import type { DocumentArchive } from '../sources/documents/document-archive.ts';
import type { OpenedDocument } from '../sources/feed-types.ts';
import { projectionOf } from '../sources/index.ts';

/** A document that a vendor published in place of the one that a file day was proved with. */
export interface ReplacingDocument {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
  readonly served: { readonly revision: number; readonly document: DocumentFacts };
  readonly document: OpenedDocument;
  /** Equal events in another archive: none of its rows is compared. */
  readonly isRepacked: boolean;
  /** Its ids are not those of a document of its source: its rows are compared whatever their ids are. */
  readonly anyIds?: boolean;
}

export interface ComparingNeeds {
  readonly databaseUrl: string;
  readonly archive: () => Promise<DocumentArchive>;
  readonly frameRawBytes: number;
  readonly signal: AbortSignal;
}

/** Keeps the document, and what it changes. No more rows are in memory than a frame holds. */
export async function changedRows(needs: ComparingNeeds, found: ReplacingDocument): Promise<RowChanges> {
  const { dataset, partition, document } = found;
  const archive = await needs.archive();
  assert(document.path !== undefined, 'a document of trades is a file');
  const kept = await archive.keep(createReadStream(document.path), {
    source_id: dataset.sources[0],
    name: document.facts.name,
    asked: { dataset: dataset.key, partition },
  });
  if (kept.sha256 !== document.facts.sha256) {
    throw new TidemarkError('SOURCE_CHECKSUM_MISMATCH', `${document.facts.name} changed while it was read`, {
      details: { document: document.facts.name },
    });
  }
  const none = { added: 0, removed: 0, altered: 0 };
  if (found.isRepacked) return { ...none, diff: await archive.keep([headOf(found, none)]) };
  await using client = await connect({ url: needs.databaseUrl, name: 'tidemark differences', signal: needs.signal });
  await client.query('begin');
  await copyFound(client, found, needs.frameRawBytes);
  await client.query(changesSql(dataset, partition));
  const { rows } = await client.query<{ kind: keyof typeof none; n: string }>(
    'select kind, count(*) as n from changed group by 1',
  );
  const counts = { ...none, ...Object.fromEntries(rows.map(({ kind, n }) => [kind, Number(n)])) };
  return { ...counts, diff: await archive.keep(linesOf(client, headOf(found, counts))) };
}

const columnsOf = ({ native }: DatasetDefinition) => native.columns.map(({ name }) => name);
const quoted = (names: readonly string[], alias = '') => names.map((name) => `${alias}"${name}"`).join(', ');

async function copyFound(client: Client, found: ReplacingDocument, frameRawBytes: number): Promise<void> {
  const { dataset, partition, document, anyIds } = found;
  const columns = columnsOf(dataset);
  await client.query(
    `create temporary table found on commit drop as select ${quoted(columns)} from ${nativeRows(dataset)} t with no data`,
  );
  const projector = projectionOf(dataset).createRows({ key: partition, ...windowOf(dataset, partition) });
  const copy = new CopySeries(client, 'found', columns);
  try {
    for await (const item of document.decode({ frameRawBytes, anyIds })) {
      const isOther = item.partition.key !== partition || (item.dataset ?? dataset) !== dataset;
      if (item.kind === 'end') {
        if (isOther) continue;
        break;
      }
      if (!isOther) await copy.write(Buffer.from(projector.rows(item.raw, item.rows, item.written).copy));
      item.release?.();
    }
    await copy.end();
  } catch (error) {
    await copy.abort();
    throw error;
  }
  await client.query('analyze found');
}

/** A row that is only in the document is added, one that is only served is removed; others that differ are altered. */
function changesSql(dataset: DatasetDefinition, partition: string): string {
  const { native } = dataset;
  const { fromMs, toMs } = windowOf(dataset, partition);
  const columns = columnsOf(dataset);
  const key = native.identity[0];
  const same = native.identity.map((name) => `s."${name}" = f."${name}"`).join(' and ');
  return `create temporary table changed on commit drop as
    select coalesce(s."${key}", f."${key}") as place,
      case when s."${key}" is null then 'added' when f."${key}" is null then 'removed' else 'altered' end as kind,
      case when s."${key}" is not null then row_to_json(s) end as served,
      case when f."${key}" is not null then row_to_json(f) end as found
    from (select ${quoted(columns)} from ${nativeRows(dataset)} t
      where t."${native.time.column}" >= ${fromMs} and t."${native.time.column}" < ${toMs}) s
    full join found f on ${same}
    where (${quoted(columns, 's.')}) is distinct from (${quoted(columns, 'f.')})`;
}

/** The first line of the file. */
function headOf(
  { dataset, partition, served, document, isRepacked }: ReplacingDocument,
  counts: Pick<RowChanges, 'added' | 'removed' | 'altered'>,
): Buffer {
  const head = {
    proved: false,
    dataset: dataset.key,
    ...(dataset.instrument === undefined ? {} : { instrument: dataset.instrument }),
    partition,
    day: dayOfKey(partition),
    served: { revision: served.revision, document: namedOf(served.document) },
    found: { document: namedOf(document.facts), same_events: isRepacked },
    ...counts,
  };
  return Buffer.from(`${JSON.stringify(head)}\n`);
}

const namedOf = ({ name, sha256, bytes }: DocumentFacts) => ({ name, sha256, bytes });

async function* linesOf(client: Client, head: Buffer): AsyncGenerator<Buffer> {
  yield head;
  // A text of JSON holds none of these control characters, so nothing of it is quoted.
  yield* client.query(
    copyTo(`copy (select json_build_object('kind', kind, 'served', served, 'found', found) from changed order by place)
      to stdout with (format csv, delimiter e'\\x02', quote e'\\x01')`),
  ) as AsyncIterable<Buffer>;
}
