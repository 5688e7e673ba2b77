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
    doc: 'A PostgreSQL with TimescaleDB to use instead of the embedded one. Every process uses it; where other roles are set below, it is that of ingest and of commands (in the HTTP service and the export worker: their own).',
  },
  SVC_DATABASE_OWNER_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'The same database through the role that owns it, for migrations and `read-role`; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_SERVE_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'The same database through the role of the HTTP service that `up` starts; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_EXPORT_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'The same database through the role of the workers that `export-worker` starts; unset: SVC_DATABASE_URL, which must then be of a role that may run exports: `tidemark_ingest` may not.',
  },
  SVC_DATABASE_MONITOR_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'The same database through the role that the HTTP service collects its figures with; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_ADMIN_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['postgres:', 'postgresql:'],
    secret: true,
    doc: 'The same database through a superuser, for `migrate` alone: it makes the roles that the other URLs name, with their passwords. No running process needs it.',
  },
  SVC_NATS_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'A nats-server with JetStream to use instead of the embedded one; of a cluster one, and the others by `?servers=HOST:PORT,HOST:PORT`; `?inbox=PREFIX` where its account may listen to nothing else. The account writes events.',
  },
  SVC_NATS_PROJECTOR_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'The same nats-server through the account of the projector; unset: SVC_NATS_URL.',
  },
  SVC_NATS_OPERATOR_URL: {
    group: 'Stack',
    kind: 'url',
    schemes: ['nats:', 'tls:'],
    secret: true,
    doc: 'The same nats-server through an account that makes and changes streams: `migrate`, backfills and repairs use it; unset: SVC_NATS_URL.',
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
