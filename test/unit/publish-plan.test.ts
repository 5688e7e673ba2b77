/**
 * What is published is decided by pure functions: every kind of plan, and a small world in which publishers are killed.
 *
 * Faults made on purpose and caught here or in unit/publisher-states, unit/projector-state, unit/trade-rows,
 * integration/retractions: a kill that doubles or loses a document, an attempt filled blindly after an outage, a rewind
 * without its checkpoint, a commit left out, restarts without a growing pause, an aligned second rounded the other way.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type AttemptFacts,
  type InLog,
  type KnownPartition,
  type PlanOptions,
  planAttempt,
  planDocument,
  planOf,
  planPartition,
} from '../../pipelines/publisher/publish-plan.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { SEED } from '../support/seed.ts';

const FIRST = { synthetic: false, reingest: false, fromArchive: false };
const AGAIN = { ...FIRST, reingest: true };
const KEPT = { ...FIRST, fromArchive: true };

const row = (state: KnownPartition['state'], more: Partial<KnownPartition> = {}): KnownPartition => ({
  partitionKey: 'day',
  state,
  revision: 1,
  attempt: 1,
  synthetic: false,
  reason: null,
  manifest: state === 'proved' ? ({ document: { sha256: 'a' } } as KnownPartition['manifest']) : null,
  ...more,
});
const from = (sha256: string) => ({ manifest: { document: { sha256 } } as KnownPartition['manifest'] });

describe('a document', () => {
  const plan = (rows: (KnownPartition | undefined)[], intent = FIRST) =>
    planDocument(
      rows.map((one) => ({ key: one?.partitionKey ?? 'day', isCapture: false, known: one ? [one] : [] })),
      intent,
    );

  test('is fetched while any of its partitions is neither proved nor quarantined', () => {
    for (const known of [
      [],
      [undefined],
      [row('proved'), undefined],
      [row('publishing')],
      [row('published')],
      [row('proved'), row('quarantined')],
      [row('proved'), row('proved', from('b'))],
      [row('proved', { synthetic: true })],
    ]) {
      expect(plan(known)).toEqual({ kind: 'fetch' });
    }
    expect(plan([row('proved')], AGAIN)).toEqual({ kind: 'fetch' });
    expect(plan([row('quarantined')], AGAIN)).toEqual({ kind: 'fetch' });
  });

  test('whose partitions are all quarantined is not fetched', () => {
    const quarantined = [row('quarantined'), row('quarantined', { partitionKey: 'next' })];
    expect(plan(quarantined)).toEqual({ kind: 'hold', quarantined });
  });

  test('from which all is proved is asked for, and fetched only if another is published', () => {
    const proved = [row('proved'), row('proved', { partitionKey: 'next' })];
    expect(plan(proved)).toEqual({ kind: 'ask', document: { sha256: 'a' }, proved });
  });
});

describe('a partition', () => {
  const plan = (known: KnownPartition[], intent = FIRST) =>
    planPartition({ ...intent, key: 'day', isCapture: false, known });
  const publish = { kind: 'attempt', key: 'day' };

  test('that is not proved is published', () => {
    for (const known of [[], [row('publishing')], [row('published')]]) expect(plan(known)).toEqual(publish);
  });

  test('that is proved is compared, and other content is refused', () => {
    const proved = [row('proved')];
    expect(plan(proved)).toEqual({ kind: 'compare', proved, otherwise: { kind: 'refuse' } });
  });

  test('is published again where an operator gave a reason, from kept documents only if it differs', () => {
    const proved = [row('proved')];
    expect(plan(proved, AGAIN)).toEqual(publish);
    expect(plan([row('quarantined')], AGAIN)).toEqual(publish);
    expect(plan(proved, { ...AGAIN, fromArchive: true })).toEqual({ kind: 'compare', proved, otherwise: publish });
    expect(plan(proved, KEPT)).toEqual({ kind: 'compare', proved, otherwise: { kind: 'refuse' } });
    expect(plan([], KEPT)).toEqual(publish);
  });

  test('that is quarantined is left alone, and a sample holds up nothing real', () => {
    const quarantined = row('quarantined');
    expect(plan([quarantined])).toEqual({ kind: 'hold', quarantined });
    expect(plan([quarantined], KEPT)).toEqual({ kind: 'hold', quarantined });
    expect(plan([row('quarantined', { synthetic: true })])).toEqual(publish);
    expect(plan([row('proved', { synthetic: true })])).toEqual(publish);
  });
});

describe('a capture', () => {
  const key = (number: number) => (number === 1 ? 'fund:2026-01-02' : `fund:2026-01-02:${number}`);
  const capture = (number: number, state: KnownPartition['state'], more: Partial<KnownPartition> = {}) =>
    row(state, { partitionKey: key(number), ...more });
  const plan = (known: KnownPartition[], intent = FIRST) =>
    planPartition({ ...intent, key: key(1), isCapture: true, known });
  const publish = (number: number) => ({ kind: 'attempt', key: key(number) });

  test('of a new day is published under the key of the day', () => {
    expect(plan([])).toEqual(publish(1));
    expect(plan([capture(1, 'publishing')])).toEqual(publish(1));
  });

  test('with other facts than every proved one is another capture of the day', () => {
    const [first, second] = [capture(1, 'proved'), capture(2, 'proved')];
    expect(plan([first])).toEqual({ kind: 'compare', proved: [first], otherwise: publish(2) });
    expect(plan([first, second])).toEqual({ kind: 'compare', proved: [first, second], otherwise: publish(3) });
    const open = [first, capture(2, 'published')];
    expect(plan(open)).toEqual({ kind: 'compare', proved: [first], otherwise: publish(2) });
  });

  // The number was that of the captures plus one: the third observation got the key of the second, and was refused as a
  // late arrival for good.
  test('follows the latest number where the first captures went with the sample', () => {
    const second = capture(2, 'proved');
    expect(plan([second])).toEqual({ kind: 'compare', proved: [second], otherwise: publish(3) });
  });

  test('replaces the latest where an operator gave a reason, unless it repeats an earlier one', () => {
    const [first, second] = [capture(1, 'proved'), capture(2, 'proved')];
    expect(plan([first], AGAIN)).toEqual(publish(1));
    expect(plan([first, second], AGAIN)).toEqual({ kind: 'compare', proved: [first], otherwise: publish(2) });
  });

  test('waits for an operator behind a quarantined one, and what is proved is still compared', () => {
    const [first, second] = [capture(1, 'proved'), capture(2, 'quarantined')];
    const hold = { kind: 'hold', quarantined: second };
    expect(plan([second])).toEqual(hold);
    expect(plan([first, second])).toEqual({ kind: 'compare', proved: [first], otherwise: hold });
  });

  // It did: a quarantined capture of the sample kept the real ones of its day out until an operator acted.
  test('does not wait behind a quarantined one of the sample', () => {
    expect(plan([capture(1, 'quarantined', { synthetic: true })])).toEqual(publish(1));
  });

  // The document was planned by the first capture alone: it was not fetched until an operator acted on that one.
  test('is fetched although the first of its day is quarantined, where a later one is proved', () => {
    const first = capture(1, 'quarantined');
    const document = (...known: KnownPartition[]) => planDocument([{ key: key(1), isCapture: true, known }], FIRST);
    expect(document(first, capture(2, 'proved'))).toEqual({ kind: 'fetch' });
    expect(document(first)).toEqual({ kind: 'hold', quarantined: [first] });
    const second = capture(2, 'quarantined');
    expect(document(first, second)).toEqual({ kind: 'hold', quarantined: [second] });
    // What the first capture was proved from is still unchanged.
    expect(document(capture(1, 'proved'), second)).toMatchObject({ kind: 'ask' });
  });

  test('from kept documents says itself which one it is', () => {
    const [first, second] = [capture(1, 'proved'), capture(2, 'proved')];
    const of = (number: number, known: KnownPartition[], intent = KEPT) =>
      planPartition({ ...intent, key: key(number), isCapture: true, known });
    expect(of(2, [first])).toEqual({ kind: 'compare', proved: [first], otherwise: publish(2) });
    expect(of(2, [first, second])).toEqual({ kind: 'compare', proved: [first, second], otherwise: { kind: 'refuse' } });
    expect(of(2, [first, second], { ...KEPT, reingest: true })).toMatchObject({ otherwise: publish(2) });
  });
});

describe('a backfill', () => {
  const headers = datasetOf('bitcoin_block_headers');
  const funds = datasetOf('etf_daily_metrics');
  const height = (state: KnownPartition['state'], more: Partial<KnownPartition> = {}) =>
    row(state, { partitionKey: '1', ...more });
  const first = 'fund:2026-01-02';
  const capture = (state: KnownPartition['state'], partitionKey = first) => row(state, { partitionKey });

  /** The action for one document of one partition. */
  const actionOf = (dataset: DatasetDefinition, known: KnownPartition[], more: Partial<PlanOptions> = {}) => {
    const options = { source: { datasets: [dataset] as const }, synthetic: false, reingest: false, compare: false };
    const requests = [{ period: 'a', partitions: [{ key: dataset === funds ? first : '1' }] }];
    const { documents, partitions } = planOf(requests, () => known as PartitionRow[], { ...options, ...more });
    expect(partitions[documents[0].action]).toBe(1);
    return documents[0].action;
  };

  test('skips what is proved and final, and leaves what is quarantined', () => {
    expect(actionOf(headers, [height('proved')])).toBe('skip');
    expect(actionOf(headers, [height('proved')], { compare: true })).toBe('compare');
    expect(actionOf(headers, [height('proved')], { reingest: true })).toBe('replace');
    expect(actionOf(headers, [height('quarantined')])).toBe('held');
    for (const known of [[], [height('published')], [height('proved', { synthetic: true })]]) {
      expect(actionOf(headers, known)).toBe('fetch');
    }
  });

  // The first capture alone decided: a day with a quarantined first one counted as held although a later one is proved.
  test('judges a day by all of its captures', () => {
    const second = `${first}:2`;
    expect(actionOf(funds, [])).toBe('fetch');
    expect(actionOf(funds, [capture('proved')])).toBe('compare');
    expect(actionOf(funds, [capture('quarantined')])).toBe('held');
    expect(actionOf(funds, [capture('proved'), capture('proved', second)])).toBe('compare');
    expect(actionOf(funds, [capture('proved'), capture('quarantined', second)])).toBe('compare');
    expect(actionOf(funds, [capture('quarantined'), capture('proved', second)])).toBe('compare');
    expect(actionOf(funds, [capture('quarantined'), capture('quarantined', second)])).toBe('held');
    expect(actionOf(funds, [capture('proved', second)])).toBe('compare');
  });
});

describe('an attempt', () => {
  const facts = (more: Partial<AttemptFacts> = {}): AttemptFacts => ({
    ...FIRST,
    key: 'day',
    document: 'a',
    row: undefined,
    latest: undefined,
    free: 1,
    overlapping: [],
    started: undefined,
    ...more,
  });
  const latest = (
    state: NonNullable<AttemptFacts['latest']>['state'],
    inLog: InLog = 'nothing',
    more: Partial<NonNullable<AttemptFacts['latest']>> = {},
  ) => ({ attempt: 1, revision: 1, state, document: 'a', inLog, ...more });
  const plan = (kind: string, attempt: number, revision = 1) => ({ kind, attempt, revision, displaced: [] });

  test('at a new partition is started, above every number that the log knows', () => {
    expect(planAttempt(facts())).toEqual(plan('start', 1));
    expect(planAttempt(facts({ free: 3 }))).toEqual(plan('start', 3));
  });

  test('that was interrupted is resumed if its frames end the log', () => {
    const open = { row: row('publishing'), free: 2 };
    for (const inLog of ['nothing', 'last_frames'] as const) {
      expect(planAttempt(facts({ ...open, latest: latest('publishing', inLog) }))).toEqual(plan('resume', 1));
    }
    expect(planAttempt(facts({ ...open, latest: latest('publishing', 'frames') }))).toEqual(plan('start', 2));
    const other = latest('publishing', 'last_frames', { document: 'b' });
    expect(planAttempt(facts({ ...open, latest: other }))).toEqual(plan('start', 2));
  });

  test('whose manifest the log holds awaits its proof, and one whose manifest is lost is followed by another', () => {
    const open = { row: row('published'), free: 2 };
    expect(planAttempt(facts({ ...open, latest: latest('published', 'manifest') }))).toEqual(plan('await', 1));
    expect(planAttempt(facts({ ...open, latest: latest('published') }))).toEqual(plan('start', 2));
    const copied = { row: row('publishing'), free: 2, latest: latest('publishing', 'manifest') };
    expect(planAttempt(facts(copied))).toEqual(plan('await', 1));
    expect(planAttempt(facts({ ...copied, document: 'b' }))).toEqual(plan('start', 2));
  });

  // A follower looked again while the proof came in: it published the same once more, which was refused as a late arrival.
  test('that was proved since its partition was decided about is awaited, and not made again', () => {
    const proved = { row: row('proved'), free: 2, latest: latest('proved') };
    expect(planAttempt(facts(proved))).toEqual(plan('await', 1));
    expect(planAttempt(facts({ ...proved, document: 'b' }))).toEqual(plan('start', 2));
    expect(planAttempt(facts({ ...proved, row: row('quarantined') }))).toEqual(plan('start', 2));
    // A sample of the same document is replaced.
    expect(planAttempt(facts({ ...proved, row: row('proved', { synthetic: true }) }))).toEqual(plan('start', 2));
  });

  test('after an ended one is started', () => {
    for (const state of ['abandoned', 'refused', 'quarantined'] as const) {
      expect(planAttempt(facts({ free: 2, latest: latest(state) }))).toEqual(plan('start', 2));
    }
  });

  test('for an operator starts a revision, which is resumed when it is interrupted', () => {
    const again = { ...AGAIN, row: row('proved'), free: 2 };
    expect(planAttempt(facts({ ...again, latest: latest('proved') }))).toEqual(plan('revise', 2, 2));
    expect(planAttempt(facts({ ...AGAIN, row: row('publishing'), latest: latest('publishing') }))).toEqual(
      plan('resume', 1),
    );
    const second = { attempt: 2, revision: 2 };
    const open = { ...again, free: 3 };
    for (const [state, inLog, kind] of [
      ['publishing', 'last_frames', 'resume'],
      ['publishing', 'manifest', 'await'],
      ['published', 'manifest', 'await'],
    ] as const) {
      expect(planAttempt(facts({ ...open, latest: latest(state, inLog, second) }))).toEqual(plan(kind, 2, 2));
    }
    expect(planAttempt(facts({ ...open, latest: latest('publishing', 'frames', second) }))).toEqual(
      plan('start', 3, 2),
    );
    const abandoned = latest('abandoned', 'nothing', second);
    expect(planAttempt(facts({ ...open, latest: abandoned }))).toEqual(plan('revise', 3, 3));
  });

  // An outage during `reingest` had the document read again, and what was proved meanwhile became a third revision.
  test('for an operator starts one revision in a command, however often the document is read again', () => {
    const second = { attempt: 2, revision: 2 };
    const after = { ...AGAIN, free: 3, started: 2 };
    for (const state of ['proved', 'quarantined', 'refused'] as const) {
      const known = row(state === 'proved' ? 'proved' : 'quarantined', state === 'proved' ? second : {});
      expect(planAttempt(facts({ ...after, row: known, latest: latest(state, 'nothing', second) }))).toEqual(
        plan('await', 2, 2),
      );
    }
    const abandoned = latest('abandoned', 'nothing', second);
    expect(planAttempt(facts({ ...after, row: row('proved'), latest: abandoned }))).toEqual(plan('start', 3, 2));
    const changed = {
      ...after,
      row: row('proved', second),
      latest: latest('proved', 'nothing', second),
      document: 'b',
    };
    expect(planAttempt(facts(changed))).toEqual(plan('revise', 3, 3));
  });

  test('is refused where another partition holds its heights, and displaces what is unfinished', () => {
    const at = (state: KnownPartition['state'], more: Partial<KnownPartition> = {}) =>
      row(state, { partitionKey: '1-9', ...more });
    for (const state of ['proved', 'published', 'quarantined'] as const) {
      const other = at(state);
      expect(planAttempt(facts({ overlapping: [other] }))).toEqual({ kind: 'refuse', other });
    }
    const unfinished = at('publishing');
    expect(planAttempt(facts({ overlapping: [unfinished] }))).toEqual({ ...plan('start', 1), displaced: [unfinished] });
    expect(planAttempt(facts({ overlapping: [row('proved'), at('proved', { synthetic: true })] }))).toEqual(
      plan('start', 1),
    );
    const quarantined = at('quarantined', { revision: 4 });
    expect(planAttempt(facts({ ...AGAIN, overlapping: [quarantined] }))).toEqual(plan('start', 1, 5));
    expect(planAttempt(facts({ ...AGAIN, overlapping: [at('proved')] }))).toMatchObject({ kind: 'refuse' });
  });
});

/** Frames of every document here. */
const FRAMES = 2;

interface Message {
  readonly key: string;
  readonly attempt: number;
  readonly revision: number;
  readonly document: string;
  /** The manifest is the one after the last frame. */
  readonly frame: number;
}

type WorldAttempt = {
  -readonly [K in 'attempt' | 'revision' | 'state' | 'document']: NonNullable<AttemptFacts['latest']>[K];
};

/** A log, a catalog and a projector, as docs/architecture.md describes them and in as few lines as possible. */
class World {
  readonly log: Message[] = [];
  readonly attempts = new Map<string, WorldAttempt[]>();
  readonly rows = new Map<string, KnownPartition>();
  #projected = 0;

  /** One try at publishing a document of one partition. @returns what became of it; undefined if it was cut short. */
  publish(key: string, document: string, intent: typeof FIRST, started: Map<string, number>, steps: number) {
    let left = steps;
    const isCut = () => left-- <= 0;
    const known = this.rows.get(key);
    const about = planPartition({ ...intent, key, isCapture: false, known: known ? [known] : [] });
    if (about.kind === 'hold') return 'held';
    if (about.kind === 'compare') {
      return about.proved[0].manifest?.document.sha256 === document ? 'unchanged' : 'refused';
    }
    const plan = planAttempt(this.#facts(key, document, intent, started));
    if (plan.kind === 'refuse') return 'held';
    const { attempt, revision } = plan;
    if (isCut()) return undefined;
    started.set(key, revision);
    if (plan.kind === 'await') {
      this.#copy(key, attempt);
      return 'published';
    }
    this.#open(key, { attempt, revision, document });
    for (let frame = 0; frame <= FRAMES; frame++) {
      if (isCut()) return undefined;
      const stored = this.log.find((one) => one.key === key && one.attempt === attempt && one.frame === frame);
      if (stored) expect(stored.document).toBe(document);
      else this.log.push({ key, attempt, revision, document, frame });
    }
    if (isCut()) return undefined;
    this.#copy(key, attempt);
    return 'published';
  }

  #facts(key: string, document: string, intent: typeof FIRST, started: Map<string, number>): AttemptFacts {
    const latest = this.attempts.get(key)?.at(-1);
    const messages = this.log.filter((one) => one.key === key && one.attempt === latest?.attempt);
    const last = messages.at(-1);
    const inLog: InLog =
      last === undefined
        ? 'nothing'
        : last.frame === FRAMES
          ? 'manifest'
          : this.log.at(-1) === last
            ? 'last_frames'
            : 'frames';
    const row = this.rows.get(key);
    const free = (latest?.attempt ?? 0) + 1;
    return {
      ...{ ...intent, key, document, row, latest: latest && { ...latest, inLog }, free, overlapping: [] },
      started: started.get(key),
    };
  }

  #open(key: string, { attempt, revision, document }: { attempt: number; revision: number; document: string }): void {
    const attempts = this.attempts.get(key) ?? [];
    this.attempts.set(key, attempts);
    for (const one of attempts) {
      if (one.state === 'publishing' && one.attempt < attempt) one.state = 'abandoned';
    }
    if (!attempts.some((one) => one.attempt === attempt)) {
      attempts.push({ attempt, revision, document, state: 'publishing' });
    }
    const { state } = this.rows.get(key) ?? {};
    if (state === 'proved' || state === 'quarantined') return;
    this.rows.set(key, row('publishing', { partitionKey: key, attempt, revision }));
  }

  #copy(key: string, attempt: number): void {
    const of = this.attempts.get(key)?.find((one) => one.attempt === attempt);
    if (of?.state === 'publishing') of.state = 'published';
    const known = this.rows.get(key);
    if (known?.state === 'publishing' && known.attempt === attempt)
      this.rows.set(key, { ...known, state: 'published' });
  }

  /** Ends every attempt whose manifest the log holds. */
  project(): void {
    for (; this.#projected < this.log.length; this.#projected++) {
      const { key, attempt, revision, document, frame } = this.log[this.#projected];
      if (frame < FRAMES) continue;
      const of = this.attempts.get(key)!.find((one) => one.attempt === attempt)!;
      const known = this.rows.get(key);
      const before = this.log.slice(this.#projected - FRAMES, this.#projected);
      const isWhole =
        before.length === FRAMES &&
        before.every((one, index) => one.key === key && one.attempt === attempt && one.frame === index);
      if (known?.state === 'proved' && known.revision >= revision) of.state = 'refused';
      else if (!isWhole) of.state = 'quarantined';
      else of.state = 'proved';
      if (of.state === 'refused') continue;
      this.rows.set(key, row(of.state as 'proved', { partitionKey: key, attempt, revision, ...from(document) }));
    }
  }
}

test('a kill or an outage at any point neither doubles nor loses a document', () => {
  const command = fc.record({
    key: fc.constantFrom('x', 'y'),
    document: fc.constantFrom('a', 'b'),
    reingest: fc.boolean(),
    /** After how many steps each try is cut short, and whether the projector comes by before the next. */
    cuts: fc.array(fc.record({ steps: fc.nat(FRAMES + 3), projects: fc.boolean() }), { maxLength: 4 }),
    isKilled: fc.boolean(),
  });
  const commands = fc.array(command, { maxLength: 12 });
  fc.assert(
    fc.property(commands, (all) => {
      const world = new World();
      for (const { key, document, reingest, cuts, isKilled } of all) {
        // A command lets the projector finish before it publishes.
        world.project();
        const before = world.rows.get(key);
        const revisions = () => Math.max(0, ...(world.attempts.get(key) ?? []).map(({ revision }) => revision));
        const [revision, messages] = [revisions(), world.log.length];
        const started = new Map<string, number>();
        const run = (steps: number) => world.publish(key, document, { ...FIRST, reingest }, started, steps);
        let outcome: ReturnType<typeof run>;
        for (const { steps, projects } of cuts) {
          outcome = run(steps);
          if (outcome !== undefined) break;
          if (projects) world.project();
        }
        if (!isKilled) outcome ??= run(Number.POSITIVE_INFINITY);
        world.project();

        const after = world.rows.get(key);
        const manifests = world.log.slice(messages).filter(({ frame }) => frame === FRAMES);
        expect(manifests.length).toBeLessThanOrEqual(1);
        expect(revisions() - revision).toBeLessThanOrEqual(1);
        if (before?.state === 'proved' && !reingest) expect(after).toEqual(before);
        if (outcome === undefined) continue;
        expect(after?.state).toBe('proved');
        const proved = after?.manifest?.document.sha256;
        if (reingest || before?.state !== 'proved') expect(proved).toBe(document);
        expect(outcome === 'refused').toBe(proved !== document);
      }
      const ended = [...world.attempts.values()].flat().map(({ state }) => state);
      expect(ended).not.toContain('quarantined');
      expect(ended).not.toContain('refused');
    }),
    { seed: SEED, numRuns: 2000 },
  );
});
