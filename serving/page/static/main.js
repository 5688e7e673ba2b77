/** The operator's page: reads the service's status every few seconds while the page is visible, and shows it. */
import { ask, Fault, key } from './api.js';
import { Calendar } from './calendar.js';
import { Candles } from './candles.js';
import { showChanges, sinceOf } from './changes.js';
import { byId, fill, h } from './dom.js';
import { Explorer } from './explorer.js';
import { FrameBuilder } from './frame.js';
import { Hour } from './hour.js';
import { keyGate } from './key-gate.js';
import { showNow } from './now.js';
import { showNoProof, showProof } from './proof.js';
import { showExports, showWork } from './work.js';

/** The interval at which the service collects its status. */
const POLL_MS = 5000;
const EXPORTS_SHOWN = 10;
/** A look that takes longer is given up: a connection may be dead without a word. */
const LOOK_MS = 30_000;

const gate = keyGate(() => void look());
const hour = new Hour();
const calendar = new Calendar({
  onDay: (coverage, window, day, source) => void showProof(coverage, window, day, source),
});
/** @type {any} */
let datasets;
/** Coverage by dataset, with the version that it was read at. @type {Map<string, any>} */
const coverages = new Map();
const candles = new Candles((dataset) => coverages.get(dataset).answer);
let chosen = '';
/**
 * The look in progress. Two at once would build the page twice, and the older answer could replace the newer.
 * @type {AbortController | undefined}
 */
let looking;

async function look() {
  if (key.get() === '') return gate.open();
  looking?.abort();
  const own = new AbortController();
  looking = own;
  const { signal } = own;
  const timer = setTimeout(() => own.abort(), LOOK_MS);
  try {
    await begin(signal);
    const [status, history, { exports }] = await Promise.all([
      ask('/v1/ops/status', { signal }),
      ask('/v1/ops/history', { signal }),
      // When exports cannot be listed, the page still shows everything else.
      ask(`/v1/raw/export?limit=${EXPORTS_SHOWN}`, { signal }).catch(() => ({ exports: [] })),
    ]);
    // As for exports: what cannot be listed hides nothing else.
    const { changes } = await ask(`/v1/changes?since=${sinceOf(status)}`, { signal }).catch(() => ({ changes: [] }));
    // A key may cover fewer than the system has.
    status.datasets = status.datasets.filter(({ dataset }) =>
      datasets.datasets.some(({ key: name }) => name === dataset),
    );
    await refreshCoverage(status, signal);
    signal.throwIfAborted();
    candles.offer(datasets.datasets);
    show(status);
    hour.show(history);
    showExports(exports);
    showChanges(status, changes);
    showUpdated(`as of ${status.at_utc.slice(11, 19)} UTC`);
  } catch (thrown) {
    // Another look has begun, with another key.
    if (looking !== own) return;
    const error = signal.aborted ? new Fault('The service does not answer.') : thrown;
    if (!(error instanceof Fault)) throw error;
    if (error.isKey) return gate.open(error);
    // A key without the scope does not get it by asking again.
    showUpdated(error.code === 'AUTH_SCOPE_MISSING' ? error.message : `${error.message} Trying again.`, true);
  } finally {
    clearTimeout(timer);
    if (looking === own) looking = undefined;
  }
}

/** Facts that do not change while the page is open. @param {AbortSignal} signal */
async function begin(signal) {
  if (datasets) return;
  datasets = await ask('/v1/datasets', { signal });
  const select = byId('coverage-dataset');
  fill(select, ...datasets.datasets.map(({ key: name, title }) => h('option', { value: name }, title)));
  select.addEventListener('change', () => choose(select.value));
  new Explorer(datasets);
  new FrameBuilder(datasets);
  showNoProof();
}

/**
 * @param {any} status
 * @param {AbortSignal} signal
 */
async function refreshCoverage(status, signal) {
  const changed = status.datasets.filter(({ dataset, coverage_version: version, partitions }) => {
    const revision = `${version} ${partitions.quarantined} ${partitions.published} ${partitions.publishing}`;
    return coverages.get(dataset)?.revision !== revision;
  });
  await Promise.all(
    changed.map(async ({ dataset, coverage_version: version, partitions: { quarantined, published, publishing } }) => {
      // The answer states proved partitions as stretches. The page asks for the few others by state.
      const states = Object.entries({ quarantined, published, publishing }).filter(([, count]) => count > 0);
      const asked = states.length === 0 ? ['quarantined'] : states.map(([state]) => state);
      const answers = await Promise.all(
        asked.map((state) => ask(`/v1/coverage/${dataset}?state=${state}&limit=1000`, { signal })),
      );
      coverages.set(dataset, {
        revision: `${version} ${quarantined} ${published} ${publishing}`,
        answer: { ...answers[0], partitions: answers.flatMap(({ partitions }) => partitions) },
      });
      if (dataset === chosen) calendar.show(coverages.get(dataset).answer);
    }),
  );
  if (chosen !== '') return;
  // The page opens on a dataset that needs the operator, else on one with rows.
  const troubled = ({ partitions: { quarantined, missing } }) => quarantined + missing > 0;
  const first = status.datasets.find(troubled) ?? status.datasets.find(({ rows }) => rows > 0) ?? status.datasets[0];
  choose(first.dataset);
}

function choose(dataset) {
  if (dataset !== chosen) showNoProof();
  chosen = dataset;
  byId('coverage-dataset').value = dataset;
  const held = coverages.get(dataset);
  if (held) calendar.show(held.answer);
}

/** @param {any} status */
function show(status) {
  showNow(status, {
    coverageOf: (dataset) => coverages.get(dataset)?.answer,
    onDataset: choose,
    titleOf: (dataset) => datasets.datasets.find((one) => one.key === dataset).title,
  });
  showWork(status);
}

function showUpdated(text, isFault = false) {
  const line = byId('updated');
  line.textContent = text;
  line.classList.toggle('fault', isFault);
}

void look();
setInterval(() => {
  if (looking || document.visibilityState !== 'visible') return;
  if (key.get() !== '' && !byId('key-dialog').open) void look();
}, POLL_MS);
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && datasets && !looking) void look();
});
