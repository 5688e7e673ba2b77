/** Settings of the embedded stack, and what is used in its place. */
import type { Setting } from './types.ts';

export const STACK = {
  SVC_STATE_DIR: {
    group: 'Stack',
    kind: 'path',
    default: '.tidemark',
    doc: 'Folder of the embedded stack: database and log files, ports, generated secrets.',
  },
  SVC_DATABASE_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'A PostgreSQL with TimescaleDB to use instead of the embedded one.',
  },
  SVC_NATS_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'A nats-server with JetStream to use instead of the embedded one; of a cluster one, and the others by `?servers=HOST:PORT,HOST:PORT`.',
  },
  SVC_NATS_READER_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'The same nats-server through an account that may only read, for lineage; unset: SVC_NATS_URL.',
  },
  SVC_NATS_EXPORT_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'The same nats-server through the account of the export queue; unset: SVC_NATS_URL.',
  },
  SVC_SAMPLE: {
    group: 'Stack',
    kind: 'boolean',
    default: 'true',
    doc: 'Load a small synthetic sample into an empty system at start; never for a dataset whose source location is set.',
  },
} as const satisfies Record<string, Setting>;
