/** The read connection uses internals of `pg`: another version, or other internals, fail with a message that says what to do. */
import { EventEmitter } from 'node:events';
import { readFileSync } from 'node:fs';
import { Socket } from 'node:net';
import pg from 'pg';
import { expect, onTestFinished, test, vi } from 'vitest';
import {
  FairScheduler,
  internalsOf,
  PG_VERSION,
  PgConnection,
  requirePgVersion,
} from '../../serving/db/pg-connection.ts';

const REMEDY = new RegExp(
  `uses internals of pg ${PG_VERSION.replaceAll('.', '\\.')}\\. Install that version; or compare`,
);

/** What a connected client has. */
function connectedClient() {
  const stream = new Socket().on('data', () => {});
  const connection = Object.assign(new EventEmitter(), { stream });
  return { connection, processID: 12, secretKey: -34, host: 'localhost', port: 5432 };
}

test('the pinned version is the one that the read connection is written for', () => {
  const { dependencies } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  expect(dependencies.pg).toBe(PG_VERSION);
  requirePgVersion(PG_VERSION);
  expect(() => requirePgVersion('8.24.0')).toThrow(/^pg 8\.24\.0 is installed, but/);
  expect(() => requirePgVersion('8.24.0')).toThrow(REMEDY);
});

test('a connected client is accepted; a proxy that sends no key too', () => {
  const client = connectedClient();
  expect(internalsOf(client)).toBe(client);
  internalsOf({ ...client, processID: null, secretKey: null });
});

test.each([
  ['connection.stream', (client: ReturnType<typeof connectedClient>) => client.connection.stream.on('data', () => {})],
  ['connection.stream', (client) => client.connection.stream.removeAllListeners('data')],
  ['connection.stream', (client) => Object.assign(client.connection, { stream: new EventEmitter() })],
  ['connection.stream', (client) => Object.assign(client, { connection: undefined })],
  ['processID', (client) => Object.assign(client, { processID: undefined })],
  ['secretKey', (client) => Object.assign(client, { secretKey: Buffer.alloc(4) })],
  ['host', (client) => Object.assign(client, { host: undefined })],
  ['port', (client) => Object.assign(client, { port: '5432' })],
] satisfies readonly [string, (client: ReturnType<typeof connectedClient>) => unknown][])(
  'another %s is refused by name',
  (members, change) => {
    const client = connectedClient();
    change(client);
    expect(() => internalsOf(client)).toThrow(`pg's ${members} differ: `);
    expect(() => internalsOf(client)).toThrow(REMEDY);
  },
);

/** A version of pg that answers the request for a password by another event. */
function renameEvent(name: string): void {
  type Attach = (connection: EventEmitter) => void;
  const prototype = pg.Client.prototype as unknown as { _attachListeners: Attach };
  const attach = prototype._attachListeners;
  const spy = vi.spyOn(prototype, '_attachListeners').mockImplementation(function (this: unknown, connection) {
    attach.call(this, connection);
    for (const listener of connection.listeners(name)) {
      connection.removeListener(name, listener as () => void).on(`${name}Request`, listener as () => void);
    }
  });
  onTestFinished(() => spy.mockRestore());
}

test.each(['authenticationCleartextPassword', 'authenticationMD5Password', 'authenticationSASL'])(
  'without an event %s of pg no connection is opened, where its own listener passed for one of pg',
  async (name) => {
    renameEvent(name);
    const options = { name: 'test', connectTimeoutMs: 5000, scheduler: new FairScheduler() };
    const opening = PgConnection.open({ ...options, url: 'postgresql://nobody@127.0.0.1:1/none' });
    await expect(opening).rejects.toThrow("pg's connection events differ: ");
    await expect(opening).rejects.toThrow(REMEDY);
  },
);
