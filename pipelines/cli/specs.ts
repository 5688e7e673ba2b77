/** Every command's words: positionals, options, help. What they do is in commands/. */
import { LEDGER_KINDS } from '../../shared/db/catalog.ts';
import type { CommandSpec, OptionSpec } from './options.ts';
import { SELECTION } from './options.ts';

const OPTIONAL_DAYS = {
  from: { type: 'string', day: true, doc: 'First day; default the first there is.' },
  to: { type: 'string', day: true, doc: 'Last day, included; default the last there is.' },
  partition: { type: 'string', doc: 'This partition alone.' },
  'from-height': { type: 'string', integer: true, doc: 'First block, of datasets of the chain.' },
  'to-height': { type: 'string', integer: true, doc: 'The last, included.' },
} as const satisfies Record<string, OptionSpec>;

export const up: CommandSpec = {
  name: 'up',
  positionals: [],
  options: {},
  doc: 'Starts the database, the log, the projectors and the HTTP service, and stops them again on Ctrl-C, on SIGTERM, or when its terminal is closed.',
};

export const sample: CommandSpec = {
  name: 'sample',
  positionals: ['feed'],
  options: {
    from: { type: 'string', day: true, required: true, doc: 'First day.' },
    to: { type: 'string', day: true, required: true, doc: 'The last, included; it must be over.' },
    out: {
      type: 'string',
      required: true,
      doc: 'The folder to write to, below which the layout of the vendor begins.',
    },
    rows: { type: 'string', integer: true, min: 1, doc: 'Of an exchange: trades a day, 60,000 if not given.' },
  },
  doc: "Writes synthetic documents in the vendor's own layout, to try `backfill` and programs of your own without the vendor. The same days give the same documents on every machine. The command needs no server and changes no file that is there.",
};

export const migrate: CommandSpec = {
  name: 'migrate',
  positionals: [],
  options: {},
  doc: 'Brings the database to the current schema. Safe to run at any time; every other command does it too.',
};

export const backfill: CommandSpec = {
  name: 'backfill',
  positionals: ['feed...'],
  options: {
    ...SELECTION,
    'dry-run': { type: 'boolean', doc: 'Show the plan and do nothing.' },
    compare: { type: 'boolean', doc: 'Also ask the sources whether what is proved is still what they say.' },
  },
  doc: 'Fetches what is expected in the days or blocks given and not proved, publishes it to the log and waits for its proof. `all` is every feed whose source is set.',
};

export const reingest: CommandSpec = {
  name: 'reingest',
  positionals: ['feed...'],
  options: {
    ...SELECTION,
    'dry-run': { type: 'boolean', doc: 'Show the plan and do nothing.' },
    reason: { type: 'string', required: true, doc: 'Why; kept in the ledger.' },
  },
  doc: 'Replaces proved or quarantined partitions by what the source says now, as a new revision. Readers see the old rows until the new ones are proved.',
};

export const reparse: CommandSpec = {
  name: 'reparse',
  positionals: ['feed'],
  options: {
    ...SELECTION,
    reason: { type: 'string', doc: 'Why what is proved is to be replaced where it differs; kept in the ledger.' },
  },
  doc: 'Parses anew the documents that were kept when they were fetched, and publishes the partitions that are missing: after a loss, or when an adapter has learnt a layout. What is proved is compared; with a reason, what differs is replaced as a new revision. Nobody is asked for anything.',
};

export const follow: CommandSpec = {
  name: 'follow',
  positionals: ['feed...?'],
  options: {},
  doc: 'Publishes and proves what is new as it comes, of each feed on its own rhythm, until it is stopped. Without a name: of every feed whose source is set. A fault of one is tried again with growing pauses and does not touch the others.',
};

export const replay: CommandSpec = {
  name: 'replay',
  positionals: ['dataset...'],
  options: {
    ...OPTIONAL_DAYS,
    'verify-only': { type: 'boolean', doc: 'Say what differs and replace nothing; exit 1 if something does.' },
  },
  doc: 'Builds proved and quarantined partitions again from the log, beside what is served, and compares. Those whose served rows differ are replaced, in one transaction each, while reads go on; the others are left alone. `all` is every dataset.',
};

export const verify: CommandSpec = {
  name: 'verify',
  positionals: ['dataset...'],
  options: {
    ...OPTIONAL_DAYS,
    deep: { type: 'boolean', doc: "Also compare every stored row's bytes with the log." },
    every: {
      type: 'string',
      integer: true,
      min: 1,
      doc: 'Go on until stopped: each partition again this many seconds after the last time.',
    },
  },
  doc: 'Counts stored rows again and compares them with their manifests. A partition that no longer matches is quarantined at once. `all` is every dataset.',
};

export const recover: CommandSpec = {
  name: 'recover',
  positionals: ['dataset...'],
  options: {
    'dry-run': { type: 'boolean', doc: 'Say how the two stores stand to each other and change nothing.' },
    reason: { type: 'string', doc: 'Kept in the ledger.' },
  },
  doc: 'Puts database and log in step after they were restored to different points, or the log lost its tail. What is proved stays served; the checkpoint goes back to the last message that both know; what the log no longer holds is named. `all` is every dataset.',
};

export const doctor: CommandSpec = {
  name: 'doctor',
  positionals: [],
  options: { check: { type: 'string', doc: 'This check alone.' } },
  doc: 'Checks settings, both stores, schema, log, space and work in progress, changes nothing, and names the fix of each finding.',
};

export const quarantine: CommandSpec = {
  name: 'quarantine',
  positionals: ['dataset?', 'partition?'],
  options: {},
  doc: 'Lists what is kept back, with what was expected and what was found, and the way out of it.',
};

export const release: CommandSpec = {
  name: 'release',
  positionals: ['dataset', 'partition'],
  options: { reason: { type: 'string', required: true, doc: 'Why; kept in the ledger.' } },
  doc: 'Takes a partition out of quarantine. Rows that verification took out and that equal their manifest again are served again; all others are given up, so that the next backfill fetches the partition anew.',
};

export const ledger: CommandSpec = {
  name: 'ledger',
  positionals: ['dataset?'],
  options: {
    kind: { type: 'string', choices: LEDGER_KINDS, doc: 'Entries of this kind alone.' },
    limit: { type: 'string', integer: true, min: 1, doc: 'How many, the newest first. 50 if not given.' },
  },
  doc: 'Shows what was done to partitions on purpose and what was refused: revisions, quarantines, releases, late arrivals, recoveries.',
};

export const runs: CommandSpec = {
  name: 'runs',
  positionals: [],
  options: {
    open: { type: 'boolean', doc: 'What is at work now alone.' },
    limit: { type: 'string', integer: true, min: 1, doc: 'How many, the newest first. 20 if not given.' },
  },
  doc: 'Shows what is at work, by whom, and how far it is; and what was.',
};

export const status: CommandSpec = {
  name: 'status',
  positionals: ['dataset?'],
  options: {},
  doc: 'Shows what is proved, what is missing or quarantined and why, how far the projector is behind the log.',
};

export const event: CommandSpec = {
  name: 'event',
  positionals: ['dataset', 'offset'],
  options: { partition: { type: 'string', doc: 'Which partition, where several hold the offset.' } },
  doc: "Shows one event's vendor bytes and their sha256, read back from the log, and the document they came from.",
};

export const exportWorker: CommandSpec = {
  name: 'export-worker',
  positionals: [],
  options: {},
  doc: 'Runs queued exports, beside those that the HTTP service runs or instead of them, until it is stopped; what runs then is given back. On another machine it needs SVC_DATABASE_URL, SVC_NATS_EXPORT_URL or SVC_NATS_URL, and the same SVC_EXPORT_ROOT_DIR on a shared file system.',
};

export const audit: CommandSpec = {
  name: 'audit',
  positionals: ['action'],
  options: {
    'dry-run': { type: 'boolean', doc: 'prune: only say what would be deleted.' },
  },
  doc: '`verify` reads the whole audit log of exports and names every record that was changed, cut off or taken away; it ends with 1 if there is one. `prune` deletes segments older than SVC_AUDIT_LOG_RETENTION_DAYS, and records that it did.',
};

export const readRole: CommandSpec = {
  name: 'read-role',
  positionals: ['role'],
  options: {
    rotate: { type: 'boolean', doc: 'Give a role that exists a new password.' },
    sql: { type: 'boolean', doc: 'Only print the statements, for a database whose roles someone else makes.' },
  },
  doc: 'Makes a database role that may read what reads need and do nothing else, or brings it up to date. Its password, which callers of BYOK Required datasets send as X-Backend-Token, is shown once. Name the role in SVC_BYOK_DATABASE_ROLE.',
};

export const rights: CommandSpec = {
  name: 'rights',
  positionals: ['action', 'source...?'],
  options: {},
  doc: '`init` writes a rights matrix of your own, where SVC_SOURCE_RIGHTS_MATRIX_PATH says or else as rights/matrix.json in the state folder, and beside it one form a source for the sign-off of its licence. Sources that are named are to be served and the others are Ingest Only; without a name all are to be served. Rows that a source published are refused until its form is filled in. Nothing that is there is overwritten.',
};
