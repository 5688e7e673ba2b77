/** Artifacts written straight from the read core, as an export worker does, and the query's own rows to hold against. */
import { join } from 'node:path';
import type { ExportSubject } from '../../serving/contract/export.ts';
import { parseFrame } from '../../serving/contract/frame.ts';
import { parseQuery } from '../../serving/contract/query.ts';
import { PgPool, poolOptions } from '../../serving/db/pool.ts';
import { ProofLog } from '../../serving/discovery/proof-log.ts';
import {
  type Artifact,
  type ArtifactDeps,
  type ArtifactFormat,
  type ArtifactJob,
  writeArtifact,
} from '../../serving/exports/artifact/write.ts';
import { Reader } from '../../serving/read/execute/answer.ts';
import { FrameReader } from '../../serving/read/frame/frame.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { type DuckDb, openDuckDb } from './read-parquet.ts';
import { type Serving, startServing } from './serving.ts';
import { type TestEnv, testLogger } from './stack.ts';

export interface Artifacts extends AsyncDisposable {
  readonly deps: ArtifactDeps;
  /** Under a directory of its own, by the body of a query. */
  write(body: object, format: ArtifactFormat, more?: Partial<ArtifactJob & ArtifactDeps>): Promise<Artifact>;
}

/** Artifacts, DuckDB to read them back with, and the service that answers with the same rows. */
export interface ArtifactLab extends AsyncDisposable {
  readonly files: Artifacts;
  readonly duck: DuckDb;
  readonly serving: Serving;
}

export async function artifactLab({ databaseUrl, dir }: Pick<TestEnv, 'databaseUrl' | 'dir'>): Promise<ArtifactLab> {
  await using opened = new AsyncDisposableStack();
  const files = opened.use(artifacts({ databaseUrl, root: dir }));
  const serving = opened.use(await startServing({ databaseUrl }));
  const duck = opened.use(await openDuckDb());
  const kept = opened.move();
  return { files, duck, serving, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

function requestOf(body: object): ExportSubject {
  if ('columns' in body) {
    const frame = parseFrame(body as Parameters<typeof parseFrame>[0]);
    if ('faults' in frame) throw new Error(JSON.stringify(frame.faults));
    return frame.value;
  }
  const parsed = parseQuery(body as Parameters<typeof parseQuery>[0]);
  if ('faults' in parsed) throw new Error(JSON.stringify(parsed.faults));
  return parsed.value.read;
}

export interface ArtifactOptions {
  readonly databaseUrl: string;
  readonly root: string;
  readonly now?: number;
}

function artifacts({ databaseUrl, root, now = Date.parse('2024-03-10T12:00:00Z') }: ArtifactOptions): Artifacts {
  const pool = new PgPool(poolOptions(databaseUrl));
  const reading = {
    pool,
    byokRole: undefined,
    budget: { firstRowMs: 60_000, nextRowMs: 60_000 },
    granuleLookupRows: 0,
    alignedMaxAgeSeconds: 172_800,
    maxAgeDays: () => undefined,
    intervalSeconds: () => undefined,
    now: () => now,
  };
  const reader = new Reader(reading);
  const frames = new FrameReader({ ...reading, confirmations: undefined });
  const proofLog = new ProofLog(join(root, 'no-log'), testLogger());
  const signer = async () => undefined;
  const deps: ArtifactDeps = {
    ...{ reader, frames, proofLog, signer },
    buffers: new BufferPool(),
    now: () => now,
    splitRows: 1e9,
  };
  let count = 0;
  return {
    deps,
    write(body, format, more = {}) {
      const { reader: otherReader = reader, splitRows = deps.splitRows, ...job } = more;
      return writeArtifact(
        { ...deps, reader: otherReader, splitRows },
        {
          request: requestOf(body),
          admit: undefined,
          format,
          compression: format === 'parquet' ? 'zstd' : 'none',
          directory: join(root, `export-${count++}`),
          signal: new AbortController().signal,
          ...job,
        },
      );
    },
    [Symbol.asyncDispose]: () => pool[Symbol.asyncDispose](),
  };
}
