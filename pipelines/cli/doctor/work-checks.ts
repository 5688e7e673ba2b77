/** Checks of the work: quarantined or stuck partitions, killed or failing runs, sources, rights. */

import { stat } from 'node:fs/promises';
import { connect as connectTcp } from 'node:net';
import { fileURLToPath } from 'node:url';
import { settingValue } from '../../../shared/config/settings.ts';
import { conflictsWith, readPins } from '../../../shared/db/pinned-settings.ts';
import { unprovedFailures } from '../../../shared/db/runs.ts';
import { createLogger } from '../../../shared/logger.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { baseOf } from '../../../shared/registry/instruments.ts';
import type { SourceRights } from '../../../shared/rights/matrix.ts';
import { RightsStore, SAMPLE_MATRIX_PATH } from '../../../shared/rights/store.ts';
import { STUCK_HOURS } from '../../../shared/status/catalog-facts.ts';
import { type Check, type Finding, fault, statesOf, warning } from './types.ts';

const partitions: Check = {
  name: 'partitions',
  doc: 'no partition is in quarantine, refused or stuck',
  needs: ['database'],
  async run(context) {
    return (await statesOf(context)).flatMap(({ dataset, details }) => {
      const key = dataset.instrument === undefined ? dataset.key : `${dataset.key} --instrument ${dataset.instrument}`;
      const { quarantined, stuck, refused, recounts } = details;
      const findings: Finding[] = stuck.map(({ state, n, first }) => {
        const what = `${n} ${state} and not proved for ${STUCK_HOURS} h, from ${first} on`;
        return warning(key, what, `./tidemark backfill ${key}`);
      });
      if (quarantined) {
        const what = `${quarantined.n} in quarantine, from ${quarantined.first} on`;
        findings.push(fault(key, what, `./tidemark quarantine ${key}`));
      }
      if (refused > 0) {
        const fix = `./tidemark ledger ${dataset.key} --kind late_arrival_refused; ./tidemark reingest ${key} ... --reason "..."`;
        findings.push(warning(key, `${refused} partitions now have other content at their source`, fix));
      }
      if (recounts) {
        const what = `reads found row counts other than proved in ${recounts.n} partitions, from ${recounts.first} on, and no projector has recounted them`;
        findings.push(fault(key, what, `find out why the projector does not run; ./tidemark verify ${key}`));
      }
      return findings;
    });
  },
};

const work: Check = {
  name: 'work',
  doc: 'no run was killed and left, followed feeds succeed, and what a run failed was proved later',
  needs: ['database'],
  async run({ state, database }) {
    const { runs } = await state();
    const killed = runs.flatMap((run) => {
      const name = `${run.kind} ${run.subject}`;
      const isOpen = run.state === 'waiting' || run.state === 'running';
      if (run.state === 'lost') {
        const what = `was killed after ${run.proved + run.unchanged} of ${run.planned ?? 'an unknown number'} (pid ${run.pid} on ${run.host})`;
        return [warning(name, what, `run it again to continue: ${run.command}`)];
      }
      if (run.kind === 'verify' && run.fault !== null && isOpen) {
        const what = `${run.failed} partitions could not be verified; the last fault: ${run.fault}`;
        return [warning(name, what, 'fix the fault; verification retries them within the hour')];
      }
      if (run.kind === 'follow' && run.failures > 0 && isOpen) {
        const next = run.next_at_utc === null ? '' : `, next attempt at ${run.next_at_utc}`;
        const what = `failed ${run.failures} times in a row${next}: ${run.fault}`;
        return [warning(name, what, 'fix the fault; following then continues by itself')];
      }
      return [];
    });
    const failed = (await unprovedFailures(database)).map(({ kind, subject, command, failed_unit: unit }) => {
      const what = `failed ${unit.dataset} ${unit.partition} at ${unit.at}, which is not proved since: ${unit.code}: ${unit.reason}`;
      const again = kind === 'follow' ? `./tidemark backfill ${subject}` : command;
      return warning(`${kind} ${subject}`, what, `mend its document or source, then run it again: ${again}`);
    });
    return [...killed, ...failed];
  },
};

const CONNECT_MS = 3000;

const sources: Check = {
  name: 'sources',
  doc: 'the folders and hosts of the source settings can be reached',
  needs: [],
  async run({ settings, datasets }) {
    const names = new Set(datasets.flatMap(({ locations }) => Object.values(locations).flat()));
    const findings: Finding[] = [];
    await Promise.all(
      [...names].map(async (name) => {
        const location = settingValue(settings, name);
        if (!(location instanceof URL)) return;
        const reason = await unreachable(location);
        if (reason) findings.push(fault(name, reason, 'correct the setting, or fix its host'));
      }),
    );
    return findings.toSorted((a, b) => a.subject.localeCompare(b.subject));
  },
};

const pinned: Check = {
  name: 'pinned',
  doc: 'the settings that select what is read are those of the first proof, and what is proved was read with them',
  needs: ['database'],
  async run({ settings, given, database, datasets }) {
    const conflicts = conflictsWith(await readPins(database, datasets), settings, given);
    return conflicts.map(({ pin: { setting, value, dataset, partition }, given: other }) =>
      fault(
        setting,
        `is ${other}, but the proof of ${dataset} ${partition} pinned it to ${value}: nothing is read with it`,
        `set it back to ${value} or leave it unset; ${other} needs a state folder of its own`,
      ),
    );
  },
};

async function unreachable(location: URL): Promise<string | undefined> {
  if (location.protocol === 'file:') {
    const path = fileURLToPath(location);
    const found = await stat(path).catch(() => undefined);
    return found?.isDirectory() ? undefined : `the folder ${path} does not exist`;
  }
  const { hostname, port, protocol } = location;
  return await new Promise((resolve) => {
    const socket = connectTcp({
      host: hostname.replace(/^\[|\]$/g, ''),
      port: Number(port || (protocol === 'https:' ? 443 : 80)),
      timeout: CONNECT_MS,
    });
    const end = (reason: string | undefined) => {
      socket.destroy();
      resolve(reason);
    };
    socket.once('connect', () => end(undefined));
    socket.once('timeout', () => end(`${hostname} does not answer`));
    socket.once('error', (error) => end(`${hostname}: ${error.message}`));
  });
}

/** A running sequencer signs within seconds (`checkpointMs`). */
const PENDING_MINUTES = 5;

const proofLog: Check = {
  name: 'proof_log',
  doc: 'every proved partition has a leaf in the proof log, and every leaf is under a signed checkpoint',
  needs: ['database'],
  async run(context) {
    const findings = (await statesOf(context)).flatMap(({ dataset: { key }, details: { leafless } }) => {
      if (!leafless) return [];
      const what = `${leafless.n} proved partitions have no leaf, from ${leafless.first} on`;
      return [warning(key, what, `./tidemark replay ${key}`)];
    });
    const { pending, oldest_pending_seconds: waiting } = (await context.state()).proofLog;
    if (waiting > PENDING_MINUTES * 60) {
      const what = `${pending} leaves wait for a checkpoint, the oldest for ${Math.round(waiting / 60)} minutes`;
      findings.push(fault('proof log', what, 'start a projector; its log says why it does not continue the proof log'));
    }
    return findings;
  },
};

export const WORK_CHECKS: readonly Check[] = [partitions, work, sources, pinned, proofLog];

const OWN_MATRIX =
  './tidemark rights init, fill in its forms, and name the matrix in .env as SVC_SOURCE_RIGHTS_MATRIX_PATH; ' +
  'with docker-compose.yml, docker compose run --rm rights init, and fill in its forms';
const FORMAT = 'see docs/security.md, rights';

const rights: Check = {
  name: 'rights',
  doc: 'the rights matrix is valid and covers the rows that sources published',
  needs: ['database'],
  async run(context) {
    const { settings } = context;
    // With a database of the operator's own, the service may use another matrix than this command's settings name.
    const isEmbedded = settings.SVC_DATABASE_URL === undefined;
    const path = settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (isEmbedded ? SAMPLE_MATRIX_PATH : undefined);
    if (path === undefined) return [];
    const log = createLogger('silent', 'doctor');
    const store = new RightsStore(path, { byokRole: settings.SVC_BYOK_DATABASE_ROLE, log });
    const current = store.current();
    if ('faults' in current) return current.faults.map((what) => fault(path, what, `correct it; ${FORMAT}`));
    const real = (await statesOf(context)).filter(
      ({ overview }) => overview.partitions.proved > 0 && !overview.synthetic,
    );
    const datasets = new Set(real.map(({ dataset }) => baseOf(dataset)));
    return [...datasets].flatMap((dataset) => findingsOf(dataset, store, current.matrix.sources));
  },
};

function findingsOf(dataset: DatasetDefinition, store: RightsStore, declared: readonly SourceRights[]): Finding[] {
  const sources = declared.filter(({ datasets }) => (datasets as readonly string[]).includes(dataset.key));
  const undeclared = dataset.sources.filter((key) => !sources.some(({ source }) => source === key));
  if (undeclared.length > 0) {
    const what = `is proved but refused: the matrix does not declare ${undeclared.join(', ')}`;
    return [warning(dataset.key, what, `declare all its sources; ${FORMAT}`)];
  }
  // Deliberately not served, whatever the artifacts say.
  if (sources.some(({ state }) => state === 'Ingest Only')) return [];
  const hosted = sources.filter(({ state }) => state === 'Hosted Allowed');
  const reasons = Map.groupBy(hosted, (source) => {
    const { fault: missing, syntheticOnly } = store.signoff(source);
    return missing === undefined ? (syntheticOnly ?? '') : `not permitted: ${missing}`;
  });
  reasons.delete('');
  return [...reasons].map(([why, of]) => {
    const names = of.map(({ source }) => source).join(', ');
    return fault(dataset.key, `published rows are refused; the sign-off of ${names} is ${why}`, OWN_MATRIX);
  });
}

export const RIGHTS_CHECKS: readonly Check[] = [rights];
