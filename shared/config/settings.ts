/**
 * The table of every setting of the service; the files of `settings/` hold its parts. `npm run docs` generates
 * `.env.example` from it, and a test keeps the two equal. Precedence: command-line flag, environment, `.env`, default.
 */

import { join } from 'node:path';
import type { z } from 'zod';
import type { Limits } from './limits.ts';
import { LOG, OPERATIONS, STACK } from './settings/operations.ts';
import { EXPORTS, SERVING } from './settings/serving.ts';
import type { Setting } from './settings/setting.ts';
import { SOURCES } from './settings/sources.ts';

export type { Setting } from './settings/setting.ts';

export const SETTINGS = {
  ...STACK,
  ...SERVING,
  ...EXPORTS,
  ...SOURCES,
  ...OPERATIONS,
  ...LOG,
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof SETTINGS;

/** A setting that a dataset names; test/unit/registry.test.ts checks that each exists. */
export const settingValue = (settings: Settings, name: string): Settings[SettingName] => settings[name as SettingName];

/** Parsed settings; a setting without a default may be undefined. The limits are those of the product, except in tests. */
export type Settings = { readonly limits: Limits } & {
  readonly [N in SettingName]: (typeof SETTINGS)[N] extends { readonly default: string }
    ? z.output<(typeof SETTINGS)[N]['schema']>
    : z.output<(typeof SETTINGS)[N]['schema']> | undefined;
};

/** The folder of the proof log, which the sequencer writes and the service hands out. */
export const proofLogFolderOf = (settings: Pick<Settings, 'SVC_STATE_DIR' | 'SVC_PROOF_LOG_DIR'>): string =>
  settings.SVC_PROOF_LOG_DIR ?? join(settings.SVC_STATE_DIR, 'proof-log');

/** The folder of the kept documents, and of what the documents that a vendor replaced change. */
export const keepFolderOf = (settings: Pick<Settings, 'SVC_STATE_DIR' | 'SVC_KEEP_DIR'>): string =>
  settings.SVC_KEEP_DIR ?? join(settings.SVC_STATE_DIR, 'kept');

/** Where it has the bytes with this digest. */
export const keptObject = (folder: string, sha256: string): string =>
  join(folder, 'objects', sha256.slice(0, 2), sha256);

/** The folders of exports and of their audit log: the service writes them, the operator's commands read them. */
type FolderSettings = Pick<Settings, 'SVC_STATE_DIR' | 'SVC_EXPORT_ROOT_DIR' | 'SVC_EXPORT_AUDIT_LOG_PATH'>;

export const exportRootOf = (settings: FolderSettings): string =>
  settings.SVC_EXPORT_ROOT_DIR ?? join(settings.SVC_STATE_DIR, 'exports');

export const auditFolderOf = (settings: FolderSettings): string =>
  settings.SVC_EXPORT_AUDIT_LOG_PATH ?? join(settings.SVC_STATE_DIR, 'export-audit');

/** Where the proof log and its keys are. */
export const proofLogOf = (settings: Settings) => ({
  folder: proofLogFolderOf(settings),
  secret: settings.SVC_PROOF_LOG_KEY,
  origin: settings.SVC_PROOF_LOG_ORIGIN,
});
