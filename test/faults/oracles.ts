/** What must hold when faults are over: each returns what is wrong, or undefined. */
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Change } from '../../client/changes.ts';
import { chainsIn, segmentsOf } from '../../shared/audit/records.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { LakeManifest } from '../../shared/mirror/lake-manifest.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { tableFiles } from '../support/lake.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { checkpointOf } from '../support/proof-log.ts';
import { ask, questionsOf, type Reply } from './answers.ts';
import type { FileDay } from './reference.ts';
import { type ExportOf, judged } from './workload.ts';
import { API_KEY } from './world.ts';

/** Nothing is expected to be fast. */
const LIMIT_MS = 3 * PATIENCE_MS;

/** Until `find` finds nothing wrong. @returns what is wrong when patience ends */
export async function settled(
  find: () => Promise<string | undefined>,
  limitMs = LIMIT_MS,
): Promise<string | undefined> {
  for (const deadline = performance.now() + limitMs; ; await delay(250)) {
    const fault = await find();
    if (fault === undefined) return undefined;
    if (performance.now() > deadline) return `not within ${limitMs / 1000} s: ${fault}`;
  }
}

/** The last fault may still be on its way: a process that was told to end, a connection that it breaks. */
async function patiently(send: () => Promise<Reply>): Promise<Reply> {
  for (const deadline = performance.now() + LIMIT_MS; ; await delay(250)) {
    const reply = await send().catch((error): Error => error);
    if (!(reply instanceof Error) && reply.status !== 503) return reply;
    if (performance.now() > deadline) throw reply instanceof Error ? reply : new Error(`${reply.status} ${reply.body}`);
  }
}

/** What a proved partition states, apart from when and how it came in. */
const FACTS = ['rows_hash', 'events_sha256', 'totals', 'first_offset', 'last_offset', 'first_ms', 'last_ms', 'gaps'];

async function partitionsOf(client: Client): Promise<Map<string, string>> {
  const { rows } = await client.query(
    `select d.key, p.partition_key, p.state, p.rows::text, p.aligned_rows::text, p.aligned_hash, p.klines_sha256, p.offsets::text,
       p.manifest, p.recount
     from partitions p join datasets d using (dataset_id) where d.key not like 'bitcoin%' order by 1, 2`,
  );
  return new Map(
    rows.map(({ key, partition_key, manifest, ...row }) => {
      const facts = Object.fromEntries(FACTS.map((name) => [name, manifest?.[name]]));
      return [`${key} ${partition_key}`, JSON.stringify({ ...row, ...facts })];
    }),
  );
}

/** Differences of two maps as text, the first few. */
export function differencesOf(
  found: ReadonlyMap<string, string>,
  expected: ReadonlyMap<string, string>,
): string | undefined {
  const faults = [...new Set([...found.keys(), ...expected.keys()])].flatMap((key) => {
    if (found.get(key) === expected.get(key)) return [];
    return [`${key}: found ${found.get(key)}, expected ${expected.get(key)}`];
  });
  return faults.length === 0 ? undefined : `${faults.length} differ: ${faults.slice(0, 3).join('; ')}`;
}

export async function samePartitions(world: Client, reference: Client): Promise<string | undefined> {
  return differencesOf(await partitionsOf(world), await partitionsOf(reference));
}

/** Count and digest of each table's rows, in the order of their text. */
async function tablesOf(client: Client, isWanted: (key: string) => boolean): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  const digest = async (name: string, rows: string) => {
    const { rows: of } = await client.query(
      `select count(*)::text || ' rows ' || coalesce(md5(string_agg(t::text, E'\\n' order by t::text collate "C")), '') as said
       from (${rows}) t`,
    );
    found.set(name, of[0].said);
  };
  for (const { key, native, number } of DATASETS.values()) {
    if (!isWanted(key)) continue;
    const columns = native.columns.map(({ name }) => `"${name}"`).join(', ');
    await digest(key, `select ${columns} from ${native.table}`);
    await digest(
      `${key} seconds`,
      `select to_jsonb(a) - 'series_id' - 'dataset_id' - 'latest_ingested_at_utc' as said
       from canonical_aligned_1s_aggregates a where dataset_id = ${number}`,
    );
  }
  return found;
}

export async function sameTables(
  world: Client,
  reference: Client,
  isWanted: (key: string) => boolean,
): Promise<string | undefined> {
  return differencesOf(await tablesOf(world, isWanted), await tablesOf(reference, isWanted));
}

/** What the proof log states last of each partition is so: what was proved is served, and what was withdrawn is not. */
export async function leavesHold(client: Client): Promise<string | undefined> {
  const { rows } = await client.query(
    `select d.key, l.partition_key as partition, l.kind, p.state, p.rows::int as rows,
       convert_from(l.body, 'UTF8')::json->>'rows' as logged
     from (select distinct on (dataset_id, partition_key) * from proof_leaves
           where kind in ('proved', 'revised', 'retracted', 'quarantined') order by dataset_id, partition_key, entry_id desc) l
     join datasets d using (dataset_id) left join partitions p using (dataset_id, partition_key)`,
  );
  const wrong = rows.filter(({ kind, state, rows: stored, logged }) =>
    kind === 'proved' || kind === 'revised' ? state !== 'proved' || Number(logged) !== stored : state === 'proved',
  );
  return wrong.length === 0
    ? undefined
    : `${wrong.length} partitions are not as logged: ${JSON.stringify(wrong.slice(0, 3))}`;
}

/** Every question about a file day gets the answer of its last version. */
export async function answersOf(url: string, files: readonly FileDay[]): Promise<string | undefined> {
  const headers = { 'x-api-key': API_KEY };
  for (const file of files) {
    for (const question of questionsOf(file.vendor, file.day)) {
      const { path, body, accept, name } = question;
      const reply = await patiently(() => ask(url, path, { body, headers: { ...headers, accept } }));
      const fault = judged(file, question, reply, 1);
      if (fault) return `${file.vendor.dataset} ${file.day} ${name}: ${fault}`;
    }
    if (file.seen !== file.published)
      return `${file.vendor.dataset} ${file.day}: version ${file.seen} is served, not ${file.published}`;
  }
  return undefined;
}

// ---- changes and the proof log -------------------------------------------------------------------------------------

interface LeafFacts {
  readonly index: number | null;
  readonly leaf: string;
}

export async function leavesOf(client: Client): Promise<LeafFacts[]> {
  const { rows } = await client.query(
    `select leaf_index::int as index, convert_from(body, 'UTF8') as leaf from proof_leaves order by leaf_index nulls last`,
  );
  return rows as LeafFacts[];
}

/** What a listener heard is every leaf, in order, once. */
export function sameChanges(heard: readonly Change[], leaves: readonly LeafFacts[]): string | undefined {
  const waiting = leaves.filter(({ index }) => index === null).length;
  if (waiting > 0) return `${waiting} leaves have no index`;
  if (heard.length !== leaves.length) return `${heard.length} changes were heard of ${leaves.length}`;
  for (const [at, { index, leaf }] of leaves.entries()) {
    if (index !== at) return `leaf ${at} has the index ${index}`;
    const { number, salt, ...rest } = heard[at];
    if (number !== at + 1) return `change ${at + 1} has the number ${number}`;
    if (JSON.stringify(rest) !== JSON.stringify(JSON.parse(leaf)))
      return `change ${number} is not its leaf: ${JSON.stringify(rest)}`;
  }
  return undefined;
}

export async function pagesOf(url: string): Promise<Change[]> {
  const found: Change[] = [];
  for (let since = 0; ; ) {
    const headers = { 'x-api-key': API_KEY, accept: 'application/json' };
    const reply = await patiently(() => ask(url, `/v1/changes?since=${since}&limit=50`, { headers }));
    if (reply.status !== 200) throw new Error(`a page of changes: ${reply.status} ${reply.body}`);
    const { changes, next } = JSON.parse(reply.body.toString());
    if (changes.length === 0) return found;
    found.push(...changes);
    since = next;
  }
}

export async function proofLogHolds(state: string): Promise<string | undefined> {
  const folder = join(state, 'proof-log');
  // The folder of a test's system is one above its state.
  const { faults } = await checkMirror(await checkpointOf({ dir: join(state, '..') }), folderSource(folder));
  return faults.length === 0 ? undefined : faults.join('; ');
}

/** Each proof has its leaf. Attempts of blocks that left the chain are proved no more, and their leaves stay. */
export async function leavesOfProofs(client: Client): Promise<string | undefined> {
  const { rows } = await client.query(
    `select (select count(*)::int from proof_leaves join datasets using (dataset_id)
         where kind in ('proved', 'revised') and key not like 'bitcoin%') as leaves,
       (select count(*)::int from attempts join datasets using (dataset_id)
         where state = 'proved' and key not like 'bitcoin%') as attempts`,
  );
  const [{ leaves, attempts }] = rows;
  return leaves === attempts ? undefined : `${leaves} leaves of proofs, and ${attempts} proved attempts`;
}

// ---- exports -------------------------------------------------------------------------------------------------------

export interface AuditLine {
  readonly event: string;
  readonly occurred_at?: string;
  readonly export_id: string | null;
  readonly payload: {
    readonly from?: string;
    readonly to?: string;
    readonly event?: string;
    readonly fence?: number;
  };
}

export async function auditLines(directory: string): Promise<AuditLine[]> {
  const lines: AuditLine[] = [];
  for (const chain of await chainsIn(directory)) {
    for (const segment of await segmentsOf(directory, chain)) {
      const text = await readFile(join(directory, chain, segment), 'utf8');
      // What has no line feed was not written to its end, and a later chain says so.
      for (const line of text.split('\n').slice(0, -1)) lines.push(JSON.parse(line));
    }
  }
  return lines;
}

/** Records that a full disk kept out of the audit log: the processes' own logs have them. */
export async function unwrittenLines(folder: string): Promise<AuditLine[]> {
  const lines: AuditLine[] = [];
  for (const name of await readdir(folder)) {
    for (const line of (await readFile(join(folder, name), 'utf8')).split('\n')) {
      if (!line.includes('cannot write the audit log') || !line.startsWith('{')) continue;
      const { event, exportId, payload } = JSON.parse(line);
      lines.push({ event, export_id: exportId, payload });
    }
  }
  return lines;
}

/** A worker that lost the database waits 300 ms before it tries again. */
const ANNOUNCED_AGAIN_MS = 200;

/**
 * Exactly one end of each of these exports. The log announces an end before the database has it. Where the database was lost in
 * between, the export went on running: the worker announces the end again after a pause, or another claims the export under a
 * higher fence, and that end counts instead.
 */
export function oneEndEach(lines: readonly AuditLine[], ids: readonly string[]): string | undefined {
  const transitions = lines.filter(({ event }) => event === 'export_transition');
  const claims = new Map<string, number>();
  for (const { export_id: id, payload } of transitions) {
    if (id !== null && payload.event === 'claim') claims.set(id, Math.max(claims.get(id) ?? 0, payload.fence ?? 0));
  }
  const ends = new Map<string, number>();
  const announced = new Map<string, number>();
  for (const { export_id: id, payload, occurred_at } of transitions) {
    const { to, event, fence = 0 } = payload;
    if (id === null || (to !== 'succeeded' && to !== 'failed') || fence < (claims.get(id) ?? 0)) continue;
    const at = Date.parse(occurred_at ?? '');
    const key = `${id} ${event} ${fence}`;
    const isAgain = Math.abs(at - (announced.get(key) ?? at)) >= ANNOUNCED_AGAIN_MS;
    announced.set(key, at);
    if (!isAgain) ends.set(id, (ends.get(id) ?? 0) + 1);
  }
  const wrong = ids.filter((id) => ends.get(id) !== 1);
  if (wrong.length === 0) return undefined;
  return wrong
    .map((id) => `${id} has ${ends.get(id) ?? 0} ends`)
    .slice(0, 5)
    .join(', ');
}

const get = (url: string, path: string) =>
  ask(url, path, { headers: { 'x-api-key': API_KEY, accept: '*/*' } }).catch(
    (): Reply => ({ status: 0, body: Buffer.alloc(0), headers: {} }),
  );

/** The export has succeeded, and its files are what the day's document says. @returns what is wrong */
export async function exportEnded(url: string, of: ExportOf, wasFull: boolean): Promise<string | undefined> {
  const path = `/v1/raw/export/${of.id}`;
  let status: Json;
  const fault = await settled(async () => {
    const reply = await get(url, path);
    if (reply.status !== 200) return `status ${reply.status} ${reply.body}`;
    status = JSON.parse(reply.body.toString());
    return ['succeeded', 'failed'].includes(status.status) ? undefined : `it is ${status.status}`;
  });
  if (fault) return `${of.id}: ${fault}`;
  // A full disk ends it, and says so.
  if (wasFull && /^The disk of the export root is full/.test(status.error_message)) return undefined;
  if (status.status !== 'succeeded') return `${of.id} failed: ${status.error_code} ${status.error_message}`;
  if (of.format !== 'csv') return undefined;
  const { body } = await get(url, `${path}/artifact`);
  const digest = createHash('sha256').update(body).digest('hex');
  if (digest !== status.artifact.files[0].checksum_sha256 && digest !== status.artifact.checksum_sha256) {
    return `${of.id}: the file is not the one of its status`;
  }
  if (!of.file.expected.get('csv')!.includes(digest)) return `${of.id}: the file holds what no version of the day says`;
  return undefined;
}

/** Manifest and file of an export in a folder, as a user has them. @returns false where it has none */
export async function download(url: string, id: string, folder: string): Promise<boolean> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const manifest = await get(url, `/v1/raw/export/${id}/manifest`);
  if (manifest.status !== 200) return false;
  await writeFile(join(folder, 'manifest.json'), manifest.body);
  const [{ name }] = JSON.parse(manifest.body.toString()).files;
  await writeFile(join(folder, name), (await get(url, `/v1/raw/export/${id}/artifact`)).body);
  return true;
}

// ---- the lake ------------------------------------------------------------------------------------------------------

export async function lakeFiles(folder: string): Promise<Map<string, string>> {
  const files = await tableFiles(folder);
  // Names have the change at which a file was written, which differs between two lakes.
  return new Map(files.map(({ path, sha256, rows }) => [dirname(path), `${sha256} ${rows} rows`]));
}

export async function lakeChange(folder: string): Promise<number> {
  const text = await readFile(join(folder, '_manifest.json'), 'utf8').catch(() => undefined);
  return text === undefined ? -1 : (JSON.parse(text) as LakeManifest).change;
}
