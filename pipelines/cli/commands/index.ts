/** Every command: grammar, help, and the module that runs it. */
import type { Option } from 'commander';
import { LEDGER_KINDS } from '../../../shared/db/ledger-kinds.ts';
import { choice, day, flag, integer, PARTITIONS, type ParsedCommand, required, SELECTION, text } from '../options.ts';
import type { WaitingProjector } from '../projector.ts';

export interface RunnableCommand {
  /** Name and positionals: `<one>`, `[optional]`, `<several...>`. */
  readonly grammar: string;
  readonly doc: string;
  readonly options?: readonly Option[];
  /** Loads its module on demand, so that a command does not pay at its start for the modules of others. */
  readonly load: () => Promise<(command: ParsedCommand, projector?: WaitingProjector) => Promise<number>>;
  /** Starts a projector's process before the command's own code is loaded. */
  readonly projects?: true;
}

export interface CommandGroup {
  readonly grammar: string;
  readonly doc: string;
  readonly subcommands: readonly RunnableCommand[];
  /** Whether the first of them runs where none is named. */
  readonly firstIsDefault?: true;
}

/** Longest interval of `verify --every`, which is that of SVC_VERIFY_INTERVAL_SECONDS. */
const MAX_VERIFY_EVERY_S = 366 * 86_400;
/** Longest interval of `watch-log --every`: a timer of Node waits for 2^31 - 1 ms at most, and one set to more does not wait at all. */
const MAX_WATCH_EVERY_S = 2_000_000;
/** Of a day of a sample. Exchange C's lines are sorted in memory and take some 300 bytes each. */
const MAX_SAMPLE_ROWS = 2_000_000;
const MAX_REQUESTS = 1_000_000;
const MAX_READS = 10_000;
/** A year. */
const MAX_GRACE_S = 366 * 86_400;

/** By what one wants to do; the help lists them in this order. */
export const COMMANDS: Readonly<Record<string, readonly (RunnableCommand | CommandGroup)[]>> = {
  Run: [
    {
      grammar: 'up',
      doc: 'Starts the database, the log, the projector and the HTTP service. Ctrl-C, SIGTERM or closing the terminal stops them. Where they already run, it says where and ends with 0.',
      options: [
        choice(
          'only',
          'Only runs queued exports, beside or instead of the HTTP service; unfinished ones return to the queue. On another machine it needs SVC_DATABASE_URL, SVC_NATS_URL, SVC_SOURCE_RIGHTS_MATRIX_PATH, and the same SVC_EXPORT_ROOT_DIR on a shared file system.',
          ['exports'],
        ),
      ],
      load: async () => (await import('./up.ts')).runUp,
    },
    {
      grammar: 'env',
      doc: 'Prints the address and the key of the service that runs here, for a shell: `eval "$(./tidemark env)"` sets TIDEMARK_URL and TIDEMARK_KEY. Exit 1: none runs.',
      load: async () => (await import('./env.ts')).runEnv,
    },
    {
      grammar: 'follow [feed...]',
      doc: 'Publishes and proves new documents of each feed as they appear, until stopped. Without a name: of every feed whose source is set. A failing feed retries with growing pauses and affects no other.',
      load: async () => (await import('./follow.ts')).runFollow,
    },
    {
      grammar: 'migrate',
      doc: 'Brings the database to the current schema. Safe at any time; every command that uses the database does it too, but `doctor`.',
      load: async () => (await import('./migrate.ts')).runMigrate,
    },
  ],
  Fill: [
    {
      grammar: 'sample <feed>',
      doc: "Writes synthetic documents in the vendor's own layout, so that you can try `backfill` and your own programs without the vendor. The same days give the same documents on every machine. Overwrites no file.",
      options: [
        required(day('from', 'First day.')),
        required(day('to', 'Last day, included; it must be over.')),
        required(text('out', "Folder to write to; the vendor's layout begins below it.")),
        integer('rows', 'For an exchange: trades a day. Default 60,000.', { min: 1, max: MAX_SAMPLE_ROWS }),
      ],
      load: async () => (await import('./sample.ts')).runSample,
    },
    {
      grammar: 'backfill <feed...>',
      doc: 'Fetches the partitions of the given days or blocks that are expected but not proved, publishes them to the log and waits for their proof. `all` is every feed whose source is set.',
      options: [
        ...SELECTION,
        flag('dry-run', 'Show the plan and do nothing.'),
        flag('compare', 'Also compare proved partitions with their sources.'),
      ],
      load: async () => (await import('./backfill.ts')).runBackfill,
      projects: true,
    },
    {
      grammar: 'reingest <feed...>',
      doc: 'Replaces proved or quarantined partitions with what the source publishes now, as a new revision. Readers see the old rows until the new ones are proved.',
      options: [
        ...SELECTION,
        flag('dry-run', 'Show the plan and change nothing.'),
        flag(
          'kept',
          'Parse kept documents of one feed again and contact no source, after a loss or when an adapter supports a new layout: missing partitions are published, proved ones compared and, with a reason, replaced where they differ.',
        ),
        text('reason', 'Why; kept in the ledger. Needed but with --kept.'),
      ],
      load: async () => (await import('./backfill.ts')).runReingest,
      projects: true,
    },
  ],
  Look: [
    {
      grammar: 'status [dataset]',
      doc: 'Shows proved ranges, gaps and quarantined partitions with their reasons, and how far the projector is behind the log.',
      options: [
        flag('runs', 'Instead, running and past work: which process does what, and how far it is.'),
        flag('open', 'With --runs: only work in progress.'),
        integer('limit', 'With --runs: how many, newest first. Default 20.', { min: 1 }),
      ],
      load: async () => (await import('./status.ts')).runStatus,
    },
    {
      grammar: 'event <dataset> <offset>',
      doc: "Shows one event's vendor bytes and their sha256, read from the log, and the document they came from.",
      options: [
        text('date', 'The file day of a trade, YYYY-MM-DD: ids of exchange C begin anew every day.'),
        text('partition', 'The partition, when several hold the offset.'),
      ],
      load: async () => (await import('./event.ts')).runEvent,
    },
    {
      grammar: 'quarantine',
      doc: 'Quarantined partitions: lists them, or takes one out.',
      firstIsDefault: true,
      subcommands: [
        {
          grammar: 'list [dataset] [partition]',
          doc: 'Lists quarantined partitions with what was expected, what was found, and what to do. `list` may be left out.',
          load: async () => (await import('./quarantine.ts')).listQuarantined,
        },
        {
          grammar: 'release <dataset> <partition>',
          doc: 'Takes a partition out of quarantine. Days of trades that `verify` quarantined and that equal their manifest again are served again; all other rows are dropped, and the next backfill fetches the partition anew.',
          options: [required(text('reason', 'Why; kept in the ledger.'))],
          load: async () => (await import('./quarantine.ts')).releaseQuarantined,
        },
      ],
    },
    {
      grammar: 'ledger [dataset]',
      doc: 'Shows deliberate changes of partitions, and refusals: revisions, quarantines, releases, late arrivals, recoveries, losses of the log.',
      options: [
        choice('kind', 'Only entries of this kind.', LEDGER_KINDS),
        integer('limit', 'How many, newest first. Default 50.', { min: 1 }),
      ],
      load: async () => (await import('./quarantine.ts')).runLedger,
    },
  ],
  Check: [
    {
      grammar: 'doctor',
      doc: 'Checks settings, both stores, schema, log, space and work in progress, and names the fix of each finding. Changes nothing.',
      options: [text('check', 'Only this check.')],
      load: async () => (await import('./doctor.ts')).runDoctor,
    },
    {
      grammar: 'verify <dataset...>',
      doc: 'Recounts stored rows and compares them with their manifests. A partition that no longer matches is quarantined at once. `all` is every dataset.',
      options: [
        ...PARTITIONS,
        flag('deep', "Also compare every stored row's bytes with the log."),
        integer('every', 'Run until stopped; recount each partition every N seconds.', {
          min: 1,
          max: MAX_VERIFY_EVERY_S,
        }),
      ],
      load: async () => (await import('./verify.ts')).runVerify,
    },
    {
      grammar: 'check <path> [second]',
      doc: 'Checks without any server: an export (its folder or manifest) with every row of whole partitions, a lineage answer, one or two checkpoints, or a mirror of the proof log (a folder). It says what was checked and what was not. Exit 1: something does not hold.',
      options: [
        text(
          'key',
          'The verifier key of the log, or a file with it. Default: the key that the log of `--log`, or the mirror, names.',
        ),
        text(
          'log',
          'URL of a service, or a folder with its tiles: for a key that was rotated, for two checkpoints, and to compare a mirror with.',
        ),
        text('document', "Lineage answer: the vendor's file."),
      ],
      load: async () => (await import('./check.ts')).runCheck,
    },
    {
      grammar: 'watch-log <url>',
      doc: 'Watches the proof log of a service: keeps the last checkpoint, asks whether the next one continues it, and reads the leaves. It ends with 1 and a message if the log forks, shrinks or changes.',
      options: [
        text(
          'key',
          'The verifier key of the log, or a file with it. Default: the one that was remembered, at first the one that the log names.',
        ),
        text('state', 'File that remembers key and checkpoint. Default watch-log.json.'),
        integer('every', 'Seconds between two checks. Default 60.', { min: 1, max: MAX_WATCH_EVERY_S }),
        flag('once', 'Check once and end.'),
        integer(
          'max-leaves',
          'Leaves that one look reads at most; a log that says more is reported. Default 1,000,000.',
          { min: 1 },
        ),
        text('mirror', 'Folder that keeps a copy of all tiles.'),
        text('metrics', 'File for the textfile collector of Prometheus.'),
      ],
      load: async () => (await import('./watch-log.ts')).runWatchLog,
    },
    {
      grammar: 'audit',
      doc: 'The audit log of exports: verifies it, or deletes what is past its time.',
      subcommands: [
        {
          grammar: 'verify',
          doc: 'Reads the whole audit log of exports and names every record that was changed, cut off or removed; it ends with 1 if there is one.',
          load: async () => (await import('./audit.ts')).verify,
        },
        {
          grammar: 'prune',
          doc: 'Deletes segments older than SVC_AUDIT_LOG_RETENTION_DAYS and records the deletion.',
          options: [flag('dry-run', 'Only report what would be deleted.')],
          load: async () => (await import('./audit.ts')).prune,
        },
      ],
    },
  ],
  Repair: [
    {
      grammar: 'replay <dataset...>',
      doc: 'Rebuilds proved and quarantined partitions from the log, beside the served rows, and compares. Partitions that differ are replaced, in one transaction each, while reads continue. `all` is every dataset.',
      options: [...PARTITIONS, flag('verify-only', 'Report differences and replace nothing; exit 1 if there are any.')],
      load: async () => (await import('./replay.ts')).runReplay,
    },
    {
      grammar: 'recover <dataset...>',
      doc: 'Brings database and log back in step after they were restored to different points, or after the log lost its tail. Proved rows stay served, the checkpoint goes back to the last message that both know, and partitions missing from the log are named. A stream of changes that holds anything else than the changes of the catalog is filled again from it. `all` is every dataset.',
      options: [
        flag('dry-run', 'Report how the two stores differ and change nothing.'),
        text('reason', 'Why; kept in the ledger.'),
      ],
      load: async () => (await import('./recover.ts')).runRecover,
    },
    {
      grammar: 'proof-log',
      doc: 'The proof log: a new key, or the leaves that a restore lost.',
      subcommands: [
        {
          grammar: 'rotate',
          doc: 'Makes a new key of the proof log, whose line the old key signs.',
          load: async () => (await import('./proof-log.ts')).rotate,
        },
        {
          grammar: 'restored',
          doc: 'Gives a restored database the leaves that it lost from the files of the log, or lost files from the database, and says so in the log.',
          options: [required(text('reason', 'Why; kept in the log itself.'))],
          load: async () => (await import('./proof-log.ts')).restored,
        },
      ],
    },
  ],
  Share: [
    {
      grammar: 'rights',
      doc: 'What may be served: your own rights matrix, and a database role for callers with credentials of their own.',
      subcommands: [
        {
          grammar: 'init [source...]',
          doc: 'Writes your own rights matrix to SVC_SOURCE_RIGHTS_MATRIX_PATH, or else to rights/matrix.json in the state folder, and beside it a sign-off form for each served source. Named sources, or all, are served; the others are Ingest Only. Existing files are kept.',
          load: async () => (await import('./rights.ts')).initRights,
        },
        {
          grammar: 'read-role <role>',
          doc: 'Creates or updates a database role that can only read what answers need. Its password is shown once; callers of BYOK Required datasets send it as X-Backend-Token. Name the role in SVC_BYOK_DATABASE_ROLE.',
          options: [
            flag('rotate', 'Give an existing role a new password.'),
            flag('sql', 'Only print the statements, for the administrator who manages the roles.'),
          ],
          load: async () => (await import('./rights.ts')).readRole,
        },
      ],
    },
    {
      grammar: 'keys',
      doc: 'The named keys of callers. A running service notices a change within a second.',
      subcommands: [
        {
          grammar: 'add <name>',
          doc: 'Makes a named key and shows it once.',
          options: [
            required(text('scopes', 'One or more of read, export, operate, metrics, separated by commas.')),
            text('datasets', 'Default all.'),
            text('expires', 'A day (its beginning), a time, or 90d from now.'),
            integer('requests-per-minute', 'Default any number.', { min: 1, max: MAX_REQUESTS }),
            integer('concurrent-reads', 'Waiting ones and event streams included. Default any number.', {
              min: 1,
              max: MAX_READS,
            }),
          ],
          load: async () => (await import('./keys.ts')).add,
        },
        {
          grammar: 'list',
          doc: 'Shows names and terms.',
          load: async () => (await import('./keys.ts')).list,
        },
        {
          grammar: 'rotate <name>',
          doc: 'Replaces a named key by a new one and shows it once.',
          options: [integer('grace', 'Seconds that the old key still holds. Default 0.', { max: MAX_GRACE_S })],
          load: async () => (await import('./keys.ts')).rotate,
        },
        {
          grammar: 'revoke <name>',
          doc: 'Ends a named key for good.',
          load: async () => (await import('./keys.ts')).revoke,
        },
      ],
    },
    {
      grammar: 'lake',
      doc: 'Writes every proved partition as Parquet below a folder and removes what is no longer proved or allowed.',
      options: [
        required(text('to', 'Folder of the lake: new, empty, or a lake.')),
        flag('follow', 'Go on with later changes, until stopped.'),
        flag('synthetic', 'Also write synthetic rows.'),
        flag('forget', 'Write nothing; `status` forgets this lake.'),
      ],
      load: async () => (await import('./lake.ts')).runLake,
    },
    {
      grammar: 'mirror <url> <folder>',
      doc: 'Copies a lake or exports to a folder, later what changed. `url` ends in `/v1/lake` or `/v1/raw/export`, or is any URL, also `file://`, of a lake.',
      options: [
        text('key', 'Verifier key of the log, or a file with it: checks signatures.'),
        text('datasets', 'Only these datasets, separated by commas.'),
        text('exports', 'Only these exports, separated by commas.'),
        flag('verify', 'Hash every local file, and download those that differ.'),
      ],
      load: async () => (await import('./mirror.ts')).runMirror,
    },
  ],
};
