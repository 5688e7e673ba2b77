/** The read connection takes over the socket of a client of `pg`: a client of another form is refused when the service starts. */
import { EventEmitter } from 'node:events';
import { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { takenOver } from '../../serving/db/pg-connection.ts';

/** What a connected client has. */
function connectedClient() {
  const stream = new Socket().on('data', () => {});
  return { connection: { stream }, processID: 12, secretKey: -34, host: 'localhost', port: 5432 };
}

test('a connected client is accepted; a proxy that sends no key too', () => {
  const client = connectedClient();
  expect(takenOver(client)).toBe(client);
  takenOver({ ...client, processID: null, secretKey: null });
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
  (member, change) => {
    const client = connectedClient();
    change(client);
    expect(() => takenOver(client)).toThrow(`${member} of the client of pg is not what`);
  },
);
