/** Writes one artifact: the rows of one read, in one snapshot, to files that appear completely or not at all. */
import {
  type LoggedPartition,
  type ManifestProofLog,
  manifestText,
  signManifest,
} from '../../../shared/proof-log/signed-manifest.ts';
import { shapeOf } from '../../../shared/registry/index.ts';
import { type ExportSubject, isFrame } from '../../contract/export.ts';
import type { FrameRequest } from '../../contract/frame.ts';
import { instrumentMember } from '../../contract/instruments.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { HEAD_SQL, type ProofLog, type SignedHead, signedHead } from '../../discovery/proof-log.ts';
import type { Flow, ReadFacts } from '../../read/execute/answer.ts';
import { asOfText, FRAME_VIEW, type FrameFacts, frameFields } from '../../read/frame/frame.ts';
import { countOfFileDays } from '../../read/plan/counted.ts';
import type { Searched } from '../../read/read-model.ts';
import { provedThrough } from '../../read/snapshot/proved-runs.ts';
import type { RowShape } from '../../render/cells.ts';
import {
  type Artifact,
  type ArtifactDeps,
  ArtifactFault,
  type ArtifactJob,
  type ArtifactManifest,
  type ManifestColumn,
} from './artifact.ts';
import { BackpressureGate } from './file-sink.ts';
import { ArtifactFiles, type Format, formatOf } from './files.ts';
import {
  digestOf,
  isIntact,
  type PartitionLeaf,
  type Proof,
  readArtifact,
  readProof,
  readProofs,
  windowOf,
  writeManifest,
} from './manifest.ts';
import { canSplit, StagingDirectory, statementsByDay, stemOf } from './staging.ts';

const PROGRESS_INTERVAL_MS = 500;

/**
 * Reuses a complete artifact of an attempt that was killed before it could report it.
 * @throws ArtifactFault, ReadFault (`no_rows`: nothing is proved in the window), StrictRefusal, or the signal's reason.
 */
export async function writeArtifact(deps: ArtifactDeps, job: ArtifactJob): Promise<Artifact> {
  await using staging = await StagingDirectory.create(job.directory);
  const earlier = await intactArtifact(job.directory);
  if (earlier) return earlier;
  const manifest = await writeFiles(deps, job, { directory: staging.path, stem: stemOf(job.request) });
  job.signal.throwIfAborted();
  await writeManifest(staging.path, manifest);
  while (!(await staging.publish())) {
    const other = await intactArtifact(job.directory);
    if (other) return other;
    await staging.clear();
  }
  const artifact = await readArtifact(job.directory);
  if (!artifact) throw new ArtifactFault('superseded');
  return artifact;
}

async function intactArtifact(directory: string): Promise<Artifact | undefined> {
  const artifact = await readArtifact(directory);
  return artifact && (await isIntact(artifact)) ? artifact : undefined;
}

/** A job without the place of its files. */
export type RowsJob = Omit<ArtifactJob, 'directory'>;

interface Place {
  readonly directory: string;
  /** Prefix of the files' names. */
  readonly stem: string;
  /** Ends the names on disk until the caller renames the files; the manifest does without. */
  readonly inProgress?: string;
  /** Of a lake's table: the name in the manifest, by the file's digest. */
  readonly nameOf?: (sha256: string) => string;
}

/** Writes the files of an artifact, synced, to an existing folder. @returns their manifest */
export async function writeFiles(
  deps: ArtifactDeps,
  job: RowsJob,
  { directory, stem, inProgress, nameOf }: Place,
): Promise<ArtifactManifest> {
  const { request } = job;
  const format = formatOf(job.format, job.compression, {
    formulas: job.csvFormulas,
    isOfTable: nameOf !== undefined,
  });
  const schema = columnsOf(request, format);
  const stop = new AbortController();
  const gate = new BackpressureGate();
  await using files = new ArtifactFiles({
    directory,
    stem,
    inProgress,
    format,
    facts: factsOf(request, schema),
    buffers: deps.buffers,
    gate,
    onFault: (error) => stop.abort(error),
  });
  const reportProgress = () => job.onProgress?.({ rows: files.rows, bytes: files.bytes });
  const timer = setInterval(reportProgress, PROGRESS_INTERVAL_MS);
  let read: ReadResult;
  try {
    read = await readInto(files, { deps, job, gate, stop: stop.signal });
    await files.finish();
  } catch (error) {
    throw stop.signal.aborted && !job.signal.aborted ? stop.signal.reason : error;
  } finally {
    clearInterval(timer);
  }
  reportProgress();
  const manifest = {
    manifest_version: 1 as const,
    ...subjectOf(request),
    format: job.format,
    compression: job.compression,
    ...(job.csvFormulas && { csv_formulas: job.csvFormulas }),
    media_type: format.mediaType,
    schema,
    row_count: files.rows,
    bytes: files.bytes,
    sha256: digestOf(files.done),
    split: read.split ? ('day' as const) : ('none' as const),
    files: nameOf ? files.done.map((file) => ({ ...file, name: nameOf(file.sha256) })) : files.done,
    synthetic: read.synthetic,
    as_of_utc: read.asOfMs === undefined ? null : new Date(read.asOfMs).toISOString(),
    warnings: read.facts.warnings,
    ...read.proved,
    searched: searchedOf(read.searched),
    run: { ...job.run, written_at_utc: new Date(deps.now()).toISOString() },
    proof_log: await proofLogOf(read, deps.proofLog),
  };
  return signManifest(manifest, await deps.signer());
}

async function proofLogOf({ leaves, head }: ReadResult, proofLog: ProofLog): Promise<ManifestProofLog> {
  const listed: LoggedPartition[] = [];
  for (const leaf of leaves) {
    const { leaf_index, inclusion } = await proofLog.describe(leaf, head);
    const { dataset, partition, body, salt } = leaf;
    listed.push({ dataset, partition, leaf_index, leaf: body, salt, inclusion });
  }
  return { checkpoint: head.checkpoint, leaves: listed };
}

interface ReadResult {
  readonly facts: ReadFacts;
  readonly proved: Pick<ArtifactManifest, 'proof' | 'proofs' | 'rows_sha256'>;
  /** Whether no row comes from a vendor. */
  readonly synthetic: boolean;
  readonly asOfMs: number | undefined;
  readonly searched: Searched | undefined;
  readonly split: boolean;
  readonly leaves: readonly PartitionLeaf[];
  readonly head: SignedHead;
}

interface ArtifactRead {
  readonly deps: ArtifactDeps;
  readonly job: RowsJob;
  readonly gate: BackpressureGate;
  readonly stop: AbortSignal;
}

/** Makes the files the writer of a read. */
function opened(files: ArtifactFiles, gate: BackpressureGate, shape: RowShape, flow: Flow): ArtifactFiles {
  files.shape = shape;
  gate.flow = flow;
  return files;
}

/** Runs the read with the files as its writer, and collects the facts of its snapshot. */
const readInto = (files: ArtifactFiles, read: ArtifactRead): Promise<ReadResult> => {
  const { request } = read.job;
  return isFrame(request) ? readFrame(files, request, read) : readRows(files, request, read);
};

async function readFrame(
  files: ArtifactFiles,
  request: FrameRequest,
  { deps, job, gate, stop }: ArtifactRead,
): Promise<ReadResult> {
  let facts: FrameFacts | undefined;
  let proofs: Awaited<ReturnType<typeof readProofs>> | undefined;
  let head: SignedHead | undefined;
  const { sha256 } = await deps.frames.read({
    request,
    signal: AbortSignal.any([job.signal, stop]),
    token: undefined,
    admit: job.admit ? [job.admit] : [],
    mayBeEmpty: true,
    async inspect(contexts) {
      proofs = await readProofs(contexts);
      head = signedHead(await contexts[0].session.rows(HEAD_SQL));
      await files.begin(null);
    },
    open(found, flow) {
      facts = found;
      return opened(files, gate, found, flow);
    },
  });
  return {
    facts: facts!,
    proved: { proof: null, proofs: proofs!.proofs, rows_sha256: sha256 },
    synthetic: facts!.isAllSynthetic,
    asOfMs: undefined,
    searched: undefined,
    split: false,
    leaves: proofs!.leaves,
    head: head!,
  };
}

async function readRows(
  files: ArtifactFiles,
  request: ReadRequest,
  { deps, job, gate, stop }: ArtifactRead,
): Promise<ReadResult> {
  let facts: ReadFacts | undefined;
  let proof: Proof | undefined;
  let asOfMs: number | undefined;
  let searched: Searched | undefined;
  let split = false;
  let head: SignedHead | undefined;
  await deps.reader.read({
    request,
    signal: AbortSignal.any([job.signal, stop]),
    token: undefined,
    admit: job.admit,
    mayBeEmpty: true,
    async inspect(live, plan) {
      asOfMs = provedThrough(live.coverage);
      proof = await readProof(live, plan);
      head = signedHead(await live.session.rows(HEAD_SQL));
      searched = plan.searched;
      split = (searched?.rows ?? proof.rows) > deps.splitRows && canSplit(live);
      if (split) {
        const statements = statementsByDay(live, plan, (day) => files.begin(day));
        return { ...plan, statements, count: plan.count ?? (await countOfFileDays(live, plan.parts)) };
      }
      await files.begin(null);
      return plan;
    },
    open(found, flow) {
      facts = found;
      return opened(files, gate, found, flow);
    },
  });
  return {
    facts: facts!,
    proved: { proof: proof!.manifest },
    synthetic: facts!.synthetic,
    asOfMs,
    searched,
    split,
    leaves: proof!.leaves,
    head: head!,
  };
}

const searchedOf = (searched: Searched | undefined): ArtifactManifest['searched'] =>
  searched
    ? {
        partitions_read: searched.partitionsRead,
        partitions_skipped: searched.partitionsSkipped,
        frames_read: searched.framesRead,
        frames_skipped: searched.framesSkipped,
      }
    : null;

function subjectOf(subject: ExportSubject) {
  if (isFrame(subject)) {
    const { columns, grid, fill = null } = subject.body;
    return {
      dataset: null,
      mode: null,
      frame: { columns, grid, fill },
      view_id: FRAME_VIEW.id,
      view_version: FRAME_VIEW.version,
      window: windowOf(subject.window),
      filters: [],
      as_of: asOfText(subject.asOf),
    };
  }
  const { dataset, mode, window, filters, asOfMs } = subject;
  const { view } = shapeOf(dataset, mode);
  return {
    dataset: dataset.key,
    ...instrumentMember(dataset),
    mode,
    view_id: view.id,
    view_version: view.version,
    window: windowOf(window),
    filters: filters.map(({ clause }) => clause),
    as_of: asOfMs === undefined ? null : new Date(asOfMs).toISOString(),
  };
}

const columnsOf = (subject: ExportSubject, format: Format): ManifestColumn[] =>
  (isFrame(subject) ? frameFields(subject) : subject.fields).map(({ name, dtype, nullable, unit }) => ({
    name,
    dtype,
    nullable,
    unit: unit ?? null,
    type: format.typeOf(dtype),
  }));

/** Metadata that describes a file without its manifest. */
const factsOf = (request: ExportSubject, schema: readonly ManifestColumn[]) => ({
  tidemark: manifestText({ ...subjectOf(request), schema }),
});

export type {
  Artifact,
  ArtifactDeps,
  ArtifactFormat,
  ArtifactJob,
  ArtifactManifest,
  ArtifactProgress,
  ManifestFile,
  WrittenFile,
} from './artifact.ts';
export { ArtifactFault, type ArtifactFaultKind } from './artifact.ts';
export { formatOf } from './files.ts';
export { isIntact, MANIFEST_NAME, readArtifact } from './manifest.ts';
export { removeArtifact } from './staging.ts';
