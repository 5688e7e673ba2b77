/** Settings of the log of events, and the lines that processes write. */
import { MIB, type Setting } from './types.ts';

export const LOG = {
  SVC_FRAME_RAW_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(MIB),
    min: 4096,
    max: 2 * MIB,
    doc: 'Event bytes gathered into one frame before compression. Digests do not depend on it.',
  },
  SVC_PUBLISH_WINDOW: {
    group: 'Log',
    kind: 'integer',
    unit: 'frames',
    default: '32',
    min: 1,
    max: 256,
    doc: 'Frames in flight to the log.',
  },
  SVC_STREAM_MAX_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(8 * 1024 * MIB),
    min: MIB,
    max: 1024 * 1024 * 1024 * MIB,
    doc: 'Byte limit of each stream, reserved on the disk of the log; where that has no room for it a new stream gets half, or half of that. A full stream stops the publisher; nothing is dropped.',
  },
  SVC_PULL_MAX_BYTES: {
    group: 'Log',
    kind: 'integer',
    unit: 'bytes',
    default: String(8 * MIB),
    min: 2 * MIB,
    max: 64 * MIB,
    doc: 'Bytes the projector asks for at once.',
  },
  SVC_ATTEMPT_SILENCE_MS: {
    group: 'Log',
    kind: 'integer',
    unit: 'ms',
    default: '30000',
    min: 100,
    max: 3_600_000,
    doc: 'An attempt that sends no frame for this long is rolled back; it is read again when it goes on.',
  },
  SVC_LOG_LEVEL: {
    group: 'Logs',
    kind: 'choice',
    choices: ['trace', 'debug', 'info', 'warn', 'error', 'silent'],
    default: 'info',
    doc: 'Least severe level written, one JSON object a line on stderr; on a terminal to log/tidemark.log in the state folder, and warnings and above are shown in words.',
  },
} as const satisfies Record<string, Setting>;
