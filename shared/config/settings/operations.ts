/** Backfills, following, verification. */
import type { Setting } from './types.ts';

export const OPERATIONS = {
  SVC_BACKFILL_FETCH_AHEAD: {
    group: 'Operations',
    kind: 'integer',
    unit: 'documents',
    default: '2',
    min: 0,
    max: 16,
    doc: 'Documents of one feed fetched ahead of the one that is published; they wait in the state folder.',
  },
  SVC_BACKFILL_FEEDS: {
    group: 'Operations',
    kind: 'integer',
    unit: 'feeds',
    default: '2',
    min: 1,
    max: 16,
    doc: 'Feeds that one `backfill` works on at the same time.',
  },
  SVC_FOLLOW: {
    group: 'Operations',
    kind: 'boolean',
    default: 'false',
    doc: '`up` also follows every source whose location is set, as `./tidemark follow` does.',
  },
  SVC_FOLLOW_FILES_SECONDS: {
    group: 'Operations',
    kind: 'integer',
    unit: 's',
    default: '3600',
    min: 1,
    max: 604_800,
    doc: '`follow` of an exchange looks for new file days this often.',
  },
  SVC_VERIFY_INTERVAL_SECONDS: {
    group: 'Operations',
    kind: 'integer',
    unit: 's',
    default: '86400',
    min: 0,
    max: 366 * 86_400,
    doc: '`up` counts the stored rows of each proved partition again this long after the last time, one at a time; 0: never.',
  },
  SVC_STREAM_REPLICAS: {
    group: 'Operations',
    kind: 'integer',
    default: '1',
    min: 1,
    max: 5,
    doc: 'Servers of a NATS cluster that keep each stream: 1, 3 or 5. Streams that are there are brought to it.',
  },
} as const satisfies Record<string, Setting>;
