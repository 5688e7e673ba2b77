/**
 * A connection to PostgreSQL for reads. `pg` opens it (TLS, authentication, URL) and `pg-protocol` makes what it sends; then this
 * class reads its socket, because the service renders rows from the bytes they arrive in: an object per row would cost
 * more than everything else. docs/dependencies.md has the figures of what `pg` and `pg-copy-streams` offer instead. No
 * value of a caller ever becomes SQL text.
 */

import { connect as connectSocket, Socket, type SocketConstructorOpts } from 'node:net';
import type pg from 'pg';
import { serialize } from 'pg-protocol';
import { DatabaseClient, KEEP_ALIVE } from '../../shared/db/connect.ts';
import { checkOids, decodeColumnOids, decodeError, FROM_SERVER, ServerFault, type Statement } from './pg-messages.ts';

/** A read that has worked for this long, ms, is long, and lets others work. A few hundred rows take less. */
const SLICE_MS = 0.2;
/** How long a long read waits for short ones before its next slice, and how long a read may take to count as short, ms. */
export const WAIT_MS = 5;
/** How long after a short read the next one is expected, ms, and the pause between slices of long reads meanwhile. */
export const RECENT_MS = 100;
export const PAUSE_MS = 1;

/**
 * Decides when long reads go on. Rows are rendered as they arrive, and one connection can keep the process busy for 45 ms before
 * any other answer progresses. So a read gives way after a slice of work, and goes on in a later turn of the event loop, one
 * read a turn. While short reads are under way it also waits, for at most WAIT_MS: between the statements of a short read
 * the process would render, and the database compute, for reads that take seconds. While short reads keep coming it also sleeps
 * between slices: the kernel lets a process that computes all the time wait when a request arrives. Who is alone waits for
 * nobody.
 *
 * Measured beside two reads of a million rows on two cores: a small read takes 1.7 ms, without the pause between slices 3.8.
 */
export class FairScheduler {
  readonly #waiting: { readonly goOn: () => void; readonly sinceMs: number }[] = [];
  /** Short reads under way, and when they began, the oldest first. */
  readonly #short = new Map<object, number>();
  #held: NodeJS.Timeout | undefined;
  #isScheduled = false;
  #expectedUntilMs = 0;

  begin(read: object): void {
    this.#short.set(read, performance.now());
  }

  /** Whether no short read has ended lately. */
  get isQuiet(): boolean {
    return performance.now() >= this.#expectedUntilMs;
  }

  /** The read has ended, or is long. */
  end(read: object, isLong = false): void {
    if (this.#short.delete(read) && !isLong) this.#expectedUntilMs = performance.now() + RECENT_MS;
    if (!this.#held) return;
    clearTimeout(this.#held);
    this.#held = undefined;
    this.#schedule();
  }

  /** Calls `goOn` when it is the read's turn. */
  wait(goOn: () => void): void {
    this.#waiting.push({ goOn, sinceMs: performance.now() });
    if (!this.#held) this.#schedule();
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    if (performance.now() < this.#expectedUntilMs) setTimeout(this.#turn, PAUSE_MS);
    else setImmediate(this.#turn);
  }

  readonly #turn = () => {
    this.#isScheduled = false;
    this.#held = undefined;
    const next = this.#waiting[0];
    if (!next) return;
    const leftMs = this.#isAnyShort() ? next.sinceMs + WAIT_MS - performance.now() : 0;
    if (leftMs > 0) {
      this.#held = setTimeout(this.#turn, leftMs);
      return;
    }
    this.#waiting.shift();
    next.goOn();
    if (this.#waiting.length > 0) this.#schedule();
  };

  #isAnyShort(): boolean {
    for (const [read, beganMs] of this.#short) {
      if (performance.now() < beganMs + WAIT_MS) return true;
      this.#short.delete(read);
    }
    return false;
  }
}

export interface PgConnectionOptions {
  readonly url: string;
  /** Name of the connection in pg_stat_activity. */
  readonly name: string;
  readonly connectTimeoutMs: number;
  /** All connections of a pool share one. */
  readonly scheduler: FairScheduler;
  /** A caller's credentials instead of the URL's. The server must check them: see UnprovedCredentials. */
  readonly caller?: { readonly user: string; readonly password: string };
}

/**
 * Receives the rows of one statement. `at` is the first cell, after the column count; `length` is the size of the cells.
 * Whoever keeps the bytes after the call copies them: they are part of a whole chunk.
 */
export interface RowSink {
  row(view: DataView, bytes: Buffer, at: number, length: number): void;
}

export interface Step {
  readonly statement: Statement;
  readonly sink?: RowSink;
  /** The expected type OIDs of the columns; the result is then binary. Without them it is text, and unchecked. */
  readonly oids?: readonly number[];
}

/** The connection is lost. The state of its last batch is unknown. */
export class ConnectionLost extends Error {
  override readonly name: string = 'ConnectionLost';
}

/** The connection could not be opened. */
export class ConnectFault extends ConnectionLost {
  /** The server's reason, if it answered. */
  readonly sqlState: string;

  constructor(cause: unknown) {
    super('cannot connect to the database', { cause });
    this.sqlState = String((cause as { code?: unknown }).code ?? '');
  }
}

/** The server admitted a caller without asking for the password, so any password would have been accepted. */
export class UnprovedCredentials extends ConnectionLost {
  override readonly name = 'UnprovedCredentials';
}

interface ActiveBatch {
  readonly steps: readonly Step[];
  at: number;
  fault: Error | undefined;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/** What this file takes over of a client that `pg` has connected. */
interface ConnectedClient {
  readonly connection: { readonly stream: Socket };
  /** Null where a proxy sent no key. */
  readonly processID: number | null;
  readonly secretKey: number | null;
  readonly host: string;
  readonly port: number;
}

/** @throws Error naming the members that another version of `pg` has in another form */
export function takenOver(client: object): ConnectedClient {
  const { connection, processID, secretKey, host, port } = client as Partial<ConnectedClient>;
  const isKey = (value: unknown) => value === null || typeof value === 'number';
  const expectations = {
    'connection.stream': connection?.stream instanceof Socket && connection.stream.listenerCount('data') === 1,
    processID: isKey(processID),
    secretKey: isKey(secretKey),
    host: typeof host === 'string',
    port: typeof port === 'number',
  };
  const unexpected = Object.entries(expectations).flatMap(([member, holds]) => (holds ? [] : [member]));
  if (unexpected.length === 0) return client as ConnectedClient;
  throw new Error(
    `${unexpected.join(', ')} of the client of pg is not what serving/db/pg-connection.ts reads rows from. Install the \
version of pg that package-lock.json has: npm ci`,
  );
}

/**
 * The session settings. Reads take rows from indexes in order of time: to sort a whole chunk before the first row is mostly not
 * the better plan, least of all for chunks without statistics. A read uses one backend, so that the limiters bound the load of the
 * machine, and two where it is alone. A statement that few rows pass may sort, and have workers (`Statement.sorted`). Every
 * transaction is a read-only snapshot; a message that begins none is a transaction of its own.
 */
const SESSION = `select set_config(name, value, false) from (values ('enable_sort', 'off'), ('jit', 'off'),
  ('max_parallel_workers_per_gather', '0'), ('client_connection_check_interval', '5s'), ('timezone', 'UTC'),
  ('default_transaction_isolation', 'repeatable read'), ('default_transaction_read_only', 'on')) as s (name, value)`;

const READ_BYTES = 64 * 1024;
/** What all sockets without TLS are read into: rows are rendered before the next read, and the rest of a message is copied. */
let readBuffer: Buffer | undefined;
/** The sockets that `pg` has given up. Until then it keeps the part of a message that has arrived, and copies nothing. */
const takenSockets = new WeakSet<Socket>();

/** A socket whose chunks need no memory of their own, whose garbage would cost a long read a fifth of its time. */
function socketOf({ ssl }: pg.ClientConfig): Socket {
  // TLS reads from the socket itself.
  if (ssl) return new Socket();
  readBuffer ??= Buffer.allocUnsafeSlow(READ_BYTES);
  const socket: Socket = new Socket({
    onread: {
      buffer: readBuffer,
      callback(bytes, buffer) {
        const chunk = (buffer as Buffer).subarray(0, bytes);
        socket.emit('data', takenSockets.has(socket) ? chunk : Buffer.from(chunk));
        return true;
      },
    },
  } as SocketConstructorOpts);
  return socket;
}

/** @throws ConnectFault, or UnprovedCredentials of a caller */
async function connectedClient({ url: text, name, connectTimeoutMs, caller }: PgConnectionOptions): Promise<pg.Client> {
  const url = new URL(text);
  let wasAsked = caller === undefined;
  if (caller) {
    url.username = encodeURIComponent(caller.user);
    url.password = '';
  }
  const client = new DatabaseClient({
    connectionString: url.href,
    application_name: name,
    connectionTimeoutMillis: connectTimeoutMs,
    ...KEEP_ALIVE,
    stream: socketOf as never,
  });
  client.on('error', () => {});
  if (caller) {
    // `pg` calls it when the server asks for the password. As an option it would give way to the empty one of the URL.
    const password = () => {
      wasAsked = true;
      return caller.password;
    };
    Object.assign(client, { password });
  }
  try {
    await client.open();
  } catch (cause) {
    throw new ConnectFault(cause);
  }
  if (wasAsked) return client;
  client.end().catch(() => {});
  throw new UnprovedCredentials('the database does not ask for a password');
}

/** Prepared statements per connection: a few of the service's own, and reads of the newest rows. */
const MAX_PREPARED = 64;

/** So many bytes of a result that is held are read ahead. */
const AHEAD_BYTES = 4 * 1024 * 1024;

/** The memory of chunks that were read ahead, for the next ones. */
const spare: ArrayBufferLike[] = [];
const MAX_SPARE = AHEAD_BYTES / READ_BYTES;

/** Adds a copy of a chunk, to the memory of the last one where that has room: chunks may be small. */
function keepAhead(chunks: Buffer[], chunk: Buffer): void {
  const last = chunks.at(-1);
  const from = last && last.length + chunk.length <= last.buffer.byteLength ? last.length : 0;
  const fresh = () => new ArrayBuffer(Math.max(READ_BYTES, chunk.length));
  const memory = from > 0 ? chunks.pop()!.buffer : (chunk.length <= READ_BYTES && spare.pop()) || fresh();
  const kept = Buffer.from(memory, 0, from + chunk.length);
  chunk.copy(kept, from);
  chunks.push(kept);
}

/** The letter and the size of a message. */
const HEAD_BYTES = 5;
/** A message larger than any row can be means that the stream is corrupt. */
const MAX_MESSAGE_BYTES = 1024 * 1024 * 1024;

export class PgConnection {
  /** PostgreSQL's letter: idle (I), in a transaction (T), or in a failed one (E). */
  status: 'I' | 'T' | 'E' = 'I';
  readonly #socket: Socket;
  readonly #target: ConnectedClient;
  /** Names of prepared statements by their text, the least recently used first. */
  readonly #prepared = new Map<string, string>();
  #names = 0;
  #active: ActiveBatch | undefined;
  #isOpen = false;
  #closed = false;
  /** Whether the rows of the batch wait for those of another connection, and the chunks that have arrived meanwhile. */
  #isHeld = false;
  #ahead: Buffer[] = [];
  #aheadBytes = 0;
  /** Copies of the parts of a message that is not complete. */
  #undecoded: Buffer[] = [];
  #undecodedBytes = 0;
  /** As many bytes as that message has, once its head is there. */
  #wantedBytes = HEAD_BYTES;
  readonly #scheduler: FairScheduler;
  /** Work since the connection last gave way to others. */
  #workedMs = 0;
  #isHeldBack = false;
  #waitsForTurn = false;

  private constructor(client: ConnectedClient, scheduler: FairScheduler) {
    this.#target = client;
    this.#scheduler = scheduler;
    this.#socket = client.connection.stream;
    this.#socket.removeAllListeners('data');
    takenSockets.add(this.#socket);
    this.#socket.on('data', (chunk: Buffer) => this.#onData(chunk));
    this.#socket.on('close', () => this.#onClose());
  }

  /** @throws ConnectFault, or UnprovedCredentials of a caller */
  static async open(options: PgConnectionOptions): Promise<PgConnection> {
    const client = await connectedClient(options);
    let connection: PgConnection;
    try {
      connection = new PgConnection(takenOver(client), options.scheduler);
    } catch (error) {
      client.end().catch(() => {});
      throw error;
    }
    const timer = setTimeout(() => connection.abandon(), options.connectTimeoutMs);
    try {
      await connection.run([{ statement: { text: SESSION } }]);
      connection.#isOpen = true;
    } catch (error) {
      connection.abandon();
      throw error;
    } finally {
      clearTimeout(timer);
    }
    return connection;
  }

  get closed(): boolean {
    return this.#closed;
  }

  get processId(): number | null {
    return this.#target.processID;
  }

  /**
   * Runs the steps in one message; rows go to the sinks as they arrive. The promise settles when the server is ready again.
   * After a fault the connection must not be reused: it is unknown which of the batch's statements the server prepared.
   */
  run(steps: readonly Step[]): Promise<void> {
    if (this.#closed) return Promise.reject(new ConnectionLost('the connection is closed'));
    if (this.#active) return Promise.reject(new Error('a connection can run only one batch at a time'));
    const messages = steps.flatMap((step) => this.#encode(step));
    return new Promise((resolve, reject) => {
      this.#active = { steps, at: 0, fault: undefined, resolve, reject };
      // A read begins and ends with its transaction; the settings of the session are none.
      if (this.#isOpen && this.status === 'I') this.#scheduler.begin(this);
      this.#socket.write(Buffer.concat([...messages, serialize.sync()]));
    });
  }

  #encode({ statement: { text, params = [], prepared }, oids }: Step): Buffer[] {
    const known = prepared ? this.#prepared.get(text) : undefined;
    const name = prepared ? (known ?? `s${this.#names++}`) : '';
    const messages: Buffer[] = [];
    if (known === undefined) messages.push(serialize.parse({ name, text, types: params.map(({ oid }) => oid) }));
    const values = params.map(({ bytes }) => bytes);
    messages.push(serialize.bind({ statement: name, values, binary: oids !== undefined }));
    if (oids) messages.push(serialize.describe({ type: 'P' }));
    messages.push(serialize.execute());
    if (prepared) messages.push(...this.#remember(text, name));
    return messages;
  }

  /** @returns the message that deallocates the statement that was not used for longest, where there are too many. */
  #remember(text: string, name: string): Buffer[] {
    this.#prepared.delete(text);
    this.#prepared.set(text, name);
    if (this.#prepared.size <= MAX_PREPARED) return [];
    const [[oldest, itsName]] = this.#prepared;
    this.#prepared.delete(oldest);
    return [serialize.close({ type: 'S', name: itsName })];
  }

  /** Whether the receiver of the rows holds the connection back. */
  get isPaused(): boolean {
    return this.#isHeldBack;
  }

  pause(): void {
    this.#isHeldBack = true;
    this.#socket.pause();
  }

  resume(): void {
    this.#isHeldBack = false;
    if (!this.#waitsForTurn) this.#goOn();
  }

  /** Reads the next batch ahead, up to AHEAD_BYTES, and passes none of its rows on before `release`. */
  hold(): void {
    this.#isHeld = true;
    // Nobody waits for what is read ahead.
    this.#scheduler.end(this, true);
  }

  release(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    if (!this.#waitsForTurn && !this.#isHeldBack) this.#goOn();
  }

  #goOn(): void {
    while (this.#ahead.length > 0 && !this.#isHeld) {
      if (this.#isHeldBack || this.#waitsForTurn) return;
      const chunk = this.#ahead.shift()!;
      this.#aheadBytes -= chunk.length;
      this.#take(chunk);
      if (chunk.buffer.byteLength === READ_BYTES && spare.length < MAX_SPARE) spare.push(chunk.buffer);
    }
    if (!this.#closed && !this.#isHeldBack && !this.#waitsForTurn && this.#aheadBytes < AHEAD_BYTES) {
      this.#socket.resume();
    }
  }

  /** Pauses the connection and lets others work first. */
  #giveWay(): void {
    this.#workedMs = 0;
    this.#scheduler.end(this, true);
    this.#waitsForTurn = true;
    this.#socket.pause();
    this.#scheduler.wait(() => {
      this.#waitsForTurn = false;
      if (!this.#isHeldBack) this.#goOn();
    });
  }

  /** Cancels the running statement and closes the connection; the server's backend is free at once. */
  abandon(): void {
    if (this.#closed) return;
    const { host, port, processID, secretKey } = this.#target;
    if (this.#active && processID !== null && secretKey !== null) {
      // A busy backend notices a lost client only at its next write, but acts on a cancel request at once.
      const socket = host.startsWith('/') ? connectSocket(`${host}/.s.PGSQL.${port}`) : connectSocket(port, host);
      socket.on('error', () => {});
      socket.setTimeout(5000, () => socket.destroy());
      socket.end(serialize.cancel(processID, secretKey));
    }
    this.#socket.destroy();
    this.#onClose();
  }

  /** Closes an idle connection with a Terminate message. */
  end(): void {
    if (this.#closed) return;
    this.#socket.end(serialize.end());
    this.#onClose();
  }

  #onClose(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#ahead = [];
    this.#scheduler.end(this);
    const active = this.#active;
    this.#active = undefined;
    active?.reject(new ConnectionLost('the database closed the connection'));
  }

  /** The memory of the chunk is that of the next one, too. */
  #onData(chunk: Buffer): void {
    if (!this.#isHeld && this.#ahead.length === 0) {
      this.#take(chunk);
      return;
    }
    keepAhead(this.#ahead, chunk);
    this.#aheadBytes += chunk.length;
    if (this.#aheadBytes >= AHEAD_BYTES) this.#socket.pause();
  }

  #take(chunk: Buffer): void {
    const startedAt = performance.now();
    const at = this.#complete(chunk);
    const decoded = at + (at < chunk.length ? this.#receive(chunk.subarray(at)) : 0);
    if (decoded < chunk.length) this.#keep(Buffer.from(chunk.subarray(decoded)));
    this.#workedMs += performance.now() - startedAt;
    if (!this.#active) this.#workedMs = 0;
    else if (this.#workedMs >= SLICE_MS) this.#giveWay();
  }

  /** Completes the message that began in an earlier chunk. @returns the end of what it has of this chunk. */
  #complete(chunk: Buffer): number {
    let at = 0;
    while (this.#undecodedBytes > 0 && at < chunk.length) {
      const part = chunk.subarray(at, at + this.#wantedBytes - this.#undecodedBytes);
      at += part.length;
      this.#keep(Buffer.from(part));
      if (this.#undecodedBytes < this.#wantedBytes) break;
      // A message wider than a chunk is put together once, when all of it is there.
      const bytes = Buffer.concat(this.#undecoded);
      this.#undecoded = [];
      this.#undecodedBytes = 0;
      if (this.#receive(bytes) === 0) this.#keep(bytes);
    }
    return at;
  }

  /** Keeps a part of a message, up to its end or that of its head. */
  #keep(part: Buffer): void {
    this.#undecoded.push(part);
    this.#undecodedBytes += part.length;
    const [first] = this.#undecoded;
    if (this.#undecoded.length > 1) return;
    this.#wantedBytes = first.length >= HEAD_BYTES ? first.readInt32BE(1) + 1 : HEAD_BYTES;
  }

  #receive(bytes: Buffer): number {
    try {
      return this.#decode(bytes);
    } catch (error) {
      const active = this.#active;
      this.#active = undefined;
      this.abandon();
      active?.reject(error);
      return bytes.length;
    }
  }

  /** @returns the end of the last complete message. */
  #decode(bytes: Buffer): number {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    while (bytes.length - at >= HEAD_BYTES) {
      const size = view.getInt32(at + 1) + 1;
      if (size < HEAD_BYTES || size > MAX_MESSAGE_BYTES)
        throw new ConnectionLost('the database sent an invalid message');
      if (bytes.length - at < size) break;
      const active = this.#active;
      if (bytes[at] === FROM_SERVER.dataRow) {
        active?.steps[active.at].sink?.row(view, bytes, at + HEAD_BYTES + 2, size - HEAD_BYTES - 2);
      } else if (active) {
        this.#control(active, bytes[at], bytes.subarray(at + HEAD_BYTES, at + size));
      }
      at += size;
    }
    return at;
  }

  #control(active: ActiveBatch, code: number, body: Buffer): void {
    switch (code) {
      case FROM_SERVER.commandComplete:
      case FROM_SERVER.emptyQuery:
        active.at++;
        break;
      case FROM_SERVER.rowDescription:
        checkOids(decodeColumnOids(body), active.steps[active.at].oids ?? []);
        break;
      case FROM_SERVER.error:
        active.fault ??= new ServerFault(decodeError(body));
        break;
      case FROM_SERVER.readyForQuery:
        this.status = String.fromCharCode(body[0]) as 'I' | 'T' | 'E';
        this.#active = undefined;
        if (this.status === 'I') this.#scheduler.end(this);
        if (active.fault) active.reject(active.fault);
        else active.resolve();
        break;
    }
  }
}
