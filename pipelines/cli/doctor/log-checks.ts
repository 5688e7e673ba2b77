/** Checks of the log: the rights of its accounts, its streams, the checkpoints, and space. */

import { headers, NoRespondersError, PermissionViolationError } from '@nats-io/transport-node';
import { Catalog } from '../../../shared/db/catalog.ts';
import { connectNats, type NatsConnection } from '../../../shared/nats/connect.ts';
import { CHANGES_STREAM, isDenied, mutableIn, streamInfo } from '../../../shared/nats/stream.ts';
import { nobody } from '../../../shared/stack/processes.ts';
import { logVerdict, REWOUND } from '../../projector/log-reader.ts';
import { changeFault } from '../../proof-log/change-publisher.ts';
import { type Account, bytes, type Check, type Finding, fault, statesOf, warning } from './types.ts';

/** No stream ever has this name, so the probing requests have no effect even if they are allowed. */
const NO_STREAM = 'tidemark_doctor_asks';
const TIMEOUT_MS = 5000;

/**
 * Rights that only the operator's account should have. The server rejects each of these requests even for accounts that
 * have the right.
 */
const REQUESTS: readonly { readonly right: string; readonly call: string; readonly body?: object }[] = [
  { right: 'delete streams', call: `STREAM.DELETE.${NO_STREAM}` },
  { right: 'purge streams', call: `STREAM.PURGE.${NO_STREAM}` },
  { right: 'delete messages', call: `STREAM.MSG.DELETE.${NO_STREAM}`, body: { seq: 1 } },
  { right: 'change streams', call: `STREAM.UPDATE.${NO_STREAM}`, body: { name: NO_STREAM } },
  // The request's name differs from its subject, so the server rejects it.
  { right: 'make streams', call: `STREAM.CREATE.${NO_STREAM}`, body: { name: 'another' } },
  {
    right: 'make consumers',
    call: `CONSUMER.CREATE.${NO_STREAM}.${NO_STREAM}`,
    body: { stream_name: NO_STREAM, config: {} },
  },
  { right: 'delete consumers', call: `CONSUMER.DELETE.${NO_STREAM}.${NO_STREAM}` },
];

export const ACCOUNT_CHECK: Check = {
  name: 'account',
  doc: 'the accounts of the log have only the rights that they need: none can change, empty or forge the log',
  needs: ['log'],
  async run({ accounts, datasets }) {
    const findings: Finding[] = [];
    for (const account of accounts) {
      await using connection = await connectNats(account.url, 'tidemark doctor');
      const rights = await tooMany(connection, account, datasets[0].key);
      if (rights.length === 0) continue;
      const fix = 'give it the rights in docs/nats-accounts.conf (docs/operations.md, "Accounts of the log")';
      findings.push(warning(account.setting, `its account (${account.role}) may ${rights.join(', ')}`, fix));
    }
    return findings;
  },
};

async function tooMany(connection: NatsConnection, { role }: Account, dataset: string): Promise<string[]> {
  const rights: string[] = [];
  for (const { right, call, body } of REQUESTS) {
    if (await mayRequest(connection, `$JS.API.${call}`, body)) rights.push(right);
  }
  // The request expects another stream than the one that would store it, so no stream does.
  if (role !== 'publisher' && (await mayRequest(connection, `${dataset}.${NO_STREAM}.1.0`)))
    rights.push('write events');
  const receives =
    (await maySubscribe(connection, `_INBOX_${NO_STREAM}.>`)) || (await maySubscribe(connection, '_INBOX.>'));
  if (receives) rights.push('receive answers meant for others');
  return rights;
}

async function mayRequest(connection: NatsConnection, subject: string, body?: object): Promise<boolean> {
  const expected = headers();
  expected.set('Nats-Expected-Stream', NO_STREAM);
  try {
    const options = { timeout: TIMEOUT_MS, ...(subject.startsWith('$JS.') ? {} : { headers: expected }) };
    await connection.request(subject, body && JSON.stringify(body), options);
    return true;
  } catch (error) {
    if (isDenied(error)) return false;
    if (error instanceof NoRespondersError || (error as Error).cause instanceof NoRespondersError) return true;
    throw error;
  }
}

async function maySubscribe(connection: NatsConnection, subject: string): Promise<boolean> {
  const answer = Promise.withResolvers<boolean>();
  const callback = (error: Error | null) => {
    if (error instanceof PermissionViolationError) answer.resolve(false);
  };
  const subscription = connection.subscribe(subject, { callback });
  // The server answers in order, so a refusal arrives before the answer to this.
  await connection.flush();
  setImmediate(() => answer.resolve(true));
  const isAllowed = await answer.promise;
  subscription.unsubscribe();
  return isAllowed;
}

const streams: Check = {
  name: 'streams',
  doc: 'each stream is an immutable log with the limits and replicas of the settings',
  needs: ['log'],
  async run({ datasets, log, settings }) {
    const findings: Finding[] = [];
    for (const { key } of datasets) {
      const info = await streamInfo(log.manager, key);
      if (!info) continue;
      for (const what of mutableIn(info)) {
        findings.push(fault(key, what, `nats stream edit ${key}, with an account that has the right`));
      }
      const { max_bytes: limit = -1, num_replicas: replicas, subjects } = info.config;
      if (subjects.join() !== `${key}.>`) {
        findings.push(fault(key, `takes ${subjects.join(' ')}, must take ${key}.>`, `nats stream edit ${key}`));
      }
      if (replicas !== settings.SVC_STREAM_REPLICAS) {
        const what = `has ${replicas} replicas, but SVC_STREAM_REPLICAS is ${settings.SVC_STREAM_REPLICAS}`;
        const fix =
          "correct the setting; the next migrate, up or backfill with the operator's account changes the stream";
        findings.push(warning(key, what, fix));
      }
      const offline = info.cluster?.replicas?.filter((peer) => peer.offline || !peer.current) ?? [];
      for (const peer of offline) {
        findings.push(
          warning(key, `its replica on ${peer.name} is unavailable or behind`, 'start that server, or wait'),
        );
      }
      for await (const consumer of log.manager.consumers.list(key)) {
        const { deliver_subject } = consumer.config;
        if (deliver_subject === undefined) continue;
        const what = `its consumer ${consumer.name} pushes to ${deliver_subject}; Tidemark's consumers are pulled`;
        findings.push(
          fault(key, what, `nats consumer rm ${key} ${consumer.name}, and change the password that made it`),
        );
      }
      if (limit > 0 && info.state.bytes > limit * 0.8) {
        const what = `holds ${bytes(info.state.bytes)} of ${bytes(limit)}`;
        findings.push(warning(key, what, 'raise SVC_STREAM_MAX_BYTES before it is full'));
      }
    }
    return findings;
  },
};

const checkpoints: Check = {
  name: 'checkpoints',
  doc: 'the log is the one that was projected and holds what is proved, and a projector works on it',
  needs: ['database', 'log'],
  async run(context) {
    const findings: Finding[] = [];
    const catalog = new Catalog(context.database);
    for (const { dataset, overview, details } of await statesOf(context)) {
      const checkpoint = await catalog.checkpoint(dataset);
      const { state, finding } = await logVerdict(context.log.connection, dataset, checkpoint);
      if (REWOUND.has(state)) {
        // Of the log of an exchange, which its instruments share, the default tells.
        if (!dataset.base)
          findings.push(fault(dataset.key, `${state}: ${finding}`, `./tidemark recover ${dataset.key}`));
        continue;
      }
      if (!dataset.base && state === 'log_ahead' && overview.projector === null) {
        const what = `${finding}; no projector works on it`;
        findings.push(warning(dataset.key, what, './tidemark up: its projector clears the backlog'));
      }
      if (details.notInLog) {
        const { n, first, last } = details.notInLog;
        const what = `proved partitions that the log lost: ${n} (${n === 1 ? first : `${first} to ${last}`}); they are served, without lineage`;
        findings.push(warning(dataset.key, what, './tidemark reingest, with a --reason, writes them to the log again'));
      }
    }
    return findings;
  },
};

const changes: Check = {
  name: 'changes',
  doc: 'the stream of changes holds what the catalog says and nothing else',
  needs: ['database', 'log'],
  async run({ database, log }) {
    const what = await changeFault({ client: database, manager: log.manager });
    return what === undefined
      ? []
      : [fault(CHANGES_STREAM, what, './tidemark recover all fills it again from the catalog')];
  },
};

const runAs: Check = {
  name: 'run_as',
  doc: 'the embedded servers have an account that no other daemon has',
  needs: [],
  async run({ serverUid }) {
    if (serverUid === undefined || serverUid !== nobody().uid) return [];
    const what = 'the servers run as nobody: every other daemon of that account can read and change the data';
    const fix = 'set SVC_RUN_AS to an account of their own (docs/security.md)';
    return [warning('SVC_RUN_AS', what, fix)];
  },
};

/** Reserved for everything else. */
const SPARE_BYTES = 2e9;

const space: Check = {
  name: 'space',
  doc: 'the disk has space for what the streams have reserved and for the database',
  needs: ['log'],
  async run({ datasets, log, logDir, databaseDir, freeBytes }) {
    let reserved = 0;
    for (const { key } of datasets) {
      const info = await streamInfo(log.manager, key);
      if (info) reserved += Math.max(0, (info.config.max_bytes ?? 0) - info.state.bytes);
    }
    const findings: Finding[] = [];
    if (logDir !== undefined) {
      const free = await freeBytes(logDir);
      if (free < reserved) {
        const what = `streams may still take ${bytes(reserved)}, but the disk has ${bytes(free)} free`;
        findings.push(warning('log', what, 'lower SVC_STREAM_MAX_BYTES, or enlarge the disk'));
      }
    }
    if (databaseDir !== undefined) {
      const free = await freeBytes(databaseDir);
      if (free < SPARE_BYTES) {
        findings.push(
          fault('database', `the disk has ${bytes(free)} free`, 'make room: a full disk stops the database'),
        );
      }
    }
    return findings;
  },
};

export const LOG_CHECKS: readonly Check[] = [streams, ACCOUNT_CHECK, checkpoints, changes, runAs, space];
