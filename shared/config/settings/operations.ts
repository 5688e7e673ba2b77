/** Settings of the stack, of the log of events and its readers, and of backfills, following and verification. */
import { boolean, choice, MIB, path, type Setting, text, url, whole } from './setting.ts';

/** The name of a note's key has neither spaces nor plus signs; a leaf holds it three times. */
const logOrigin = text.regex(
  /^(?!.*:\/\/)[!-*,-~]{1,100}(?<!\/)$/,
  'must be at most 100 letters without spaces and plus signs, such as log.example.org/v1/proofs: an address without its scheme and last slash',
);

/** Settings of the embedded stack, and of the servers that are used in its place. */
export const STACK = {
  SVC_STATE_DIR: {
    group: 'Stack',
    schema: path,
    default: '.tidemark',
    doc: 'Folder of the embedded stack: database and log files, ports, generated secrets.',
  },
  SVC_RUN_AS: {
    group: 'Stack',
    schema: text,
    doc: 'Account of the machine that PostgreSQL and nats-server run as when root starts them. Without it they run as `nobody`, which other daemons may share: they could then read and change the data.',
  },
  SVC_DATABASE_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'A PostgreSQL with TimescaleDB to use instead of the embedded one. Every process uses it. Where the URLs below name other roles, this one is the role of ingest and of commands; in the HTTP service and the export worker it is their own role.',
  },
  SVC_DATABASE_OWNER_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'The same database through the role that owns it, for migrations, `keys` and `rights read-role`; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_SERVE_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'The same database through the role of the HTTP service that `up` starts; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_EXPORT_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'The same database through the role of the workers that `up --only exports` starts; unset: SVC_DATABASE_URL, whose role must then be allowed to run exports. `tidemark_ingest` is not.',
  },
  SVC_DATABASE_MONITOR_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'The same database through the role with which the HTTP service collects its metrics; unset: SVC_DATABASE_URL.',
  },
  SVC_DATABASE_ADMIN_URL: {
    group: 'Stack',
    schema: url('postgres:', 'postgresql:'),
    secret: true,
    doc: 'The same database through a superuser, for `migrate` alone: `migrate` creates the roles that the other URLs name, with their passwords. No running process needs it.',
  },
  SVC_NATS_URL: {
    group: 'Stack',
    schema: url('nats:', 'tls:'),
    secret: true,
    doc: 'A nats-server with JetStream to use instead of the embedded one. For a cluster, name one server here and the others in `?servers=HOST:PORT,HOST:PORT`. Add `?inbox=PREFIX` where the account may subscribe to that prefix only. The account writes events.',
  },
  SVC_NATS_PROJECTOR_URL: {
    group: 'Stack',
    schema: url('nats:', 'tls:'),
    secret: true,
    doc: 'The same nats-server through the account of the projector; unset: SVC_NATS_URL.',
  },
  SVC_NATS_OPERATOR_URL: {
    group: 'Stack',
    schema: url('nats:', 'tls:'),
    secret: true,
    doc: 'The same nats-server through an account that creates and changes streams: `migrate`, backfills and repairs use it; unset: SVC_NATS_URL.',
  },
  SVC_NATS_READER_URL: {
    group: 'Stack',
    schema: url('nats:', 'tls:'),
    secret: true,
    doc: 'The same nats-server through an account that may only read, for lineage; unset: SVC_NATS_URL.',
  },
  SVC_SAMPLE: {
    group: 'Stack',
    schema: boolean,
    default: 'true',
    doc: 'Load a small synthetic sample into an empty system at start, except for datasets whose source location is set.',
  },
} as const satisfies Record<string, Setting>;

export const OPERATIONS = {
  SVC_FOLLOW: {
    group: 'Operations',
    schema: boolean,
    default: 'false',
    doc: '`up` also follows every source whose location is set, as `./tidemark follow` does.',
  },
  SVC_FOLLOW_FILES_SECONDS: {
    group: 'Operations',
    schema: whole(1, 7 * 86_400, 's'),
    default: '3600',
    doc: '`follow` of an exchange looks for new file days this often.',
  },
  SVC_FOLLOW_OLD_DAYS_PER_HOUR: {
    group: 'Operations',
    schema: whole(0, 3600),
    default: '4',
    doc: '`follow` of an exchange asks this often an hour whether the vendor still publishes the document of an old day, those that were not asked for the longest first; 0: never. Four an hour go through three years of one instrument in twelve days.',
  },
  SVC_VERIFY_INTERVAL_SECONDS: {
    group: 'Operations',
    schema: whole(0, 366 * 86_400, 's'),
    default: '86400',
    doc: '`up` recounts the stored rows of each proved partition this long after its last recount, one partition at a time; 0: never.',
  },
  SVC_PROOF_LOG_DIR: {
    group: 'Proof log',
    schema: path,
    doc: 'Folder of the tiles and the checkpoint of the proof log; the projector writes it, and the HTTP service hands it out. Unset: `proof-log` in the state folder.',
  },
  SVC_PROOF_LOG_KEY: {
    group: 'Proof log',
    schema: text,
    secret: true,
    doc: 'Private key that signs checkpoints, `PRIVATE+KEY+name+hash+base64`; after a rotation the new one, a comma and the one before. Unset: generated at the first start, in a file beside `SVC_PROOF_LOG_DIR`: its name and `.key`.',
  },
  SVC_PROOF_LOG_ORIGIN: {
    group: 'Proof log',
    schema: logOrigin,
    doc: 'Origin of the proof log, chosen at its first start and for ever: the address of its files without scheme, such as `log.example.org/v1/proofs`. Unset: `tidemark-` and twelve random digits.',
  },
  SVC_STREAM_REPLICAS: {
    group: 'Operations',
    schema: whole(1, 5),
    default: '1',
    doc: 'Servers of a NATS cluster that store each stream: 1, 3 or 5. Existing streams are changed to this number.',
  },
} as const satisfies Record<string, Setting>;

/** Settings of the log of events, and of the log lines that processes write. */
export const LOG = {
  SVC_STREAM_MAX_BYTES: {
    group: 'Log',
    schema: whole(MIB, 1073741824 * MIB, 'bytes'),
    default: '8589934592',
    doc: 'Byte limit of each stream, reserved on the disk of nats-server. Where the disk has no room for it, a new stream gets a half or a quarter of it. A full stream stops the publisher; nothing is dropped.',
  },
  SVC_LOG_LEVEL: {
    group: 'Logs',
    schema: choice('trace', 'debug', 'info', 'warn', 'error', 'silent'),
    default: 'info',
    doc: 'Least severe level that is written, as one JSON object a line on stderr. On a terminal the lines go to log/tidemark.log in the state folder, and warnings and errors are also shown as text.',
  },
} as const satisfies Record<string, Setting>;
