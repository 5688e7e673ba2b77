/** Why an artifact could not be written or is not what it was. Messages name no path: they may reach a caller. */

export type ArtifactFaultKind =
  /** The disk, or the share of it, is full. */
  | 'no_space'
  /** The directory is missing, read-only or not ours. */
  | 'not_writable'
  /** The disk failed. */
  | 'io'
  /** A later attempt at the same artifact took this one's place. */
  | 'superseded';

const MESSAGES: Readonly<Record<ArtifactFaultKind, string>> = {
  no_space: 'the disk of the export root is full',
  not_writable: 'the export root cannot be written',
  io: 'the disk of the export root failed',
  superseded: 'a later attempt at the same export has taken over',
};

const KINDS: Readonly<Record<string, ArtifactFaultKind>> = {
  ENOSPC: 'no_space',
  EDQUOT: 'no_space',
  EFBIG: 'no_space',
  EACCES: 'not_writable',
  EPERM: 'not_writable',
  EROFS: 'not_writable',
  ENOTDIR: 'not_writable',
  ENOENT: 'not_writable',
};

export class ArtifactFault extends Error {
  override readonly name = 'ArtifactFault';
  readonly kind: ArtifactFaultKind;

  constructor(kind: ArtifactFaultKind, cause?: unknown) {
    super(MESSAGES[kind], cause === undefined ? undefined : { cause });
    this.kind = kind;
  }
}

/** What a failed call on a file means. */
export function artifactFault(cause: unknown): ArtifactFault {
  if (cause instanceof ArtifactFault) return cause;
  return new ArtifactFault(KINDS[String((cause as { code?: unknown } | null)?.code)] ?? 'io', cause);
}
