/** Finds what the operator has to repair or watch in a status, in order of weight. This file does not use the DOM. */
import { counted, duration, whole } from './format.js';

/** The projector takes seconds for a partition. A partition that waits longer than this is not being projected. */
const STALLED_SECONDS = 120;
/** The share of a stream's byte limit from which a finding reports it. */
const NEARLY_FULL = 0.9;

/**
 * @typedef {{ weight: 'bad' | 'warn', text: string, what: string, dataset?: string }} Finding
 * @param {any} status the answer of /v1/ops/status
 * @param {readonly any[]} datasets of /v1/datasets
 * @returns {Finding[]}
 */
export function findingsOf(status, datasets) {
  const found = [
    ...Object.entries(status.checks).flatMap(([check, result]) =>
      result === 'ok' ? [] : [bad(`The check ${check} says: ${result}.`, './tidemark doctor names what mends it.')],
    ),
    ...(status.log_fault
      ? [bad('The log does not answer, so nothing can be ingested and lag is not known.', status.log_fault)]
      : []),
    ...status.datasets.flatMap(ofDataset),
    ...ofRights(datasets),
    ...status.runs.flatMap(ofRun),
    ...status.queues.flatMap(ofQueue),
  ];
  return found.toSorted((a, b) => Number(a.weight === 'warn') - Number(b.weight === 'warn'));
}

/** @returns {Finding} */
const bad = (text, what, dataset = undefined) => ({ weight: 'bad', text, what, dataset });
/** @returns {Finding} */
const warn = (text, what, dataset = undefined) => ({ weight: 'warn', text, what, dataset });

/** @returns {Finding[]} */
function ofDataset({ dataset, partitions, log, projector, late_arrivals_total: late }) {
  const found = [];
  if (partitions.quarantined > 0) {
    found.push(
      bad(
        `${counted(partitions.quarantined, 'partition')} of ${dataset} ${partitions.quarantined === 1 ? 'is' : 'are'} quarantined: kept back, because what was stored is not what the source holds.`,
        'The calendar shows which and why; ./tidemark quarantine lists them.',
        dataset,
      ),
    );
  }
  if (log && log.lag.oldest_seconds > STALLED_SECONDS) {
    found.push(
      bad(
        `${counted(log.lag.frames, 'message')} of ${dataset} ${log.lag.frames === 1 ? 'has' : 'have'} been waiting for ${duration(log.lag.oldest_seconds)} to be projected.`,
        projector
          ? 'A projector has the lock and does not get on, or a publisher died in the middle: run its backfill again.'
          : 'No projector is at work: start ./tidemark up, or look why it stopped.',
        dataset,
      ),
    );
  }
  if (partitions.missing > 0) {
    found.push(
      warn(
        `${counted(partitions.missing, 'partition')} of ${dataset} ${partitions.missing === 1 ? 'is' : 'are'} missing between what is proved.`,
        './tidemark backfill fills the holes.',
        dataset,
      ),
    );
  }
  if (log && log.max_bytes > 0 && log.bytes > NEARLY_FULL * log.max_bytes) {
    found.push(
      warn(
        `The stream of ${dataset} is ${Math.floor((100 * log.bytes) / log.max_bytes)} % full; at 100 % its publisher stops.`,
        'Raise SVC_STREAM_MAX_BYTES.',
        dataset,
      ),
    );
  }
  if (late > 0) {
    found.push(
      warn(
        `${counted(late, 'document')} came for proved days of ${dataset} with other content and ${late === 1 ? 'was' : 'were'} refused.`,
        'Compare, then ./tidemark reingest with a reason if the new one is right.',
        dataset,
      ),
    );
  }
  return found;
}

/** One for each reason. @param {readonly any[]} datasets @returns {Finding[]} */
function ofRights(datasets) {
  const refused = datasets.filter(({ rights, availability }) => rights.refused_with && availability.rows > 0);
  return [...Map.groupBy(refused, ({ rights }) => rights.refused_with)].map(([code, list]) => {
    const names = list.map(({ key }) => key).join(', ');
    const text = `${names} ${list.length === 1 ? 'is' : 'are'} not served: ${code}.`;
    return warn(text, './tidemark rights init explains how it may be.');
  });
}

/** @returns {Finding[]} */
function ofRun({ kind, subject, state, failures, fault, ended_at_utc: ended }) {
  if (state === 'lost')
    return [
      warn(
        `The ${kind} of ${subject} was killed before its end.`,
        'Run the same command again; it goes on where it was.',
      ),
    ];
  if (ended === null && failures > 0) {
    return [
      warn(
        `Following ${subject} failed ${counted(failures, 'time')} in a row and is tried again: ${fault}`,
        'It goes on by itself once the source answers.',
      ),
    ];
  }
  return [];
}

/** @returns {Finding[]} */
function ofQueue({ queue, waiting, max_waiting: most, rejected }) {
  if (most > 0 && waiting >= most / 2)
    return [
      warn(
        `${counted(waiting, `${queue} read`)} are waiting, of ${whole(most)} that may.`,
        'Another serving process takes half of them.',
      ),
    ];
  return rejected > 0
    ? [
        warn(
          `${counted(rejected, `${queue} read`)} ${rejected === 1 ? 'was' : 'were'} refused since this process began.`,
          'The queue was full, or the wait too long.',
        ),
      ]
    : [];
}

/**
 * The sentence at the head of the page.
 * @param {any} status
 * @param {readonly Finding[]} findings
 */
export function verdictOf(status, findings) {
  const broken = findings.filter(({ weight }) => weight === 'bad').length;
  if (broken > 0) return `${counted(broken, 'thing')} ${broken === 1 ? 'needs' : 'need'} you`;
  const waiting = status.datasets.reduce((sum, { log }) => sum + (log?.lag.frames ?? 0), 0);
  if (waiting > 0) return 'Draining the backlog';
  if (status.datasets.every(({ rows }) => rows === 0)) return 'Nothing is proved yet';
  if (status.datasets.every(({ rows, synthetic }) => rows === 0 || synthetic)) return 'The sample is proved';
  return findings.length > 0 ? 'All that arrived is proved, with remarks' : 'All that arrived is proved';
}
