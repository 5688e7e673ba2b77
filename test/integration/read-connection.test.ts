/** The read connection reads rows from its socket: they arrive whole, however wide and however cut. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FairScheduler, PgConnection, type RowSink } from '../../serving/db/pg-connection.ts';
import { array, int4 } from '../../serving/db/pg-messages.ts';
import { given } from '../support/given.ts';
import { eventually } from '../support/serving.ts';
import { createTestEnv, type TestEnv, temporaryDir } from '../support/stack.ts';

/** Widths of texts: around the sizes of a TLS record and of what one read of a socket takes, far more, and small ones between. */
const WIDTHS = [
  ...[0, 1, 100, 16_360, 16_377, 16_384, 16_400, 32_700, 32_768, 32_800, 65_536, 131_072, 3_000_000, 17, 9_000_000, 5],
  ...Array.from({ length: 20_000 }, (_, row) => (row * 7919) % 300),
];
const LETTERS = 26;
const letterOf = (row: number) => 97 + ((row + 1) % LETTERS);
const ROWS = {
  text: `select n::int4, repeat(chr(97 + n::int4 % ${LETTERS}), width)
    from unnest($1) with ordinality as w (width, n) order by n`,
  params: [array(WIDTHS.map(int4))],
};
/** Before the text: the size and value of the number, and the size of the text. */
const HEAD_BYTES = 12;

/** Compares each row with what was asked for, during the call. */
class Compared implements RowSink {
  rows = 0;
  readonly wrong: number[] = [];

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const row = this.rows++ % WIDTHS.length;
    const text = bytes.subarray(at + HEAD_BYTES, at + length);
    const isRight = view.getInt32(at + 4) === row + 1 && text.equals(Buffer.alloc(WIDTHS[row], letterOf(row)));
    if (!isRight) this.wrong.push(row);
  }
}

describe('rows of any width arrive as they were sent', () => {
  let env: TestEnv;
  let folder: string;
  beforeAll(async () => {
    env = await createTestEnv();
    folder = await temporaryDir();
  });
  afterAll(async () => {
    await env[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  async function expectWhole(url: string): Promise<void> {
    const connection = await PgConnection.open({
      ...{ url, name: 'test', connectTimeoutMs: 30_000, scheduler: new FairScheduler() },
    });
    const sink = new Compared();
    const step = { statement: ROWS, oids: [23, 25], sink };
    await connection.run([step, step]);
    await connection.run([step]);
    expect([sink.rows, sink.wrong]).toEqual([3 * WIDTHS.length, []]);
    connection.end();
  }

  test('on a plain socket', () => expectWhole(env.databaseUrl));

  /** Opens a connection behind a proxy that passes so many bytes on at a time. */
  async function openInPieces(bytes: number, pause: () => Promise<void>): Promise<PgConnection> {
    const { hostname, port } = new URL(env.databaseUrl);
    const front = createServer({ noDelay: true }, async (socket) => {
      const database = connect(Number(port), hostname);
      for (const one of [socket, database]) one.on('error', () => {});
      socket.pipe(database);
      for await (const chunk of database) {
        for (let at = 0; at < chunk.length; at += bytes) {
          socket.write(chunk.subarray(at, at + bytes));
          await pause();
        }
      }
    }).listen(0, '127.0.0.1');
    await once(front, 'listening');
    const url = new URL(env.databaseUrl);
    url.hostname = '127.0.0.1';
    url.port = String((front.address() as AddressInfo).port);
    const scheduler = new FairScheduler();
    const connection = await PgConnection.open({ url: url.href, name: 'test', connectTimeoutMs: 30_000, scheduler });
    front.close();
    return connection;
  }

  test('behind a proxy that cuts every message, from the first on', async () => {
    const connection = await openInPieces(7, () => sleep(1));
    expect(connection.processId).toBeGreaterThan(0);
    connection.end();
  });

  test('small pieces that are read ahead take little more memory than they have bytes', async () => {
    let pieces = 0;
    const connection = await openInPieces(500, async () => {
      pieces++;
      await turn();
    });
    const sink = new Compared();
    const before = process.memoryUsage().arrayBuffers;
    pieces = 0;
    connection.hold();
    const done = connection.run([{ statement: ROWS, oids: [23, 25], sink }]);
    await eventually(async () => pieces > 5000, 'megabytes are read ahead');
    expect([sink.rows, (process.memoryUsage().arrayBuffers - before) / 2 ** 20 < 100]).toEqual([0, true]);
    connection.release();
    await done;
    expect([sink.rows, sink.wrong]).toEqual([WIDTHS.length, []]);
    connection.end();
  });

  const certify = (key: string, cert: string) =>
    spawnSync('openssl', [
      ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-batch'],
      ...['-subj', '/CN=localhost', '-keyout', key, '-out', cert],
    ]);
  const hasOpenssl = spawnSync('openssl', ['version']).status === 0;

  given(hasOpenssl, 'openssl is missing: apt-get install openssl').test('under TLS, in records of 16 KiB', async () => {
    const [key, cert] = ['key.pem', 'cert.pem'].map((name) => join(folder, name));
    expect(certify(key, cert).status).toBe(0);
    const secrets = { key: readFileSync(key), cert: readFileSync(cert) };
    const { hostname, port } = new URL(env.databaseUrl);
    /** Speaks TLS with the reader and none with the database. */
    const front = createServer(async (socket: Socket) => {
      // The request for TLS, eight bytes; the answer S grants it.
      await once(socket, 'data');
      socket.pause();
      socket.write('S');
      const secure = new TLSSocket(socket, { isServer: true, ...secrets });
      const database = connect(Number(port), hostname);
      for (const one of [secure, database]) one.on('error', () => {});
      secure.pipe(database).pipe(secure);
    }).listen(0, '127.0.0.1');
    await once(front, 'listening');
    const url = new URL(env.databaseUrl);
    url.hostname = '127.0.0.1';
    url.port = String((front.address() as AddressInfo).port);
    url.searchParams.set('sslmode', 'no-verify');
    await expectWhole(url.href);
    front.close();
  });
});
