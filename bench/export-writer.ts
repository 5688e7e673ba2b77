/** A process that writes an artifact for each line of its input, as an export worker does, so that its memory can be measured. */
import { createInterface } from 'node:readline';
import { parseQuery } from '../serving/contract/query.ts';
import { PgPool, poolOptions } from '../serving/db/pool.ts';
import { ProofLog } from '../serving/discovery/proof-log.ts';
import { type ArtifactFormat, writeArtifact } from '../serving/exports/artifact/write.ts';
import { Reader } from '../serving/read/execute/answer.ts';
import { FrameReader } from '../serving/read/frame/frame.ts';
import { BufferPool } from '../serving/render/response.ts';
import { createLogger } from '../shared/logger.ts';
import { parseJson } from '../shared/strict-json.ts';

export interface Order {
  readonly body: object;
  readonly format: ArtifactFormat;
  readonly directory: string;
}

const BUDGET_MS = 60_000;
const FRESH_SECONDS = 172_800;

await using pool = new PgPool(poolOptions(process.argv[2]));
const reading = {
  pool,
  byokRole: undefined,
  budget: { firstRowMs: BUDGET_MS, nextRowMs: BUDGET_MS },
  alignedMaxAgeSeconds: FRESH_SECONDS,
  maxAgeDays: () => undefined,
  intervalSeconds: () => undefined,
  now: Date.now,
};
const reader = new Reader(reading);
const frames = new FrameReader({ ...reading, confirmations: undefined });
const buffers = new BufferPool();
const proofLog = new ProofLog('/nowhere', createLogger('silent', 'bench'));

for await (const line of createInterface({ input: process.stdin })) {
  const { body, format, directory } = JSON.parse(line) as Order;
  const parsed = parseQuery(parseJson(JSON.stringify(body)));
  if ('faults' in parsed) throw new Error(JSON.stringify(parsed.faults));
  const { manifest, files } = await writeArtifact(
    {
      reader,
      frames,
      buffers,
      proofLog,
      signer: async () => undefined,
      now: Date.now,
      splitRows: Number.POSITIVE_INFINITY,
    },
    {
      request: parsed.value.read,
      admit: undefined,
      format,
      compression: format === 'csv' ? 'none' : 'zstd',
      directory,
      signal: new AbortController().signal,
    },
  );
  const { row_count: rows, bytes } = manifest;
  process.stdout.write(`${JSON.stringify({ rows, bytes, path: files[0].path })}\n`);
}
