/** The life of an export, as a table: every state, every event, and what follows. The database's updates are made from it. */

export const EXPORT_STATES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type ExportState = (typeof EXPORT_STATES)[number];

export const EXPORT_EVENTS = [
  /** A worker takes it: the first time, or after the one before gave it back or died. */
  'claim',
  /** A worker gives it back: it is stopped, or a store is away. Nobody runs it then; it is claimed again. */
  'release',
  'succeed',
  'fail',
  /** The caller wants it no longer. */
  'cancel',
] as const;
export type ExportEvent = (typeof EXPORT_EVENTS)[number];

/** The event means nothing in this state, and changes nothing. */
const REFUSED = null;

export const TRANSITIONS: Readonly<Record<ExportState, Readonly<Record<ExportEvent, ExportState | typeof REFUSED>>>> = {
  queued: { claim: 'running', release: REFUSED, succeed: REFUSED, fail: 'failed', cancel: 'failed' },
  running: { claim: 'running', release: 'running', succeed: 'succeeded', fail: 'failed', cancel: 'failed' },
  succeeded: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
  failed: { claim: REFUSED, release: REFUSED, succeed: REFUSED, fail: REFUSED, cancel: REFUSED },
};

export const isFinished = (state: ExportState): boolean => state === 'succeeded' || state === 'failed';
