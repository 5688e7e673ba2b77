/** What is said of a setting. */

type Kind = 'string' | 'integer' | 'url' | 'path' | 'boolean' | 'choice' | 'origins';

export interface Setting {
  readonly kind: Kind;
  /** Default as text; undefined = unset (optional) unless `required`. */
  readonly default?: string;
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  /** URL schemes allowed, with their colon. */
  readonly schemes?: readonly string[];
  readonly secret?: boolean;
  readonly unit?: string;
  readonly group: string;
  readonly doc: string;
}

export const MIB = 1024 * 1024;
