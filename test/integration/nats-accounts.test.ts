/** What each account of the log may do, tried as an attacker who holds its password would. */
import { spawn } from 'node:child_process';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { PermissionViolationError } from '@nats-io/transport-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { CONSUMER_NAME, ensureStream } from '../../shared/nats/stream.ts';
import { natsFault } from '../../shared/stack/nats.ts';
import { freePort } from '../../shared/stack/state.ts';
import { eventually } from '../support/serving.ts';
import { createTestEnv, type TestEnv, temporaryDir } from '../support/stack.ts';

const A = 'exchange_a_spot_trades';
const B = 'exchange_b_spot_trades';
const ROLES = ['publisher', 'projector', 'reader'] as const;
type Role = (typeof ROLES)[number];

let env: TestEnv;
let operator: NatsConnection & AsyncDisposable;
let connections: Record<Role, NatsConnection & AsyncDisposable>;
const cleanup = new AsyncDisposableStack();

beforeAll(async () => {
  env = cleanup.use(await createTestEnv());
  const open = async (url: string) => cleanup.use(await connectNats(url, 'test'));
  operator = await open(env.natsOperatorUrl);
  for (const dataset of [A, B]) {
    await ensureStream(operator, dataset, { maxBytes: 1 << 26 });
    await jetstream(operator).publish(`${dataset}.2024-01-01.1.0`, 'the first');
    await jetstream(operator).publish(`${dataset}.2024-01-01.1.1`, 'the second');
  }
  connections = {
    publisher: await open(env.natsUrl),
    projector: await open(env.natsProjectorUrl),
    reader: await open(env.natsReaderUrl),
  };
});
afterAll(() => cleanup.disposeAsync());

/** Everything about the streams that an attack may want to change. */
async function streamsNow() {
  const manager = await jetstreamManager(operator);
  const found = await manager.streams.list().next();
  return found
    .map(({ config, state }) => ({ config, messages: state.messages, last: state.last_seq, first: state.first_seq }))
    .sort((one, other) => one.config.name.localeCompare(other.config.name));
}

const api = (call: string, body: unknown = '') => ({
  subject: `$JS.API.${call}`,
  payload: body === '' ? '' : JSON.stringify(body),
});
const stream = (name: string, more: object = {}) => ({ name, subjects: [`${name}.>`], storage: 'file', ...more });
const pushTo = (deliver_subject: string, name = 'thief') => ({
  stream_name: A,
  config: { durable_name: name, ack_policy: 'none', deliver_policy: 'all', deliver_subject },
});

/** Requests that no account but the operator's may make. */
const FORBIDDEN = {
  'empties the log by a limit of one message': api(`STREAM.UPDATE.${A}`, stream(A, { max_msgs: 1, discard: 'old' })),
  'empties the log by an age': api(`STREAM.UPDATE.${A}`, stream(A, { max_age: 1_000_000_000, discard: 'old' })),
  'seals the log': api(`STREAM.UPDATE.${A}`, stream(A, { sealed: true })),
  'republishes the log as another': api(
    `STREAM.UPDATE.${A}`,
    stream(A, { republish: { src: '>', dest: `${B}.2024-01-02.1.0` } }),
  ),
  'transforms subjects of the log': api(
    `STREAM.UPDATE.${A}`,
    stream(A, { subject_transform: { src: `${A}.>`, dest: `${B}.>` } }),
  ),
  'makes a stream that republishes': api(
    'STREAM.CREATE.mine',
    stream('mine', { subjects: ['mine.>'], republish: { src: '>', dest: `${A}.2024-01-02.1.0` } }),
  ),
  'makes a mirror': api('STREAM.CREATE.mine', { name: 'mine', storage: 'file', mirror: { name: A } }),
  'makes a stream of sources': api('STREAM.CREATE.mine', { name: 'mine', storage: 'file', sources: [{ name: A }] }),
  'makes the stream of a dataset': api('STREAM.CREATE.macro_series_metrics', stream('macro_series_metrics')),
  'removes the log': api(`STREAM.DELETE.${A}`),
  'purges the log': api(`STREAM.PURGE.${A}`),
  'removes a message': api(`STREAM.MSG.DELETE.${A}`, { seq: 1 }),
  'copies the log to a subject': api(`STREAM.SNAPSHOT.${A}`, { deliver_subject: '_INBOX_operator.x' }),
  'restores another log': api(`STREAM.RESTORE.mine`, { config: stream('mine'), state: {} }),
  'lets a consumer deliver to an inbox': api(`CONSUMER.CREATE.${A}.thief`, pushTo('_INBOX_operator.x')),
  'lets a durable consumer deliver to an inbox': api(`CONSUMER.DURABLE.CREATE.${A}.thief`, pushTo('_INBOX_reader.x')),
  'lets a nameless consumer deliver into another log': api(`CONSUMER.CREATE.${A}`, pushTo(`${B}.2024-01-02.1.0`)),
  'lets a consumer with a filter deliver': api(`CONSUMER.CREATE.${A}.thief.${A}.>`, pushTo('_INBOX_operator.x')),
  'removes what the system knows of the account': api('ACCOUNT.PURGE.TIDEMARK'),
  'answers in the place of another': { subject: '_INBOX_operator.x.1', payload: 'forged' },
  'answers in the place of a client with the usual inbox': { subject: '_INBOX.x.1', payload: 'forged' },
  'asks the system account for its servers': { subject: '$SYS.REQ.SERVER.PING', payload: '' },
  'asks the system account for connections': { subject: '$SYS.REQ.ACCOUNT.TIDEMARK.CONNZ', payload: '' },
  'reloads the server': { subject: '$SYS.REQ.SERVER.x.RELOAD', payload: '' },
};

const OTHERS_INBOXES = ['>', '_INBOX.>', '_INBOX_operator.>', '_INBOX_*.>', `${A}.>`, '$SYS.>', '$JS.EVENT.ADVISORY.>'];
const INBOX_OF: Record<Role, string> = {
  publisher: '_INBOX_tidemark.>',
  projector: '_INBOX_projector.>',
  reader: '_INBOX_reader.>',
};

/** The server's refusal, as the client library reports it. */
async function refusalOf(asked: Promise<unknown>): Promise<unknown> {
  const error: unknown = await asked.then(
    () => 'it was answered',
    (fault) => fault,
  );
  for (let at = error; at instanceof Error; at = at.cause) if (at instanceof PermissionViolationError) return 'denied';
  return error;
}

/** What the server says to a subscription. */
async function listensTo(connection: NatsConnection, subject: string): Promise<string> {
  const told = Promise.withResolvers<string>();
  const subscription = connection.subscribe(subject, {
    callback: (error) => told.resolve(error instanceof PermissionViolationError ? 'denied' : `heard ${subject}`),
  });
  await connection.flush();
  // A refusal comes before the answer to the flush.
  setImmediate(() => told.resolve(`listens to ${subject}`));
  const answer = await told.promise;
  subscription.unsubscribe();
  return answer;
}

describe.each(ROLES)('the account of the %s', (role) => {
  test('may not do what only the operator may', async () => {
    const before = await streamsNow();
    const connection = connections[role];
    const answers = await Promise.all(
      Object.entries(FORBIDDEN).map(async ([what, { subject, payload }]) => [
        what,
        await refusalOf(connection.request(subject, payload, { timeout: 2000 })),
      ]),
    );
    expect(answers.filter(([, answer]) => answer !== 'denied')).toEqual([]);
    expect(await streamsNow()).toEqual(before);
  });

  test('hears nobody but itself', async () => {
    const others = ROLES.filter((other) => other !== role).map((other) => INBOX_OF[other]);
    for (const subject of [...OTHERS_INBOXES, ...others]) {
      expect([subject, await listensTo(connections[role], subject)]).toEqual([subject, 'denied']);
    }
    expect(await listensTo(connections[role], INBOX_OF[role])).toBe(`listens to ${INBOX_OF[role]}`);
  });
});

test('only the publisher writes events', async () => {
  const before = await streamsNow();
  for (const role of ['projector', 'reader'] as const) {
    for (const subject of [`${A}.2024-01-02.1.0`, `${A}.2024-01-01.1.withheld`, `${B}.2024-01-02.1.0`]) {
      expect([role, subject, await refusalOf(connections[role].request(subject, 'x'))]).toEqual([
        role,
        subject,
        'denied',
      ]);
    }
  }
  expect(await streamsNow()).toEqual(before);
});

test('only the projector makes and removes its consumer, and no account an other of its stream', async () => {
  const pull = { stream_name: A, config: { durable_name: CONSUMER_NAME, ack_policy: 'all' } };
  for (const role of ['publisher', 'reader'] as const) {
    for (const { subject, payload } of [
      api(`CONSUMER.CREATE.${A}.${CONSUMER_NAME}`, pull),
      api(`CONSUMER.DELETE.${A}.${CONSUMER_NAME}`),
      api(`CONSUMER.MSG.NEXT.${A}.${CONSUMER_NAME}`, { batch: 1 }),
    ]) {
      expect([role, subject, await refusalOf(connections[role].request(subject, payload))]).toEqual([
        role,
        subject,
        'denied',
      ]);
    }
  }
});

test('a consumer of the projector that is made to deliver reaches neither a log nor a request', async () => {
  const { projector } = connections;
  const before = await streamsNow();
  const deliver = async (deliver_subject: string) => {
    const config = { durable_name: CONSUMER_NAME, ack_policy: 'none', deliver_policy: 'all', headers_only: true };
    const { subject, payload } = api(`CONSUMER.CREATE.${B}.${CONSUMER_NAME}`, {
      stream_name: B,
      config: { ...config, deliver_subject },
    });
    await projector.request(subject, payload);
  };
  // Of its own inbox two messages arrive: that is how long a delivery takes, and it is shown to happen.
  const delivered = async () => {
    const inbox = projector.subscribe('_INBOX_projector.delivered', { max: 2 });
    await deliver('_INBOX_projector.delivered');
    for await (const _message of inbox);
    await projector.request(`$JS.API.CONSUMER.DELETE.${B}.${CONSUMER_NAME}`);
  };
  for (const target of [`${A}.2024-01-02.1.0`, `$JS.API.STREAM.DELETE.${A}`, `$JS.API.STREAM.PURGE.${A}`]) {
    await deliver(target);
    await projector.request(`$JS.API.CONSUMER.INFO.${B}.${CONSUMER_NAME}`);
    await projector.request(`$JS.API.CONSUMER.DELETE.${B}.${CONSUMER_NAME}`);
    await delivered();
    expect([target, await streamsNow()]).toEqual([target, before]);
  }
});

test('nobody comes in without a password, or as the system', async () => {
  const { host } = new URL(env.natsUrl);
  for (const who of ['', 'tidemark:wrong@', 'SYS:@', 'sys:sys@', 'operator:@', 'projector:@']) {
    await expect(connectNats(`nats://${who}${host}`, 'test')).rejects.toMatchObject({ code: 'LOG_UNAVAILABLE' });
  }
});

// The check at the start sent it as a token, the connections as a user name without a password.
test('a token, the user name of a URL without a password, opens a server for the check at the start and for connections', async ({
  skip,
}) => {
  skip(env.natsServer === undefined, 'nats-server runs in Docker: run the tests on Debian or Ubuntu with apt');
  const dir = await temporaryDir();
  const port = await freePort();
  const config = join(dir, 'nats.conf');
  await writeFile(
    config,
    `listen: "127.0.0.1:${port}"\njetstream { store_dir: "${dir}" }\nauthorization { token: "a/b" }\n`,
  );
  const server = spawn(env.natsServer!, ['--config', config], { stdio: 'ignore' });
  try {
    const url = `nats://a%2Fb@127.0.0.1:${port}`;
    await eventually(async () => (await natsFault(url, 5000)) === undefined, 'the server answers');
    await using connection = await connectNats(url, 'test');
    expect(connection.isClosed()).toBe(false);
    await expect(connectNats(url.replace('a%2Fb', 'another'), 'test')).rejects.toMatchObject({
      code: 'LOG_UNAVAILABLE',
    });
  } finally {
    server.kill('SIGKILL');
    await rm(dir, { recursive: true, force: true });
  }
});
