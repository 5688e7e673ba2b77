/** The type of a setting's entry in the table. */

type SettingKind = 'string' | 'integer' | 'url' | 'path' | 'boolean' | 'choice' | 'origins';

export interface Setting {
  readonly kind: SettingKind;
  /** Default as text. Without one the setting may be unset, unless `LoadOptions.required` names it. */
  readonly default?: string;
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  /** Allowed URL schemes, with their colon. */
  readonly schemes?: readonly string[];
  readonly secret?: boolean;
  readonly unit?: string;
  readonly group: string;
  readonly doc: string;
}

export const MIB = 1024 * 1024;
