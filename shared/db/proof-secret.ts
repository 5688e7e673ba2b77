/**
 * The secret of the proof log, of which the salts of leaves are made. The database has it, for whoever writes leaves, and so has a file
 * beside the log's folder, so that a database which is built anew from the log makes the leaves that it made before.
 */
import { randomBytes } from 'node:crypto';
import type { ClientBase, Pool } from 'pg';
import { TidemarkError } from '../errors.ts';
import { SaltFault, SECRET_BYTES, saltOf } from '../proof-log/commitment.ts';
import { CHECKPOINT_FILE, folderSource, readSecret, secretPathOf, writeSecret } from '../proof-log/folder.ts';
import { decodeLeaf } from '../proof-log/leaf.ts';
import { PROOF_LOG_LOCK } from './connect.ts';

async function storedSecret(client: ClientBase | Pool): Promise<Buffer | undefined> {
  const { rows } = await (client as Pool).query<{ secret: Buffer }>('select secret from proof_secret');
  return rows[0]?.secret;
}

/** The secret. A projector stored it before anything was proved. @throws TidemarkError PROOF_LOG_DIVERGED */
export async function proofSecret(client: ClientBase | Pool): Promise<Buffer> {
  const secret = await storedSecret(client);
  if (secret) return secret;
  throw new TidemarkError('PROOF_LOG_DIVERGED', 'The database has no secret of the proof log', {
    remedy:
      'Start a projector, as `./tidemark up` does: it stores the secret of the log’s file, or makes one for a new log.',
  });
}

/**
 * Brings database and file to the same secret, which is made where the log is new.
 * @throws TidemarkError PROOF_LOG_DIVERGED where leaves made with it would differ from those that are there
 */
export async function holdSecret(client: ClientBase, folder: string): Promise<void> {
  await client.query('select pg_advisory_lock($1, 2)', [PROOF_LOG_LOCK]);
  try {
    const kept = await readSecret(folder).catch((cause) => {
      throw cause instanceof SaltFault ? otherSecret(folder, cause) : cause;
    });
    const stored = await storedSecret(client);
    if (kept && stored && !kept.equals(stored)) throw otherSecret(folder);
    if (kept && stored) return;
    if (stored) {
      await writeSecret(folder, stored);
      return;
    }
    const leaf = await newestLeaf(client);
    const path = secretPathOf(folder);
    if (!kept && (leaf || (await folderSource(folder)(CHECKPOINT_FILE)))) {
      throw new TidemarkError(
        'PROOF_LOG_DIVERGED',
        `The secret of the proof log is lost: neither ${path} nor the database has it, and leaves made with another would differ`,
        { remedy: `Restore ${path} from a backup. Without one the log ends here: begin anew.` },
      );
    }
    if (kept && leaf && !saltOf(kept, leaf).equals(leaf.salt)) throw otherSecret(folder);
    const secret = kept ?? randomBytes(SECRET_BYTES);
    // The file first: a crash between the two leaves a secret that the next start takes.
    if (!kept) await writeSecret(folder, secret);
    await client.query('insert into proof_secret (secret) values ($1)', [secret]);
  } finally {
    // Where the connection is lost, so is the lock.
    await client.query('select pg_advisory_unlock($1, 2)', [PROOF_LOG_LOCK]).catch(() => {});
  }
}

const otherSecret = (folder: string, cause?: unknown) =>
  new TidemarkError(
    'PROOF_LOG_DIVERGED',
    `${secretPathOf(folder)} is not the secret that the leaves of the database were made with`,
    {
      remedy: `Restore ${secretPathOf(folder)} from a backup of this log, or remove it if the database is the log’s own: it is written again.`,
      cause,
    },
  );

async function newestLeaf(client: ClientBase) {
  const { rows } = await client.query<{ body: Buffer; salt: Buffer }>(
    'select body, salt from proof_leaves where salt is not null order by entry_id desc limit 1',
  );
  if (!rows[0]) return undefined;
  const { dataset, partition, revision } = decodeLeaf(rows[0].body);
  return { dataset: dataset!, partition: partition!, revision: revision!, salt: rows[0].salt };
}
