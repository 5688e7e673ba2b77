/** Checks of the log: streams as they must be, in step with the checkpoints, with room. */

import { Catalog } from '../../../shared/db/catalog.ts';
import { mutableIn, streamInfo } from '../../../shared/nats/stream.ts';
import { logVerdict, REWOUND } from '../../project/checkpoint.ts';
import { ACCOUNT_CHECK } from './account-check.ts';
import { bytes, type Check, type Finding, fault, type Patient, warning } from './types.ts';

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
        findings.push(fault(key, what, `nats stream edit ${key}, with an account that may`));
      }
      const { max_bytes: limit = -1, num_replicas: replicas, subjects } = info.config;
      if (subjects.join() !== `${key}.>`) {
        findings.push(fault(key, `takes ${subjects.join(' ')}, must take ${key}.>`, `nats stream edit ${key}`));
      }
      if (replicas !== settings.SVC_STREAM_REPLICAS) {
        const what = `has ${replicas} replicas, SVC_STREAM_REPLICAS says ${settings.SVC_STREAM_REPLICAS}`;
        const fix =
          "correct the setting; the next migrate, up or backfill that has the operator's account brings the stream to it";
        findings.push(warning(key, what, fix));
      }
      const offline = info.cluster?.replicas?.filter((peer) => peer.offline || !peer.current) ?? [];
      for (const peer of offline) {
        findings.push(warning(key, `its replica on ${peer.name} is away or behind`, 'start that server, or wait'));
      }
      for await (const consumer of log.manager.consumers.list(key)) {
        const { deliver_subject } = consumer.config;
        if (deliver_subject === undefined) continue;
        const what = `its consumer ${consumer.name} delivers to ${deliver_subject}: ours are asked`;
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
  doc: 'the log is the one that was projected, and somebody projects it',
  needs: ['database', 'log'],
  async run({ datasets, database, log }) {
    const findings: Finding[] = [];
    const catalog = new Catalog(database);
    const projectors = await holders(database);
    for (const dataset of datasets) {
      const { state, finding } = await logVerdict(log.connection, dataset, await catalog.checkpoint(dataset));
      if (REWOUND.has(state)) {
        findings.push(fault(dataset.key, `${state}: ${finding}`, `./tidemark recover ${dataset.key}`));
      } else if (state === 'log_ahead' && !projectors.has(dataset.number)) {
        const what = `${finding}; nobody projects it`;
        findings.push(warning(dataset.key, what, './tidemark up: it catches up by itself'));
      }
    }
    return findings;
  },
};

async function holders(database: Patient['database']): Promise<Set<number>> {
  const { PROJECTOR_LOCK } = await import('../../../shared/db/locks.ts');
  const { rows } = await database.query(
    `select objid::int4 as dataset from pg_locks where locktype = 'advisory' and classid = $1 and granted
       and database = (select oid from pg_database where datname = current_database())`,
    [PROJECTOR_LOCK],
  );
  return new Set(rows.map(({ dataset }) => dataset));
}

/** Left for everything else. */
const SPARE_BYTES = 2e9;

const space: Check = {
  name: 'space',
  doc: 'the disk has what the streams have reserved and not used, and room for the database',
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
        const what = `streams may still take ${bytes(reserved)}, the disk has ${bytes(free)}`;
        findings.push(warning('log', what, 'lower SVC_STREAM_MAX_BYTES, or give the disk more room'));
      }
    }
    if (databaseDir !== undefined) {
      const free = await freeBytes(databaseDir);
      if (free < SPARE_BYTES) {
        findings.push(fault('database', `the disk has ${bytes(free)}`, 'make room: a full disk stops the database'));
      }
    }
    return findings;
  },
};

export const LOG_CHECKS: readonly Check[] = [streams, ACCOUNT_CHECK, checkpoints, space];
