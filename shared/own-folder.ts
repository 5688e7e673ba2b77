/** Folders of this user at places where every user of the host can make one first, such as the temporary directory. */
import { chmod, lstat, mkdir, stat } from 'node:fs/promises';

/**
 * Whether this user owns the folder and, where its path is a link, the link too: whoever owns a link can lead it elsewhere later.
 * @throws the system's error, such as ENOENT
 */
export async function isOwn(path: string): Promise<boolean> {
  const uid = process.getuid?.();
  return (await lstat(path)).uid === uid && (await stat(path)).uid === uid;
}

/**
 * Makes a folder that nobody else can enter, or takes the one that is there.
 * @throws Error where it is a link, no folder, or another user's
 */
export async function makePrivateFolder(path: string): Promise<void> {
  await mkdir(path, { recursive: true, mode: 0o700 });
  const found = await lstat(path);
  const uid = process.getuid?.();
  if (found.isSymbolicLink()) throw new Error(`${path} is a symbolic link, and is not followed`);
  if (!found.isDirectory()) throw new Error(`${path} is not a folder`);
  if (uid !== undefined && found.uid !== uid)
    throw new Error(`${path} belongs to the user ${found.uid}, and this process runs as ${uid}`);
  if ((found.mode & 0o777) !== 0o700) await chmod(path, 0o700);
}
