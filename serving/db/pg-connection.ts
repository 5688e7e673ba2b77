/**
 * A connection to PostgreSQL for reads. `pg` opens it (TLS, authentication, URL); afterwards its socket is read here,
 * because rows are rendered from the bytes they arrive in: an object per row would cost more than all the rest.
 *
 * Measured on 1 M trades: the extended protocol in binary takes 0.37-0.43 s where COPY (...) TO STDOUT takes
 * 0.40-0.47 s, and unlike COPY it binds parameters, so no value of a caller ever becomes SQL text.
 */

import { connect as connectSocket, type Socket } from 'node:net';
import pg from 'pg';
import {
  decodeColumnOids,
  decodeError,
  encodeCancel,
  encodeForget,
  encodeStatement,
  FROM_SERVER,
  type Statement,
  SYNC,
  TERMINATE,
} from './pg-messages.ts';

/**
 * Long results take turns. A socket that always has more is read 32 times before the event loop looks at anything else,
 * and rows are rendered as they are read: 20 to 45 ms of processor, in which no other answer moves. So a connection
 * stops after a slice of work, and of those that stopped one goes on in each turn of the loop.
 */

/** Work on one connection's rows before others get their turn, ms. A read of a few hundred rows takes less. */
export const SLICE_MS = 2;

export class FairScheduler {
  readonly #waiting: (() => void)[] = [];

  /** `goOn` is called in a later turn of the event loop, after those that wait already, no two of them in one turn. */
  wait(goOn: () => void): void {
    this.#waiting.push(goOn);
    if (this.#waiting.length === 1) setImmediate(this.#next);
  }

  readonly #next = () => {
    this.#waiting.shift()?.();
    if (this.#waiting.length > 0) setImmediate(this.#next);
  };
}

export interface PgConnectionOptions {
  readonly url: string;
  /** Shown in pg_stat_activity. */
  readonly name: string;
  readonly connectTimeoutMs: number;
  /** Shared by the connections of one process. */
  readonly turns: FairScheduler;
  /** A caller's credentials instead of the URL's. They must prove something: see UnprovedCredentials. */
  readonly caller?: { readonly user: string; readonly password: string };
}

/** Takes the rows of one statement. `at` is the first cell, after the column count; `length` what the cells take. */
export interface RowSink {
  row(view: DataView, bytes: Buffer, at: number, length: number): void;
}

export interface Step {
  readonly statement: Statement;
  readonly sink?: RowSink;
  /** Results in binary, of exactly these type OIDs; text without a check where absent. */
  readonly oids?: readonly number[];
}

/** What the server said, by SQLSTATE. Its text is for the log, never for a caller. */
export class ServerFault extends Error {
  override readonly name = 'ServerFault';
  readonly sqlState: string;

  constructor(fields: Record<string, string>) {
    super(fields.M ?? 'unknown fault');
    this.sqlState = fields.C ?? '';
  }
}

/** The connection is gone: nothing more is known about what it was doing. */
export class ConnectionLost extends Error {
  override readonly name: string = 'ConnectionLost';
}

/** No connection was made. */
export class ConnectFault extends ConnectionLost {
  /** Where the server answered: why it refused. */
  readonly sqlState: string;

  constructor(cause: unknown) {
    super(`no connection to the database: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.sqlState = String((cause as { code?: unknown }).code ?? '');
  }
}

/** The server let a caller in without asking for the password, so whatever was sent would have been right. */
export class UnprovedCredentials extends ConnectionLost {
  override readonly name = 'UnprovedCredentials';
}

/** A result's columns are not of the types the registry declares. */
export class ColumnTypeFault extends Error {
  override readonly name = 'ColumnTypeFault';
}

interface Kept {
  readonly name: string;
  /** The last one of this text that was run, and how it is said. */
  readonly statement: Statement;
  readonly message: Buffer;
}

interface Active {
  readonly steps: readonly Step[];
  at: number;
  fault: Error | undefined;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

interface PgInternals {
  readonly connection: { readonly stream: Socket };
  readonly processID: number;
  readonly secretKey: number;
  readonly host: string;
  readonly port: number;
}

/**
 * Reads come in order of time from indexes: a sort of a whole chunk before the first row is never the better plan,
 * also not on chunks that have no statistics yet. One backend a read, so that slots bound the machine's load. Every
 * transaction is one read-only snapshot; the steps of one message that begins none are a transaction of their own.
 */
const SESSION = `select set_config(name, value, false) from (values ('enable_sort', 'off'), ('jit', 'off'),
  ('max_parallel_workers_per_gather', '0'), ('client_connection_check_interval', '5s'), ('timezone', 'UTC'),
  ('default_transaction_isolation', 'repeatable read'), ('default_transaction_read_only', 'on')) as s (name, value)`;

/** What `pg` says when the server wants to see the password. */
const PASSWORD_REQUESTS = ['authenticationCleartextPassword', 'authenticationMD5Password', 'authenticationSASL'];

/** Statements kept on one connection: a few of the service's own, and reads of the newest rows. */
const MAX_KEPT = 64;

/** A message of more bytes than any row can have is a broken stream. */
const MAX_MESSAGE_BYTES = 1024 * 1024 * 1024;

export class PgConnection {
  /** Idle, in a transaction, or in a failed one: PostgreSQL's letters. */
  status: 'I' | 'T' | 'E' = 'I';
  readonly #socket: Socket;
  readonly #target: PgInternals;
  /** Kept statements by their text, the longest unused first. */
  readonly #kept = new Map<string, Kept>();
  #names = 0;
  #active: Active | undefined;
  #pending: Buffer[] = [];
  #pendingBytes = 0;
  #neededBytes = 5;
  #closed = false;
  readonly #turns: FairScheduler;
  /** Since it last let others have their turn. */
  #workedMs = 0;
  #isHeldBack = false;
  #waitsForTurn = false;

  private constructor(client: PgInternals, turns: FairScheduler) {
    this.#target = client;
    this.#turns = turns;
    this.#socket = client.connection.stream;
    this.#socket.removeAllListeners('data');
    this.#socket.on('data', (chunk: Buffer) => this.#onData(chunk));
    this.#socket.on('close', () => this.#onClose());
  }

  /** @throws ConnectFault */
  static async open(options: PgConnectionOptions): Promise<PgConnection> {
    const url = new URL(options.url);
    const { caller } = options;
    if (caller) {
      url.username = encodeURIComponent(caller.user);
      url.password = encodeURIComponent(caller.password);
    }
    const client = new pg.Client({
      connectionString: url.href,
      application_name: options.name,
      connectionTimeoutMillis: options.connectTimeoutMs,
      keepAlive: true,
    });
    client.on('error', () => {});
    let asked = false;
    for (const event of PASSWORD_REQUESTS) client.connection.once(event, () => (asked = true));
    try {
      await client.connect();
    } catch (cause) {
      throw new ConnectFault(cause);
    }
    if (caller && !asked) {
      client.end().catch(() => {});
      throw new UnprovedCredentials('the database asks for no password');
    }
    const wire = new PgConnection(client as unknown as PgInternals, options.turns);
    const timer = setTimeout(() => wire.abandon(), options.connectTimeoutMs);
    try {
      await wire.run([{ statement: { text: SESSION } }]);
    } finally {
      clearTimeout(timer);
    }
    return wire;
  }

  get closed(): boolean {
    return this.#closed;
  }

  get processId(): number {
    return this.#target.processID;
  }

  /**
   * Runs the steps in one message; rows go to the sinks as they arrive. Settles when the server is ready again. After a
   * fault the connection is not used again: which of the names in the message it knows is not certain.
   */
  run(steps: readonly Step[]): Promise<void> {
    if (this.#closed) return Promise.reject(new ConnectionLost('the connection is closed'));
    if (this.#active) return Promise.reject(new Error('a connection runs one batch at a time'));
    const messages = steps.flatMap((step) => this.#encode(step));
    return new Promise((resolve, reject) => {
      this.#active = { steps, at: 0, fault: undefined, resolve, reject };
      this.#socket.write(Buffer.concat([...messages, SYNC]));
    });
  }

  #encode({ statement, oids }: Step): Buffer[] {
    const options = { binary: oids !== undefined, describe: oids !== undefined };
    if (!statement.keep) return [encodeStatement(statement, { name: '', parse: true, ...options })];
    const known = this.#kept.get(statement.text);
    if (known?.statement === statement) return [known.message];
    const name = known?.name ?? `s${this.#names++}`;
    const message = encodeStatement(statement, { name, parse: false, ...options });
    this.#kept.delete(statement.text);
    this.#kept.set(statement.text, { name, statement, message });
    const messages = known ? [message] : [encodeStatement(statement, { name, parse: true, ...options })];
    if (this.#kept.size > MAX_KEPT) {
      const [[text, oldest]] = this.#kept;
      this.#kept.delete(text);
      messages.unshift(encodeForget(oldest.name));
    }
    return messages;
  }

  /** Held back by whoever takes the rows. */
  get isPaused(): boolean {
    return this.#isHeldBack;
  }

  pause(): void {
    this.#isHeldBack = true;
    this.#socket.pause();
  }

  resume(): void {
    this.#isHeldBack = false;
    if (!this.#waitsForTurn) this.#socket.resume();
  }

  /** Others first. */
  #giveWay(): void {
    this.#workedMs = 0;
    this.#waitsForTurn = true;
    this.#socket.pause();
    this.#turns.wait(() => {
      this.#waitsForTurn = false;
      if (!this.#isHeldBack) this.#socket.resume();
    });
  }

  /** Stops what runs and ends the connection; the server's backend is free at once. */
  abandon(): void {
    if (this.#closed) return;
    const { host, port, processID, secretKey } = this.#target;
    if (this.#active) {
      // A backend that is computing notices a lost client only at its next write; a cancel request it obeys now.
      const socket = host.startsWith('/') ? connectSocket(`${host}/.s.PGSQL.${port}`) : connectSocket(port, host);
      socket.on('error', () => {});
      socket.setTimeout(5000, () => socket.destroy());
      socket.end(encodeCancel(processID, secretKey));
    }
    this.#socket.destroy();
    this.#onClose();
  }

  /** Ends an idle connection politely. */
  end(): void {
    if (this.#closed) return;
    this.#socket.end(TERMINATE);
    this.#onClose();
  }

  #onClose(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#pending = [];
    const active = this.#active;
    this.#active = undefined;
    active?.reject(new ConnectionLost('the database closed the connection'));
  }

  #onData(chunk: Buffer): void {
    const startedAt = performance.now();
    this.#take(chunk);
    this.#workedMs += performance.now() - startedAt;
    if (!this.#active) this.#workedMs = 0;
    else if (this.#workedMs >= SLICE_MS) this.#giveWay();
  }

  #take(chunk: Buffer): void {
    let bytes = chunk;
    if (this.#pendingBytes > 0) {
      this.#pending.push(chunk);
      this.#pendingBytes += chunk.length;
      if (this.#pendingBytes < this.#neededBytes) return;
      bytes = Buffer.concat(this.#pending, this.#pendingBytes);
    }
    try {
      this.#keep(bytes, this.#decode(bytes));
    } catch (error) {
      const active = this.#active;
      this.#active = undefined;
      this.abandon();
      active?.reject(error);
    }
  }

  /** Keeps the start of a message whose rest has not come. */
  #keep(bytes: Buffer, at: number): void {
    const rest = bytes.length - at;
    this.#pending = rest > 0 ? [bytes.subarray(at)] : [];
    this.#pendingBytes = rest;
    this.#neededBytes = rest >= 5 ? bytes.readInt32BE(at + 1) + 1 : 5;
  }

  /** @returns how far whole messages go. */
  #decode(bytes: Buffer): number {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    while (bytes.length - at >= 5) {
      const size = view.getInt32(at + 1) + 1;
      if (size < 5 || size > MAX_MESSAGE_BYTES) throw new ConnectionLost('the database sent what is no message');
      if (bytes.length - at < size) break;
      const active = this.#active;
      if (bytes[at] === FROM_SERVER.dataRow) {
        active?.steps[active.at].sink?.row(view, bytes, at + 7, size - 7);
      } else if (active) {
        this.#control(active, bytes[at], bytes.subarray(at + 5, at + size));
      }
      at += size;
    }
    return at;
  }

  #control(active: Active, code: number, body: Buffer): void {
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
        if (active.fault) active.reject(active.fault);
        else active.resolve();
        break;
    }
  }
}

function checkOids(found: readonly number[], expected: readonly number[]): void {
  const fits = found.length === expected.length && found.every((oid, index) => oid === expected[index]);
  if (!fits) throw new ColumnTypeFault(`columns are of types ${found.join(',')}, declared ${expected.join(',')}`);
}
