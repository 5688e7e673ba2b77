/** The one store of documents that cannot be fetched again, where the settings put it. */
import { join } from 'node:path';
import type { Settings } from '../../../shared/config/settings.ts';
import { type Keep, openKeep } from './keep.ts';

export const keepOf = ({ SVC_KEEP_DIR, SVC_STATE_DIR }: Settings): Promise<Keep> =>
  openKeep(SVC_KEEP_DIR ?? join(SVC_STATE_DIR, 'kept'));
