/** The proof log of a test's system: the sequencer in this process, and the log's files over HTTP and from its folder. */
import { join } from 'node:path';
import { Sequencer } from '../../pipelines/proof-log/sequencer.ts';
import { connect } from '../../shared/db/connect.ts';
import { folderSource, readSigner } from '../../shared/proof-log/folder.ts';
import { openCheckpoint } from '../../shared/proof-log/note.ts';
import type { TestEnv } from './stack.ts';

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
  const { verifier } = (await readSigner(folder, undefined))!;
  const note = Buffer.from((await folderSource(folder)('checkpoint'))!).toString();
  return { ...openCheckpoint(note, verifier), note, verifier };
}
