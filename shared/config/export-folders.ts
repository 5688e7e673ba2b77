/** Where exports and their audit log lie, by the settings: the service writes there, the operator's command looks there. */

import { join } from 'node:path';
import type { Settings } from './settings.ts';

type Places = Pick<Settings, 'SVC_STATE_DIR' | 'SVC_EXPORT_ROOT_DIR' | 'SVC_EXPORT_AUDIT_LOG_PATH'>;

export const exportRootOf = (settings: Places): string =>
  settings.SVC_EXPORT_ROOT_DIR ?? join(settings.SVC_STATE_DIR, 'exports');

export const auditFolderOf = (settings: Places): string =>
  settings.SVC_EXPORT_AUDIT_LOG_PATH ?? join(settings.SVC_STATE_DIR, 'export-audit');
