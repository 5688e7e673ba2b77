/** The manifest of an artifact: written beside the files, and read to recognize an existing artifact. */

import { createHash } from 'node:crypto';
import { lstat, open } from 'node:fs/promises';
import { join } from 'node:path';
import { DAY_MS } from '../../../shared/dates.ts';
import { type FoundLeaf, foundLeaf, LEAF_COLUMNS, provingLeafSql } from '../../../shared/db/partition-changes.ts';
import { MAX_LEAVES } from '../../../shared/proof-log/check-export.ts';
import { manifestBytes } from '../../../shared/proof-log/signed-manifest.ts';
import type { Range } from '../../../shared/ranges.ts';
import { NotRegularFile, openRegular } from '../../../shared/regular-file.ts';
import { instrumentMember } from '../../contract/instruments.ts';
import type { Window } from '../../contract/read-request.ts';
import type { RowSink } from '../../db/pg-connection.ts';
import { int2, int8, OID, Params, text } from '../../db/pg-messages.ts';
import type { LiveContext, ReadPlan } from '../../read/plan/context.ts';
import type { Part } from '../../read/read-model.ts';
import { boundsOf, knownTest } from '../../read/snapshot/proved-runs.ts';
import {
  type Artifact,
  type ArtifactManifest,
  artifactFault,
  type ManifestFile,
  type ManifestPartition,
  type ManifestProof,
  type ManifestWindow,
  type WrittenFile,
} from './artifact.ts';

export const MANIFEST_NAME = 'manifest.json';
const VERSION = 1;

/** The digest of an artifact: that of its file, or of the lines that `sha256sum` prints for several, so that anyone can compute it. */
export function digestOf(files: readonly ManifestFile[]): string {
  if (files.length === 1 && files[0].day === null) return files[0].sha256;
  const digest = createHash('sha256');
  for (const { sha256, name } of files) digest.update(`${sha256}  ${name}\n`);
  return digest.digest('hex');
}

export function windowOf(window: Window): ManifestWindow {
  switch (window.kind) {
    case 'latest':
      return { kind: 'latest', n_rows: window.rows };
    case 'random':
      return { kind: 'random', n_random: window.rows, random_seed: window.seed };
    default: {
      const { fromMs, toMs } = window.kind === 'range' ? window : {};
      const iso = (ms: number | undefined) => (ms === undefined ? null : new Date(ms).toISOString());
      return { kind: 'range', start_utc: iso(fromMs), end_utc: iso(toMs) };
    }
  }
}

/** @throws ArtifactFault */
export async function writeManifest(directory: string, manifest: ArtifactManifest): Promise<void> {
  try {
    const file = await open(join(directory, MANIFEST_NAME), 'wx', 0o640);
    try {
      await file.writeFile(manifestBytes(manifest));
      await file.sync();
    } finally {
      await file.close();
    }
  } catch (error) {
    throw artifactFault(error);
  }
}

/** The artifact of a directory, judging by names and sizes. Undefined: there is none, or it is incomplete. */
export async function readArtifact(directory: string): Promise<Artifact | undefined> {
  const manifestPath = join(directory, MANIFEST_NAME);
  try {
    await using opened = await openRegular(manifestPath);
    const manifest = JSON.parse(await opened.readFile('utf8')) as ArtifactManifest;
    if (manifest.manifest_version !== VERSION) return undefined;
    const files = await Promise.all(manifest.files.map((file) => writtenFile(directory, file)));
    if (files.some((file) => file === undefined)) return undefined;
    return { manifest, manifestPath, files: files as WrittenFile[] };
  } catch (error) {
    if (error instanceof SyntaxError || isGone(error)) return undefined;
    throw artifactFault(error);
  }
}

async function writtenFile(directory: string, file: ManifestFile): Promise<WrittenFile | undefined> {
  const path = join(directory, file.name);
  const found = await lstat(path);
  const { size, mtimeMs } = found;
  return found.isFile() && size === file.bytes ? { ...file, path, modifiedMs: mtimeMs } : undefined;
}

/** Whether the files match the manifest, byte for byte. It reads all of them. */
export async function isIntact({ manifest, files }: Artifact): Promise<boolean> {
  for (const { path, sha256 } of files) {
    const digest = createHash('sha256');
    try {
      await using opened = await openRegular(path);
      for await (const chunk of opened.createReadStream({ autoClose: false })) digest.update(chunk as Buffer);
    } catch (error) {
      if (isGone(error)) return false;
      throw artifactFault(error);
    }
    if (digest.digest('hex') !== sha256) return false;
  }
  return digestOf(manifest.files) === manifest.sha256;
}

/** Whether the file is missing, or something other than a regular file. */
const isGone = (error: unknown): boolean =>
  error instanceof NotRegularFile || (error as { code?: unknown }).code === 'ENOENT';

/** A manifest lists at most this many partitions; count and digest cover all. A snapshot per minute makes half a million a year. */
const MAX_LISTED = 20_000;

/** The leaf of a partition in the proof log. */
export interface PartitionLeaf extends FoundLeaf {
  readonly dataset: string;
  readonly partition: string;
}

/** The proved partitions that an artifact's rows come from. */
export interface Proof {
  readonly manifest: ManifestProof;
  readonly leaves: readonly PartitionLeaf[];
  /** Number of rows, in the requested mode, in all partitions that the window overlaps. */
  readonly rows: number;
}

const COLUMNS = `partition_key, source_id, revision::text, rows::text, aligned_rows::text, manifest->>'rows_hash',
  aligned_hash, manifest->>'events_sha256', manifest->'document'->>'sha256'`;
const OIDS = COLUMNS.split(',').map(() => OID.text);

/** Reads the proof in the snapshot of the rows. */
export async function readProof(
  { session, request }: LiveContext,
  plan: Pick<ReadPlan, 'parts' | 'carried'>,
): Promise<Proof> {
  const { dataset, mode } = request;
  const [[version] = ['0']] = await session.rows(
    'select version::text from coverage where dataset_id = $1',
    withParams(int2(dataset.number)),
  );
  const ranges: Range[] = [...plan.parts, ...(plan.carried ?? []).map(({ ms }) => ({ from: ms, to: ms + 1 }))];
  const sink = new PartitionSink(dataset.sources[0]);
  const leaves: PartitionLeaf[] = [];
  if (ranges.length > 0) {
    const params = new Params();
    const id = params.add(int2(dataset.number));
    const from = params.add(int8(Math.min(...ranges.map((range) => range.from))));
    const to = params.add(int8(Math.max(...ranges.map((range) => range.to))));
    const spans = params.add(text(`{${ranges.map((range) => `[${range.from},${range.to})`).join(',')}}`));
    const chosen = `from partitions p where dataset_id = ${id} and state = 'proved'
      and to_ms > ${from} and from_ms < ${to} and int8range(from_ms, to_ms) && ${spans}::int8multirange
      and ${knownTest(request) ?? 'true'} order by from_ms, partition_key collate "C"`;
    await session.stream({ text: `select ${COLUMNS} ${chosen}`, params: params.list }, OIDS, sink);
    const found = await session.rows(
      `select p.partition_key, ${LEAF_COLUMNS} from (
         select * ${chosen} limit ${MAX_LEAVES}) p cross join lateral ${provingLeafSql('l.leaf_index, l.body, l.salt')} l
       order by p.from_ms, p.partition_key collate "C"`,
      params,
    );
    for (const [partition, ...leaf] of found) {
      leaves.push({ dataset: dataset.key, partition: partition!, ...foundLeaf(leaf)! });
    }
  }
  return {
    rows: mode === 'native' ? sink.rows : sink.alignedRows,
    leaves,
    manifest: {
      coverage_version: Number(version),
      partitions: sink.partitions,
      sha256: sink.digest.digest('hex'),
      listed: sink.listed,
    },
  };
}

/** A state may be that of a row from before the window, and a series has all its revisions. */
const STATES_BEFORE_MS = 2 * DAY_MS;

/** The proofs of a frame's datasets, by the partitions that its rows can come from. */
export async function readProofs(contexts: readonly LiveContext[]): Promise<{
  readonly proofs: ({ readonly dataset: string; readonly instrument?: string } & ManifestProof)[];
  readonly leaves: PartitionLeaf[];
}> {
  const found = Map.groupBy(contexts, ({ request }) => request.dataset);
  const proofs: ({ readonly dataset: string; readonly instrument?: string } & ManifestProof)[] = [];
  const logged: PartitionLeaf[] = [];
  for (const [dataset, own] of found) {
    const parts = own.flatMap(({ request: { window }, coverage, parts: searched }): Part[] => {
      if (dataset.trades) return [...searched];
      const { from, to } = boundsOf(coverage, window);
      const start = dataset.aligned.seriesKey.length > 0 ? (coverage.extent?.from ?? from) : from - STATES_BEFORE_MS;
      return start < to ? [{ from: start, to, until: to, provedTo: undefined, isLast: true }] : [];
    });
    const { manifest, leaves } = await readProof(own[0], { parts });
    logged.push(...leaves);
    proofs.push({ dataset: dataset.key, ...instrumentMember(dataset), ...manifest });
  }
  return { proofs, leaves: logged };
}

function withParams(...list: Parameters<Params['add']>[0][]): Params {
  const params = new Params();
  for (const param of list) params.add(param);
  return params;
}

/** Keeps no more partitions than the manifest lists, since there may be millions. */
class PartitionSink implements RowSink {
  partitions = 0;
  rows = 0;
  alignedRows = 0;
  readonly listed: ManifestPartition[] = [];
  readonly digest = createHash('sha256');
  readonly #onlySource: string;

  /** @param onlySource for a dataset whose partitions name no source */
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
