/** Every command: grammar, help, and the module that runs it. */
import type { Option } from 'commander';
import { LEDGER_KINDS } from '../../../shared/db/ledger-kinds.ts';
import {
  choice,
  day,
  flag,
  INSTRUMENT,
  integer,
  PARTITIONS,
  type ParsedCommand,
  required,
  SELECTION,
  text,
} from '../options.ts';
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
      doc: 'Starts the database, the log, the projector and the HTTP service. Ctrl-C or SIGTERM stops them. If they already run, it prints their address.',
      options: [
        choice(
          'only',
          'Runs queued exports only. A stopped worker returns its unfinished exports to the queue. On another machine, set SVC_DATABASE_URL, SVC_NATS_URL and SVC_SOURCE_RIGHTS_MATRIX_PATH, and share SVC_EXPORT_ROOT_DIR.',
          ['exports'],
        ),
      ],
      load: async () => (await import('./up.ts')).runUp,
    },
    {
      grammar: 'env',
      doc: 'Prints address and key of the running service for a shell: `eval "$(./tidemark env)"` sets TIDEMARK_URL and TIDEMARK_KEY.',
      load: async () => (await import('./env.ts')).runEnv,
    },
    {
      grammar: 'follow [feed...]',
      doc: 'Publishes and proves new documents as they appear, until you stop it. Default: every feed whose source is set.',
      options: [INSTRUMENT],
      load: async () => (await import('./follow.ts')).runFollow,
    },
    {
      grammar: 'migrate',
      doc: 'Updates the database schema. Safe at any time; every command that uses the database does it, except `doctor`.',
      load: async () => (await import('./migrate.ts')).runMigrate,
    },
  ],
  Fill: [
    {
      grammar: 'sample <feed>',
      doc: "Writes synthetic documents in the vendor's layout, to try `backfill` without the vendor. The same days give the same documents on every machine. Never overwrites a file.",
      options: [
        required(day('from', 'First day.')),
        required(day('to', 'Last day, included; it must be over.')),
        required(text('out', "Folder that will hold the vendor's layout.")),
        integer('rows', 'For an exchange: trades a day. Default 60,000.', { min: 1, max: MAX_SAMPLE_ROWS }),
        text('instrument', 'For an exchange: the symbol; default the one of its setting.'),
      ],
      load: async () => (await import('./sample.ts')).runSample,
    },
    {
      grammar: 'backfill <feed...>',
      doc: 'Fetches the expected partitions that are not proved yet, publishes them to the log and waits for their proof. `all` is every feed whose source is set.',
      options: [
        ...SELECTION,
        flag('dry-run', 'Show the plan and do nothing.'),
        flag('compare', 'Also compare proved partitions with the source.'),
      ],
      load: async () => (await import('./backfill.ts')).runBackfill,
      projects: true,
    },
    {
      grammar: 'reingest <feed...>',
      doc: 'Replaces proved or quarantined partitions with what the source publishes now. Readers see the old rows until the new revision is proved.',
      options: [
        ...SELECTION,
        flag('dry-run', 'Show the plan and change nothing.'),
        flag(
          'kept',
          'Parse the kept documents of one feed again instead of asking the source. Missing partitions are published; proved ones are compared and, if you give a reason, replaced where they differ.',
        ),
        text('reason', 'Why; recorded in the ledger. Required without --kept.'),
      ],
      load: async () => (await import('./backfill.ts')).runReingest,
      projects: true,
    },
  ],
  Look: [
    {
      grammar: 'status [dataset]',
      doc: 'Shows proved ranges, gaps, quarantined partitions with their reasons, and how far the projector is behind the log.',
      options: [
        INSTRUMENT,
        flag('runs', 'Show running and past work instead, with its progress.'),
        flag('open', 'With --runs: only work in progress.'),
        integer('limit', 'With --runs: how many, newest first. Default 20.', { min: 1 }),
      ],
      load: async () => (await import('./status.ts')).runStatus,
    },
    {
      grammar: 'event <dataset> <offset>',
      doc: "Shows an event's bytes and their sha256, read from the log, and the document they came from.",
      options: [
        text('date', 'File day of a trade, YYYY-MM-DD. Ids of exchange C start again every day.'),
        text('partition', 'Partition, if several hold the offset.'),
        INSTRUMENT,
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
          doc: 'Lists quarantined partitions: what was expected, what was found, what to do. `list` is the default.',
          options: [INSTRUMENT],
          load: async () => (await import('./quarantine.ts')).listQuarantined,
        },
        {
          grammar: 'release <dataset> <partition>',
          doc: 'Serves a day of trades that `verify` quarantined again if it now equals its manifest. Drops any other partition, and the next backfill fetches it again.',
          options: [required(text('reason', 'Why; recorded in the ledger.')), INSTRUMENT],
          load: async () => (await import('./quarantine.ts')).releaseQuarantined,
        },
      ],
    },
    {
      grammar: 'ledger [dataset]',
      doc: 'Shows the recorded changes of partitions: revisions, quarantines, releases, late arrivals, recoveries, losses of the log.',
      options: [
        choice('kind', 'Only this kind.', LEDGER_KINDS),
        integer('limit', 'How many, newest first. Default 50.', { min: 1 }),
      ],
      load: async () => (await import('./quarantine.ts')).runLedger,
    },
  ],
  Check: [
    {
      grammar: 'doctor',
      doc: 'Checks settings, stores, schema, log, space and work in progress, and names a fix for each finding. Changes nothing.',
      options: [text('check', 'Only this check.')],
      load: async () => (await import('./doctor.ts')).runDoctor,
    },
    {
      grammar: 'verify <dataset...>',
      doc: 'Recounts stored rows and compares them with their manifests. Quarantines a partition that no longer matches. `all` is every dataset.',
      options: [
        ...PARTITIONS,
        flag('deep', "Also compare every stored row's bytes with the log."),
        integer('every', 'Keep running; recount each partition every N seconds.', {
          min: 1,
          max: MAX_VERIFY_EVERY_S,
        }),
      ],
      load: async () => (await import('./verify.ts')).runVerify,
    },
    {
      grammar: 'check <path> [second]',
      doc: 'Checks an export (its folder or manifest), a lineage answer, one or two checkpoints, a `.tlog-proof` (with its leaf as the second path), a mirror of the proof log, or a lake, without a server. Prints what it checked and what not. Exits with 1 if a check fails.',
      options: [
        text('key', 'Verifier key of the log, or a file with it. Default: the key that `--log`, or the mirror, names.'),
        text(
          'log',
          'URL of a service, or a folder with its tiles. Needed for a rotated key, for two checkpoints, and to compare a mirror.',
        ),
        text('document', "The vendor's file, for a lineage answer."),
      ],
      load: async () => (await import('./check.ts')).runCheck,
    },
    {
      grammar: 'watch-log <url>',
      doc: 'Watches the proof log of a service. Exits with 1 and a message if the log forks, shrinks or changes.',
      options: [
        text(
          'key',
          'Verifier key of the log, or a file with it. Default: the remembered key, or at first the one that the log names.',
        ),
        text('state', 'File for the key and checkpoint. Default watch-log.json.'),
        integer('every', 'Seconds between two checks. Default 60.', { min: 1, max: MAX_WATCH_EVERY_S }),
        flag('once', 'Check once and end.'),
        integer(
          'max-leaves',
          'Most leaves that one check reads; a log that claims more is reported. Default 1,000,000.',
          { min: 1 },
        ),
        text(
          'max-age',
          'Longest time since the checkpoint was signed, such as 1h: an older one is reported. Default any.',
        ),
        text('mirror', 'Folder for a copy of all tiles.'),
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
          doc: 'Reads the whole audit log of exports and names every record that was changed, cut off or removed. Exits with 1 if it finds one.',
          load: async () => (await import('./audit.ts')).verify,
        },
        {
          grammar: 'prune',
          doc: 'Deletes segments older than SVC_AUDIT_LOG_RETENTION_DAYS and records the deletion.',
          options: [flag('dry-run', 'Only print what would be deleted.')],
          load: async () => (await import('./audit.ts')).prune,
        },
      ],
    },
  ],
  Repair: [
    {
      grammar: 'replay <dataset...>',
      doc: 'Rebuilds proved and quarantined partitions from the log and compares them with the stored rows. Replaces each partition that differs in one transaction, while reads continue. `all` is every dataset.',
      options: [...PARTITIONS, flag('verify-only', 'Replace nothing; exit with 1 if a partition differs.')],
      load: async () => (await import('./replay.ts')).runReplay,
    },
    {
      grammar: 'recover <dataset...>',
      doc: 'Brings database and log back in step after a restore or a loss: moves the checkpoint back to the last message that both have, and names the partitions that the log lost. Rebuilds a stream of changes that differs from the catalog. `all` is every dataset.',
      options: [
        flag('dry-run', 'Print how the stores differ and change nothing.'),
        text('reason', 'Why; recorded in the ledger.'),
        text(
          'checkpoint',
          'A checkpoint of the proof log that a follower kept. If it is of more leaves than the log has, nothing is signed until they are restored.',
        ),
      ],
      load: async () => (await import('./recover.ts')).runRecover,
    },
    {
      grammar: 'proof-log',
      doc: 'The proof log: a new key, or the leaves that a restore lost.',
      subcommands: [
        {
          grammar: 'rotate',
          doc: 'Makes a new key for the proof log. The old key signs the new one.',
          load: async () => (await import('./proof-log.ts')).rotate,
        },
        {
          grammar: 'restored',
          doc: 'Copies missing leaves between the files of the proof log and the database after a loss, and records that in the log.',
          options: [required(text('reason', 'Why. Anybody can read it in the log, for ever.'))],
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
          doc: 'Writes a rights matrix to SVC_SOURCE_RIGHTS_MATRIX_PATH (default: rights/matrix.json in the state folder), and a sign-off form for each source to be served: the named ones, or all. The others become Ingest Only. Existing files are kept.',
          load: async () => (await import('./rights.ts')).initRights,
        },
        {
          grammar: 'read-role <role>',
          doc: 'Creates or updates a database role that can only read what answers need, and shows its password once. Name the role in SVC_BYOK_DATABASE_ROLE.',
          options: [
            flag('rotate', 'Give an existing role a new password.'),
            flag('sql', 'Only print the statements for your database administrator.'),
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
            text('datasets', 'Default all. `exchange_a_spot_trades:ETHUSDT` is one instrument.'),
            text('expires', 'A day (its beginning), a time, or 90d from now.'),
            integer('requests-per-minute', 'Default any number.', { min: 1, max: MAX_REQUESTS }),
            integer('concurrent-reads', 'Includes waiting reads and event streams. Default any number.', {
              min: 1,
              max: MAX_READS,
            }),
          ],
          load: async () => (await import('./keys.ts')).add,
        },
        {
          grammar: 'list',
          doc: 'Lists keys with their terms.',
          load: async () => (await import('./keys.ts')).list,
        },
        {
          grammar: 'rotate <name>',
          doc: 'Replaces a named key and shows the new one once.',
          options: [integer('grace', 'Seconds for which the old key stays valid. Default 0.', { max: MAX_GRACE_S })],
          load: async () => (await import('./keys.ts')).rotate,
        },
        {
          grammar: 'revoke <name>',
          doc: 'Revokes a named key permanently.',
          load: async () => (await import('./keys.ts')).revoke,
        },
      ],
    },
    {
      grammar: 'lake',
      doc: 'Writes every proved partition to Delta tables in a folder and removes what is no longer proved or allowed.',
      options: [
        required(text('to', 'Folder: a new or empty one, or an existing lake.')),
        flag('follow', 'Keep adding changes until stopped.'),
        flag('synthetic', 'Also write synthetic rows.'),
        flag('forget', 'Write nothing; remove this lake from `status`.'),
      ],
      load: async () => (await import('./lake.ts')).runLake,
    },
    {
      grammar: 'mirror <url> <folder>',
      doc: 'Copies a lake or exports to a folder; later runs fetch only what changed. `url` ends in `/v1/lake` or `/v1/raw/export`, or is any URL of a lake, including `file://`.',
      options: [
        text('key', 'Verifier key of the log, or a file with it, to check signatures.'),
        text('datasets', 'Only these datasets, separated by commas.'),
        text('exports', 'Only these exports, separated by commas.'),
        flag('verify', 'Hash every local file and download those that differ.'),
      ],
      load: async () => (await import('./mirror.ts')).runMirror,
    },
  ],
};
