/**
 * A named key of a caller: `tmk_<id>_<secret>`. The service keeps its digest alone, so whoever reads the database cannot call
 * the service. The secret has 256 random bits, so that a plain sha256 is enough.
 */
import { createHash, randomBytes } from 'node:crypto';

/** What a key may do. `operate` and `metrics` show the whole system, whatever datasets the key covers. */
export const SCOPES = ['read', 'export', 'operate', 'metrics'] as const;
export type Scope = (typeof SCOPES)[number];

/** The caller with the configured key. */
export const OWNER = 'owner';
/** The caller with SVC_METRICS_KEY. */
export const SCRAPER = 'metrics';

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** Whether a named key may have the name. */
export const isKeyName = (name: string): boolean => NAME.test(name) && name !== OWNER && name !== SCRAPER;

const ID_BYTES = 6;
const SECRET_BYTES = 32;
const TEXT = /^tmk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}$/;

export interface NewKey {
  readonly id: string;
  /** The whole key, which its caller sends. */
  readonly text: string;
  readonly digest: Buffer;
}

export const newKeyId = (): string => randomBytes(ID_BYTES).toString('hex');

export function newKey(id: string = newKeyId()): NewKey {
  const text = `tmk_${id}_${randomBytes(SECRET_BYTES).toString('base64url')}`;
  return { id, text, digest: keyDigest(text) };
}

export const keyDigest = (text: string | Buffer): Buffer => createHash('sha256').update(text).digest();

/** The id that the text of a named key carries; undefined for any other text. */
export const keyIdOf = (text: string): string | undefined => TEXT.exec(text)?.[1];
