/** The folders of exports and of their audit log: the service writes them, the operator's commands read them. */

import { join } from 'node:path';
import type { Settings } from './settings.ts';

type FolderSettings = Pick<Settings, 'SVC_STATE_DIR' | 'SVC_EXPORT_ROOT_DIR' | 'SVC_EXPORT_AUDIT_LOG_PATH'>;

export const exportRootOf = (settings: FolderSettings): string =>
  settings.SVC_EXPORT_ROOT_DIR ?? join(settings.SVC_STATE_DIR, 'exports');

export const auditFolderOf = (settings: FolderSettings): string =>
  settings.SVC_EXPORT_AUDIT_LOG_PATH ?? join(settings.SVC_STATE_DIR, 'export-audit');
