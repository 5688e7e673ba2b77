/** The proof log of a test's system: the sequencer in this process, its checkpoint, and a system whose three days are logged. */
import { createHash } from 'node:crypto';
import { cp, mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { ClientBase } from 'pg';
import { Sequencer } from '../../pipelines/proof-log/sequencer.ts';
import { connect } from '../../shared/db/connect.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { openCheckpoint, type Signer, signCheckpoint } from '../../shared/proof-log/note.ts';
import { readSigners } from '../../shared/proof-log/signers.ts';
import { type Exports, startExports } from './exports.ts';
import { DATASET, System } from './pipeline.ts';
import type { TestEnv } from './stack.ts';
import { FROM, SMALL_DAYS, TO, writeDays } from './three-days.ts';

export const logFolderOf = ({ dir }: Pick<TestEnv, 'dir'>): string => join(dir, 'state', 'proof-log');

/** Gives every leaf an index and signs the tree. @returns its size */
export async function sequence(env: Pick<TestEnv, 'dir' | 'databaseUrl'>): Promise<number> {
  await using client = await connect({ url: env.databaseUrl, name: 'test proof log' });
  const sequencer = await Sequencer.open({ client, folder: logFolderOf(env), secret: undefined });
  while ((await sequencer.round()) > 0);
  const { rows } = await client.query('select size from proof_head');
  return Number(rows[0].size);
}

/** The checkpoint of the folder, verified by the log's key. */
export async function checkpointOf(env: Pick<TestEnv, 'dir'>) {
  const folder = logFolderOf(env);
  const { verifier } = (await readSigners({ folder }))!.current;
  const note = Buffer.from((await folderSource(folder)('checkpoint'))!).toString();
  return { ...openCheckpoint(note, [verifier]), note, verifier };
}

/** A log of at most 255 entries, written by hand (RFC 6962, C2SP), and signed with keys. @returns its checkpoint */
export async function forgeLog(
  folder: string,
  entries: readonly Uint8Array[],
  by: readonly Signer[],
  seconds?: number,
): Promise<string> {
  const sha256 = (...parts: Uint8Array[]) =>
    parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest();
  const hashes = entries.map((entry) => sha256(Buffer.of(0), entry));
  const rootOf = (list: readonly Buffer[]): Buffer => {
    if (list.length < 2) return list[0];
    const k = 2 ** Math.ceil(Math.log2(list.length) - 1);
    return sha256(Buffer.of(1), rootOf(list.slice(0, k)), rootOf(list.slice(k)));
  };
  const size = entries.length;
  const write = async (path: string, bytes: Uint8Array | string) => {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), bytes);
  };
  const lengths = entries.map((entry) => Buffer.of(entry.length >> 8, entry.length & 255));
  await write(`tile/0/000.p/${size}`, Buffer.concat(hashes));
  await write(`tile/entries/000.p/${size}`, Buffer.concat(entries.flatMap((entry, at) => [lengths[at], entry])));
  const [{ verifier }] = by;
  await write('key', `${verifier.line}\n`);
  const note = signCheckpoint({ origin: verifier.name, size, root: rootOf(hashes) }, by, seconds);
  await write('checkpoint', note);
  return note;
}

const TABLES = ['proof_leaves', 'proof_head'];

/** Keeps the log's tables and its folder. @returns puts both back, as from a backup */
export async function backUpLog(client: ClientBase, folder: string, to: string): Promise<() => Promise<void>> {
  for (const table of TABLES) await client.query(`create table kept_${table} as table ${table}`);
  await cp(folder, to, { recursive: true });
  return async () => {
    for (const table of TABLES) {
      await client.query(`truncate ${table}`);
      await client.query(`insert into ${table} overriding system value table kept_${table}`);
    }
    await rm(folder, { recursive: true });
    await cp(to, folder, { recursive: true });
  };
}

/** Three days of exchange A, proved and under a checkpoint, with the service and its exports. */
export interface LoggedSystem extends AsyncDisposable {
  readonly system: System;
  readonly exports: Exports;
  /** The verifier key of the log. */
  readonly key: string;
  /** Runs an export and downloads it as a user would. @returns the folder of manifest and files */
  download(body?: object): Promise<string>;
}

const MONTH = { format: 'csv', month_year: [3, 2024] };

export async function createLogged(): Promise<LoggedSystem> {
  const system = await System.create();
  await writeDays(system, SMALL_DAYS);
  const { exit, stderr } = await system.backfill(FROM, TO);
  if (exit !== 0) throw new Error(stderr);
  await sequence(system.env);
  const exports = await startExports(system.env, { settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl } });
  return {
    system,
    exports,
    key: (await checkpointOf(system.env)).verifier.line,
    async download(body = MONTH) {
      const { json } = await exports.run({ dataset: DATASET, ...body });
      if (json.status !== 'succeeded') throw new Error(JSON.stringify(json));
      const folder = join(system.env.dir, json.export_id);
      await mkdir(folder);
      const { text } = await exports.get(`/v1/raw/export/${json.export_id}/manifest`);
      await writeFile(join(folder, 'manifest.json'), text);
      for (const { name } of JSON.parse(text).files) {
        await cp(join(exports.root, json.export_id, '1', name), join(folder, name));
      }
      return folder;
    },
    async [Symbol.asyncDispose]() {
      await exports[Symbol.asyncDispose]();
      await system[Symbol.asyncDispose]();
    },
  };
}
