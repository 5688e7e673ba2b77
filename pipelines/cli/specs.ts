/** Every command's grammar and help: positionals, options, texts. The commands are in commands/. */
import { LEDGER_KINDS } from '../../shared/db/ledger-kinds.ts';
import type { CommandSpec, OptionSpec } from './options.ts';
import { SELECTION } from './options.ts';

const OPTIONAL_DAYS = {
  from: { type: 'string', day: true, doc: 'First day; default the earliest.' },
  to: { type: 'string', day: true, doc: 'Last day, included; default the latest.' },
  partition: { type: 'string', doc: 'Only this partition.' },
  'from-height': { type: 'string', integer: true, doc: 'First block.' },
  'to-height': { type: 'string', integer: true, doc: 'Last block, included.' },
} as const satisfies Record<string, OptionSpec>;

/** Longest interval of `verify --every`, which is that of SVC_VERIFY_INTERVAL_SECONDS. */
const MAX_VERIFY_EVERY_S = 366 * 86_400;
/** Longest interval of `watch-log --every`: a timer of Node waits for 2^31 - 1 ms at most, and one set to more does not wait at all. */
const MAX_WATCH_EVERY_S = 2_000_000;

export const up: CommandSpec = {
  name: 'up',
  positionals: [],
  options: {},
  doc: 'Starts the database, the log, the projector and the HTTP service. Ctrl-C, SIGTERM or closing the terminal stops them. Where they already run, it says where and ends with 0.',
};

export const env: CommandSpec = {
  name: 'env',
  positionals: [],
  options: {},
  doc: 'Prints the address and the key of the service that runs here, for a shell: `eval "$(./tidemark env)"` sets TIDEMARK_URL and TIDEMARK_KEY. Exit 1: none runs.',
};

export const sample: CommandSpec = {
  name: 'sample',
  positionals: ['feed'],
  options: {
    from: { type: 'string', day: true, required: true, doc: 'First day.' },
    to: { type: 'string', day: true, required: true, doc: 'Last day, included; it must be over.' },
    out: {
      type: 'string',
      required: true,
      doc: "Folder to write to; the vendor's layout begins below it.",
    },
    rows: { type: 'string', integer: true, min: 1, doc: 'For an exchange: trades a day. Default 60,000.' },
  },
  doc: "Writes synthetic documents in the vendor's own layout, so that you can try `backfill` and your own programs without the vendor. The same days give the same documents on every machine. Overwrites no file.",
};

export const migrate: CommandSpec = {
  name: 'migrate',
  positionals: [],
  options: {},
  doc: 'Brings the database to the current schema. Safe at any time; every command that uses the database does it too, but `doctor`.',
};

export const backfill: CommandSpec = {
  name: 'backfill',
  positionals: ['feed...'],
  options: {
    ...SELECTION,
    'dry-run': { type: 'boolean', doc: 'Show the plan and do nothing.' },
    compare: { type: 'boolean', doc: 'Also compare proved partitions with their sources.' },
  },
  doc: 'Fetches the partitions of the given days or blocks that are expected but not proved, publishes them to the log and waits for their proof. `all` is every feed whose source is set.',
};

export const reingest: CommandSpec = {
  name: 'reingest',
  positionals: ['feed...'],
  options: {
    ...SELECTION,
    'dry-run': { type: 'boolean', doc: 'Show the plan and change nothing.' },
    reason: { type: 'string', required: true, doc: 'Why; recorded in the ledger.' },
  },
  doc: 'Replaces proved or quarantined partitions with what the source publishes now, as a new revision. Readers see the old rows until the new ones are proved.',
};

export const reparse: CommandSpec = {
  name: 'reparse',
  positionals: ['feed'],
  options: {
    ...SELECTION,
    reason: { type: 'string', doc: 'Replaces proved partitions that differ, for this reason; kept in the ledger.' },
  },
  doc: 'Parses kept documents again and publishes missing partitions, after a loss or when an adapter supports a new layout. Proved partitions are compared; with a reason, those that differ are replaced. Contacts no source.',
};

export const follow: CommandSpec = {
  name: 'follow',
  positionals: ['feed...?'],
  options: {},
  doc: 'Publishes and proves new documents of each feed as they appear, until stopped. Without a name: of every feed whose source is set. A failing feed retries with growing pauses and affects no other.',
};

export const replay: CommandSpec = {
  name: 'replay',
  positionals: ['dataset...'],
  options: {
    ...OPTIONAL_DAYS,
    'verify-only': { type: 'boolean', doc: 'Report differences and replace nothing; exit 1 if there are any.' },
  },
  doc: 'Rebuilds proved and quarantined partitions from the log, beside the served rows, and compares. Partitions that differ are replaced, in one transaction each, while reads continue. `all` is every dataset.',
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
      max: MAX_VERIFY_EVERY_S,
      doc: 'Run until stopped; recount each partition every N seconds.',
    },
  },
  doc: 'Recounts stored rows and compares them with their manifests. A partition that no longer matches is quarantined at once. `all` is every dataset.',
};

export const check: CommandSpec = {
  name: 'check',
  positionals: ['path', 'second?'],
  options: {
    key: {
      type: 'string',
      doc: 'The verifier key of the log, or a file with it. Default: the key that the log of `--log`, or the mirror, names.',
    },
    log: {
      type: 'string',
      doc: 'URL of a service, or a folder with its tiles: for a key that was rotated, for two checkpoints, and to compare a mirror with.',
    },
    document: { type: 'string', doc: "Lineage answer: the vendor's file." },
  },
  doc: 'Checks without any server: an export (its folder or manifest) with every row of whole partitions, a lineage answer, one or two checkpoints, or a mirror of the proof log (a folder). It says what was checked and what was not. Exit 1: something does not hold.',
};

export const watchLog: CommandSpec = {
  name: 'watch-log',
  positionals: ['url'],
  options: {
    key: {
      type: 'string',
      doc: 'The verifier key of the log, or a file with it. Default: the one that was remembered, at first the one that the log names.',
    },
    state: { type: 'string', doc: 'File that remembers key and checkpoint. Default watch-log.json.' },
    every: {
      type: 'string',
      integer: true,
      min: 1,
      max: MAX_WATCH_EVERY_S,
      doc: 'Seconds between two checks. Default 60.',
    },
    once: { type: 'boolean', doc: 'Check once and end.' },
    'max-leaves': {
      type: 'string',
      integer: true,
      min: 1,
      doc: 'Leaves that one look reads at most; a log that says more is reported. Default 1,000,000.',
    },
    mirror: { type: 'string', doc: 'Folder that keeps a copy of all tiles.' },
    metrics: { type: 'string', doc: 'File for the textfile collector of Prometheus.' },
  },
  doc: 'Watches the proof log of a service: keeps the last checkpoint, asks whether the next one continues it, and reads the leaves. It ends with 1 and a message if the log forks, shrinks or changes.',
};

export const mirror: CommandSpec = {
  name: 'mirror',
  positionals: ['url', 'folder'],
  options: {
    key: { type: 'string', doc: 'Verifier key of the log, or a file with it: checks signatures.' },
    datasets: { type: 'string', doc: 'Only these datasets, separated by commas.' },
    exports: { type: 'string', doc: 'Only these exports, separated by commas.' },
    verify: { type: 'boolean', doc: 'Hash every local file, and download those that differ.' },
  },
  doc: 'Copies a lake or exports to a folder, later what changed. `url` ends in `/v1/lake` or `/v1/raw/export`, or is any URL, also `file://`, of a lake.',
};

export const proofLog: CommandSpec = {
  name: 'proof-log',
  positionals: ['action'],
  options: { reason: { type: 'string', doc: 'restored: why; kept in the log itself.' } },
  doc: '`rotate` makes a new key of the proof log, whose line the old key signs. `restored` gives a restored database the leaves that it lost from the files of the log, or lost files from the database, and says so in the log.',
};

export const compact: CommandSpec = {
  name: 'compact',
  positionals: [],
  options: {},
  doc: 'Puts chunks of trades, blocks, mempool snapshots and aligned rows that are wholly proved and older than `SVC_COLUMNSTORE_AFTER_DAYS` into the columnstore, where the edition of TimescaleDB has one.',
};

export const recover: CommandSpec = {
  name: 'recover',
  positionals: ['dataset...'],
  options: {
    'dry-run': { type: 'boolean', doc: 'Report how the two stores differ and change nothing.' },
    reason: { type: 'string', doc: 'Why; kept in the ledger.' },
  },
  doc: 'Brings database and log back in step after they were restored to different points, or after the log lost its tail. Proved rows stay served, the checkpoint goes back to the last message that both know, and partitions missing from the log are named. A stream of changes that holds anything else than the changes of the catalog is filled again from it. `all` is every dataset.',
};

export const doctor: CommandSpec = {
  name: 'doctor',
  positionals: [],
  options: { check: { type: 'string', doc: 'Only this check.' } },
  doc: 'Checks settings, both stores, schema, log, space and work in progress, and names the fix of each finding. Changes nothing.',
};

export const quarantine: CommandSpec = {
  name: 'quarantine',
  positionals: ['dataset?', 'partition?'],
  options: {},
  doc: 'Lists quarantined partitions with what was expected, what was found, and what to do.',
};

export const release: CommandSpec = {
  name: 'release',
  positionals: ['dataset', 'partition'],
  options: { reason: { type: 'string', required: true, doc: 'Why; kept in the ledger.' } },
  doc: 'Takes a partition out of quarantine. Days of trades that `verify` quarantined and that equal their manifest again are served again; all other rows are dropped, and the next backfill fetches the partition anew.',
};

export const ledger: CommandSpec = {
  name: 'ledger',
  positionals: ['dataset?'],
  options: {
    kind: { type: 'string', choices: LEDGER_KINDS, doc: 'Only entries of this kind.' },
    limit: { type: 'string', integer: true, min: 1, doc: 'How many, newest first. Default 50.' },
  },
  doc: 'Shows deliberate changes of partitions, and refusals: revisions, quarantines, releases, late arrivals, recoveries, losses of the log.',
};

export const runs: CommandSpec = {
  name: 'runs',
  positionals: [],
  options: {
    open: { type: 'boolean', doc: 'Only work in progress.' },
    limit: { type: 'string', integer: true, min: 1, doc: 'How many, newest first. Default 20.' },
  },
  doc: 'Shows running and past work: which process does what, and how far it is.',
};

export const status: CommandSpec = {
  name: 'status',
  positionals: ['dataset?'],
  options: {},
  doc: 'Shows proved ranges, gaps and quarantined partitions with their reasons, and how far the projector is behind the log.',
};

export const event: CommandSpec = {
  name: 'event',
  positionals: ['dataset', 'offset'],
  options: {
    date: { type: 'string', doc: 'The file day of a trade, YYYY-MM-DD: ids of exchange C begin anew every day.' },
    partition: { type: 'string', doc: 'The partition, when several hold the offset.' },
  },
  doc: "Shows one event's vendor bytes and their sha256, read from the log, and the document they came from.",
};

export const explain: CommandSpec = {
  name: 'explain',
  positionals: ['request'],
  options: {
    url: { type: 'string', doc: 'Another service; its key is in TIDEMARK_KEY. Default: the one that runs here.' },
  },
  doc: 'Shows how much of the history a query would search: partitions and frames that its filters leave, and those that the ranges of their values rule out. `request` is the JSON body of a query. Reads no rows.',
};

export const exportWorker: CommandSpec = {
  name: 'export-worker',
  positionals: [],
  options: {},
  doc: 'Runs queued exports, beside or instead of the HTTP service, until stopped; unfinished ones return to the queue. On another machine it needs SVC_DATABASE_URL, SVC_NATS_URL, SVC_SOURCE_RIGHTS_MATRIX_PATH, and the same SVC_EXPORT_ROOT_DIR on a shared file system.',
};

export const lake: CommandSpec = {
  name: 'lake',
  positionals: [],
  options: {
    to: { type: 'string', required: true, doc: 'Folder of the lake: new, empty, or a lake.' },
    follow: { type: 'boolean', doc: 'Go on with later changes, until stopped.' },
    synthetic: { type: 'boolean', doc: 'Also write synthetic rows.' },
    forget: { type: 'boolean', doc: 'Write nothing; `status` forgets this lake.' },
  },
  doc: 'Writes every proved partition as Parquet below a folder and removes what is no longer proved or allowed.',
};

export const audit: CommandSpec = {
  name: 'audit',
  positionals: ['action'],
  options: {
    'dry-run': { type: 'boolean', doc: 'prune: only report what would be deleted.' },
  },
  doc: '`verify` reads the whole audit log of exports and names every record that was changed, cut off or removed; it ends with 1 if there is one. `prune` deletes segments older than SVC_AUDIT_LOG_RETENTION_DAYS and records the deletion.',
};

export const readRole: CommandSpec = {
  name: 'read-role',
  positionals: ['role'],
  options: {
    rotate: { type: 'boolean', doc: 'Give an existing role a new password.' },
    sql: { type: 'boolean', doc: 'Only print the statements, for the administrator who manages the roles.' },
  },
  doc: 'Creates or updates a database role that can only read what answers need. Its password is shown once; callers of BYOK Required datasets send it as X-Backend-Token. Name the role in SVC_BYOK_DATABASE_ROLE.',
};

export const keys: CommandSpec = {
  name: 'keys',
  positionals: ['action', 'name?'],
  options: {
    scopes: { type: 'string', doc: 'add: read, export, operate, metrics.' },
    datasets: { type: 'string', doc: 'add: default all.' },
    expires: { type: 'string', doc: 'add: a day (its beginning), a time, or 90d from now.' },
    'requests-per-minute': { type: 'string', integer: true, min: 1, doc: 'add: default any number.' },
    'concurrent-reads': { type: 'string', integer: true, min: 1, doc: 'add: waiting ones and event streams included.' },
    grace: { type: 'string', integer: true, doc: 'rotate: seconds that the old key still holds.' },
  },
  doc: '`add` makes a named key and `rotate` replaces it; both show it once. `list` shows names and terms, `revoke` ends a key for good.',
};

export const rights: CommandSpec = {
  name: 'rights',
  positionals: ['action', 'source...?'],
  options: {},
  doc: '`init` writes your own rights matrix to SVC_SOURCE_RIGHTS_MATRIX_PATH, or else to rights/matrix.json in the state folder, and beside it a sign-off form for each served source. Named sources, or all, are served; the others are Ingest Only. Existing files are kept.',
};
