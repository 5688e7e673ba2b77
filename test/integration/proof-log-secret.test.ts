/** The secret of the proof log: where it lies, who has it, and what happens where it is lost or another. */
import { readFile, rm, stat, writeFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { holdSecret } from '../../shared/db/proof-secret.ts';
import { DATABASE_ROLES } from '../../shared/db/roles.ts';
import { secretPathOf } from '../../shared/proof-log/folder.ts';
import { decodeLeaf } from '../../shared/proof-log/leaf.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { logFolderOf, sequence } from '../support/proof-log.ts';

const DAY = '2024-01-01';

async function proved(): Promise<System> {
  const system = await System.create();
  await writeDocument(system.vendor, DAY, csvOf({ day: DAY, firstId: 1, seed: 1, rows: 100, timeUnit: 'ms' }));
  expect((await system.backfill(DAY, DAY)).exit).toBe(0);
  return system;
}

const pathOf = ({ env }: System) => secretPathOf(logFolderOf(env));
const hold = (system: System) => holdSecret(system.client, logFolderOf(system.env));
const forget = (system: System) => system.rows('delete from proof_secret');

/** All that leaves say but when. */
const statements = async (system: System) =>
  (await system.rows('select body, salt from proof_leaves order by entry_id')).map(({ body, salt }) => {
    const { at, ...stated } = decodeLeaf(body);
    return { ...stated, salt: salt.toString('hex') };
  });

test('it lies in the database and in a file of its owner, and only those who write leaves may read it', async () => {
  await using system = await proved();
  const [{ secret }] = await system.rows('select secret from proof_secret');
  expect(await readFile(pathOf(system), 'utf8')).toBe(`${secret.toString('hex')}\n`);
  expect((await stat(pathOf(system))).mode & 0o777).toBe(0o600);
  for (const role of DATABASE_ROLES) {
    await using client = await connect({ url: system.env.databaseUrls[role], name: 'test' });
    const read = client.query('select secret from proof_secret').then(({ rows }) => rows.length);
    if (role === 'ingest' || role === 'owner') expect([role, await read]).toEqual([role, 1]);
    else await expect(read, role).rejects.toThrow('permission denied');
  }
});

test('a database that is built again from the log, with the file alone, makes the leaves that it made before', async () => {
  await using system = await proved();
  const before = await statements(system);
  expect(before).toHaveLength(1);
  await system.rows('truncate partitions, attempts, frames, coverage_spans, checkpoints, proof_leaves, proof_secret');
  await system.rows(`update coverage set proved = '{}'; delete from ${DATASET}`);
  expect((await system.backfill(DAY, DAY)).exit).toBe(0);
  expect(await statements(system)).toEqual(before);
});

test('of file and database the one that is left brings back the other', async () => {
  await using system = await proved();
  const text = await readFile(pathOf(system), 'utf8');
  await rm(pathOf(system));
  await hold(system);
  expect(await readFile(pathOf(system), 'utf8')).toBe(text);
  await forget(system);
  await hold(system);
  const [{ secret }] = await system.rows('select secret from proof_secret');
  expect(`${secret.toString('hex')}\n`).toBe(text);
});

test('nothing is proved with another secret, nor with a new one where it is lost', async () => {
  await using system = await proved();
  const text = await readFile(pathOf(system), 'utf8');
  const refused = expect.objectContaining({ code: 'PROOF_LOG_DIVERGED' });
  for (const other of [text.replace(/^./, (digit) => (digit === '0' ? '1' : '0')), 'no secret\n']) {
    await writeFile(pathOf(system), other);
    await expect(hold(system)).rejects.toEqual(refused);
    await expect(hold(system)).rejects.toThrow('is not the secret that the leaves of the database were made with');
    await forget(system);
    // Without the database's own the leaves tell that it is another.
    await expect(hold(system)).rejects.toEqual(refused);
    await writeFile(pathOf(system), text);
    await hold(system);
  }
  await sequence(system.env);
  await rm(pathOf(system));
  await forget(system);
  for (const lost of ['the database has leaves', 'the folder has a checkpoint']) {
    await expect(hold(system), lost).rejects.toThrow(
      /^The secret of the proof log is lost: neither .* nor the database has it/,
    );
    await system.rows('truncate proof_leaves');
  }
  expect(await readFile(pathOf(system)).catch(({ code }) => code)).toBe('ENOENT');
  const next = '2024-01-02';
  await writeDocument(system.vendor, next, csvOf({ day: next, firstId: 101, seed: 2, rows: 10, timeUnit: 'ms' }));
  const { exit, json, stderr } = await system.backfill(next, next);
  expect([exit, JSON.stringify(json) + stderr]).toEqual([
    1,
    expect.stringContaining('The secret of the proof log is lost'),
  ]);
});
