/** A log that is not as a publisher leaves it: damaged, misleading, rewound, full. Found, named, and no more than that day's harm. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { crc32, zstdCompressSync } from 'node:zlib';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { TradeFileDecoder } from '../pipelines/sources/exchange_a/decode.ts';
import { connect } from '../shared/db/connect.ts';
import { PUBLISHER_LOCK } from '../shared/db/locks.ts';
import { connectNats } from '../shared/nats/connect.ts';
import { ensureStream } from '../shared/nats/stream.ts';
import {
  compareNative,
  csvOf,
  DATASET,
  DAY_MS,
  dayNames,
  documentPath,
  type Json,
  System,
  startCli,
  writeDocument,
} from './support/pipeline.ts';
import { temporaryDir } from './support/stack.ts';

const ROWS = 200;
const sha256 = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex');

// ---- messages made by hand: the format as documented, without the project's codec -----------------------------------

interface Message {
  subject: string;
  header: Record<string, Json>;
  raw: Buffer;
}

function pack({ header, raw }: Message): Buffer {
  const head = Buffer.from(JSON.stringify(header));
  const rest = Buffer.concat([head, zstdCompressSync(raw)]);
  const prefix = Buffer.alloc(12);
  prefix.write('TMK1', 0, 'latin1');
  prefix.writeUInt32LE(head.length, 4);
  prefix.writeUInt32LE(crc32(rest), 8);
  return Buffer.concat([prefix, rest]);
}

/** The messages of one attempt, as a publisher would send them; `spoil` changes them before they are packed. */
interface Attempt {
  frames: Message[];
  manifest: Message;
  facts: Record<string, Json>;
}

function attemptOf(day: string, csv: string, more: { attempt?: number; revision?: number } = {}): Attempt {
  const { attempt = 1, revision = 1 } = more;
  const fromMs = Date.parse(`${day}T00:00:00Z`);
  const toMs = fromMs + DAY_MS;
  const decoder = new TradeFileDecoder({ document: 'forged', fromMs, toMs, frameRawBytes: 5000 });
  const items = [...decoder.push(Buffer.from(csv)), ...decoder.finish()];
  const common = { version: 1, dataset: DATASET, partition: day, revision, attempt, document_sha256: sha256(csv) };
  const message = (frame: number, header: object, raw: Buffer): Message => ({
    subject: `${DATASET}.${day}.${attempt}.${frame}`,
    header: { ...common, frame, raw_bytes: raw.length, raw_sha256: sha256(raw), ...header },
    raw,
  });
  const frames: Message[] = [];
  let facts: Record<string, Json> = {};
  for (const item of items) {
    if (item.kind === 'events') {
      const { partition: _partition, raw, ...header } = item;
      frames.push(message(frames.length, { ...header, kind: 'frame', encoding: 'lines' }, raw));
    } else {
      facts = {
        format: 1,
        ...common,
        frames: frames.length,
        first_sequence: 0,
        from_ms: fromMs,
        to_ms: toMs,
        synthetic: false,
        ...item.facts,
        document: { name: 'forged.zip', sha256: sha256(csv), bytes: csv.length, granularity: 'daily' },
        ingested_at_ms: Date.now(),
      };
    }
  }
  return { frames, facts, manifest: message(frames.length, { kind: 'manifest' }, Buffer.from('{}')) };
}

/** Changes a frame's bytes, keeping its header true to them. */
function rewrite(message: Message, raw: Buffer, more: object = {}): void {
  message.raw = raw;
  Object.assign(message.header, { raw_bytes: raw.length, raw_sha256: sha256(raw), ...more });
}

type Sealed = Message | { subject: string; bytes: Buffer };

/** Publishes in order. The manifest is filled in last: it names the sequence of the first frame. */
async function publish(natsUrl: string, attempt: Attempt | readonly Sealed[]): Promise<void> {
  await using connection = await connectNats(natsUrl, 'forger');
  await ensureStream(connection, DATASET, 1 << 30);
  const client = jetstream(connection);
  const send = async (message: Sealed) =>
    (await client.publish(message.subject, 'bytes' in message ? message.bytes : pack(message))).seq;
  if (!('facts' in attempt)) {
    for (const message of attempt) await send(message);
    return;
  }
  const sequences: number[] = [];
  for (const message of attempt.frames) sequences.push(await send(message));
  const { facts, manifest } = attempt;
  await send(sealed(manifest, { ...facts, first_sequence: facts.first_sequence || (sequences[0] ?? 1) }));
}

function sealed(manifest: Message, facts: object): Message {
  const copy = { ...manifest, header: { ...manifest.header } };
  rewrite(copy, manifest.raw.equals(Buffer.from('{}')) ? Buffer.from(JSON.stringify(facts)) : manifest.raw);
  return copy;
}

// ---- damaged and misleading attempts -------------------------------------------------------------------------------

interface Case {
  readonly name: string;
  /** Changes the attempt in place, or gives what is published instead. */
  readonly spoil: (attempt: Attempt) => readonly Sealed[] | undefined;
  /** What the quarantine says; null: the attempt has no readable manifest, so nothing but silence. */
  readonly reason: RegExp | null;
}

/** Changes in place; the attempt is then published as it is. */
const changed = (change: (attempt: Attempt) => void) => (attempt: Attempt) => {
  change(attempt);
  return undefined;
};
const framesAre = (change: (frames: Message[]) => unknown) => changed(({ frames }) => void change(frames));
const frameIs = (bytes: (frame: Message) => Buffer) => changed(({ frames }) => rewrite(frames[1], bytes(frames[1])));
const frameSays = (change: (header: Record<string, Json>) => object) =>
  changed(({ frames }) => void Object.assign(frames[1].header, change(frames[1].header)));
const manifestSays = (change: (facts: Record<string, Json>) => object) =>
  changed(({ facts }) => void Object.assign(facts, change(facts)));
const manifestIs = (text: string) =>
  changed(({ manifest }) => void Object.assign(manifest, { raw: Buffer.from(text) }));
const plusOne = (text: string) => String(BigInt(text) + 1n);
const lines = (message: Message) => message.raw.toString().split('\n').slice(0, -1);
const flip = (message: Message, byte: number): Sealed => {
  const bytes = pack(message);
  bytes[byte < 0 ? bytes.length + byte : byte] ^= 0x10;
  return { subject: message.subject, bytes };
};

const CASES: readonly Case[] = [
  {
    name: 'a frame whose digest is wrong',
    spoil: frameSays(() => ({ raw_sha256: 'ab'.repeat(32) })),
    reason: /digest/,
  },
  {
    name: 'a frame whose bytes were changed, header and all',
    spoil: frameIs((frame) => Buffer.from(frame.raw.toString().replace(/,4(\d)/, (_, digit) => `,3${digit}`))),
    reason: /rows_hash: expected -?\d+, found -?\d+/,
  },
  { name: 'a frame that is missing in the middle', spoil: framesAre((frames) => frames.splice(1, 1)), reason: /frame 2 follows frame 0/ }, // biome-ignore format: a case a line
  { name: 'a first frame that is missing', spoil: framesAre((frames) => frames.splice(0, 1)), reason: /first frame is missing/ }, // biome-ignore format: a case a line
  {
    name: 'a last frame that is missing',
    spoil: framesAre((frames) => frames.pop()),
    reason: /frame 3 follows frame 1/,
  },
  { name: 'all frames missing', spoil: framesAre((frames) => frames.splice(0)), reason: /first frame is missing/ },
  { name: 'frames in another order', spoil: framesAre((frames) => frames.reverse()), reason: /first frame is missing/ },
  {
    name: 'a frame that comes twice',
    spoil: framesAre((frames) => frames.splice(1, 0, { ...frames[0], subject: `${frames[0].subject}9` })),
    reason: /frame 0 follows frame 0/,
  },
  {
    name: 'a frame that says it holds more rows',
    spoil: frameSays(({ rows }) => ({ rows: rows + 1 })),
    reason: /trade|hold/,
  },
  {
    name: 'a frame that says it holds fewer rows',
    spoil: frameSays(({ rows }) => ({ rows: rows - 1 })),
    reason: /trade/,
  },
  { name: 'a frame that says it holds a billion rows', spoil: frameSays(() => ({ rows: 1e9 })), reason: /1000000000/ }, // biome-ignore format: a case a line
  {
    name: 'a frame of garbage, rightly signed',
    spoil: frameIs(() => Buffer.from('garbage\n'.repeat(100))),
    reason: /no trade|does not hold/,
  },
  {
    name: 'a frame of another day',
    spoil: frameIs((frame) => Buffer.from(frame.raw.toString().replaceAll(/,17(\d{11}),/g, ',16$1,'))),
    reason: /outside its partition/,
  },
  {
    name: 'a row that comes twice',
    spoil: frameIs((frame) => {
      const all = lines(frame);
      all[3] = all[2];
      return Buffer.from(`${all.join('\n')}\n`);
    }),
    reason: /rows repeat/,
  },
  {
    name: 'a price that the totals cannot hold',
    spoil: frameIs((frame) => Buffer.from(frame.raw.toString().replace(/^(\d+),[\d.]+,/, '$1,1e300,'))),
    reason: /refuses the rows.*out of range/,
  },
  {
    name: 'a message damaged in its header',
    spoil: ({ frames, manifest, facts }) => [frames[0], flip(frames[1], 40), frames[2], sealed(manifest, facts)],
    reason: /CRC/,
  },
  {
    name: 'a message damaged in its body',
    spoil: ({ frames, manifest, facts }) => [frames[0], flip(frames[1], -40), frames[2], sealed(manifest, facts)],
    reason: /CRC/,
  },
  {
    name: 'a first message that is no message',
    spoil: ({ frames, manifest, facts }) => [
      { subject: frames[0].subject, bytes: Buffer.from('nonsense') },
      ...frames.slice(1),
      sealed(manifest, facts),
    ],
    reason: /first frame is missing/,
  },
  { name: 'a message of an unknown version', spoil: frameSays(() => ({ version: 9 })), reason: /version 9/ }, // biome-ignore format: a case a line
  {
    name: 'a body over all limits',
    spoil: frameSays(() => ({ raw_bytes: 1 << 30 })),
    reason: /claims/,
  },
  { name: 'a manifest that counts a row more', spoil: manifestSays((facts) => ({ rows: facts.rows + 1 })), reason: /rows: expected 201, found 200/ }, // biome-ignore format: a case a line
  {
    name: 'a manifest with another total',
    spoil: manifestSays(({ totals }) => ({ totals: { ...totals, price: plusOne(totals.price) } })),
    reason: /totals\.price: expected \d+, found \d+$/,
  },
  {
    name: 'a manifest with another row hash',
    spoil: manifestSays((facts) => ({ rows_hash: plusOne(facts.rows_hash) })),
    reason: /^rows_hash: /,
  },
  {
    name: 'a manifest with another first id',
    spoil: manifestSays((facts) => ({ first_offset: plusOne(facts.first_offset) })),
    reason: /first_offset: /,
  },
  { name: 'a manifest with another last time', spoil: manifestSays((facts) => ({ last_ms: facts.last_ms - 1 })), reason: /^last_ms: / }, // biome-ignore format: a case a line
  {
    name: 'a manifest that admits a gap',
    spoil: manifestSays(() => ({ gaps: 1 })),
    reason: /^gaps: expected 1, found 0/,
  },
  {
    name: 'a manifest that claims a longer window',
    spoil: manifestSays((facts) => ({ from_ms: facts.from_ms - 30 * DAY_MS, to_ms: facts.to_ms + 30 * DAY_MS })),
    reason: /manifest\.from_ms.*manifest\.to_ms/,
  },
  { name: 'a manifest that claims another day', spoil: manifestSays(() => ({ partition: '2001-01-01' })), reason: /manifest\.partition/ }, // biome-ignore format: a case a line
  { name: 'a manifest that claims another place', spoil: manifestSays(() => ({ first_sequence: 1 })), reason: /manifest\.first_sequence/ }, // biome-ignore format: a case a line
  {
    name: 'a manifest that claims another attempt',
    spoil: manifestSays(() => ({ attempt: 7 })),
    reason: /manifest\.attempt/,
  },
  { name: 'a manifest of fewer frames', spoil: manifestSays(() => ({ frames: 2 })), reason: /frames/ },
  {
    name: 'a manifest that is not JSON',
    spoil: manifestIs('{"format":1,'),
    reason: null,
  },
  { name: 'a manifest that lacks facts', spoil: manifestIs('{"format":1}'), reason: null }, // biome-ignore format: a case a line
  {
    name: 'a manifest that is damaged',
    spoil: ({ frames, manifest, facts }) => [...frames, flip(sealed(manifest, facts), 60)],
    reason: null,
  },
  { name: 'frames without a manifest', spoil: ({ frames }) => frames, reason: null },
  {
    name: 'messages of no attempt at all',
    spoil: () => [
      { subject: `${DATASET}.x`, bytes: Buffer.from('nonsense') },
      { subject: `${DATASET}.2024-01-01.x.y`, bytes: Buffer.alloc(0) },
    ],
    reason: null,
  },
];

const DAYS = dayNames('2024-08-01', CASES.length + 3);
const csvOfDay = (index: number) =>
  csvOf({ day: DAYS[index], rows: ROWS, seed: 8, firstId: 1 + index * ROWS, timeUnit: 'ms' });

describe('a log of damaged and misleading attempts', () => {
  let system: System;
  let quarantined: Map<string, Json>;
  const good = DAYS.at(-1)!;
  const [left, right] = DAYS.slice(-3);

  beforeAll(async () => {
    system = await System.create();
    for (const [index, { spoil }] of CASES.entries()) {
      const attempt = attemptOf(DAYS[index], csvOfDay(index));
      expect(attempt.frames.length).toBe(3);
      const instead = spoil(attempt);
      await publish(system.env.natsUrl, instead ?? attempt);
    }
    // Two attempts among each other.
    const [a, b] = [left, right].map((day, index) => attemptOf(day, csvOfDay(CASES.length + index)));
    await publish(system.env.natsUrl, [
      a.frames[0],
      b.frames[0],
      a.frames[1],
      b.frames[1],
      a.frames[2],
      sealed(a.manifest, { ...a.facts, first_sequence: 1 }),
      b.frames[2],
      sealed(b.manifest, { ...b.facts, first_sequence: 2 }),
    ]);
    await writeDocument(system.vendor, good, csvOfDay(DAYS.length - 1));
    const answer = await system.backfill(good, good);
    expect([answer.exit, answer.json?.units]).toEqual([0, [{ partition: good, state: 'proved', rows: ROWS }]]);
    const rows = await system.rows(`select * from partitions where state = 'quarantined'`);
    quarantined = new Map(rows.map((row) => [row.partition_key, row]));
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test.each(CASES.filter(({ reason }) => reason !== null).map((each) => [each.name, each] as const))(
    '%s: quarantined, naming the fact',
    async (_name, each) => {
      const day = DAYS[CASES.indexOf(each)];
      expect(quarantined.get(day)).toMatchObject({ attempt: 1, reason: expect.stringMatching(each.reason!) });
      const window = [Date.parse(`${day}T00:00:00Z`), Date.parse(`${day}T00:00:00Z`) + DAY_MS];
      expect([Number(quarantined.get(day).from_ms), Number(quarantined.get(day).to_ms)]).toEqual(window);
      const [ledger] = await system.rows('select kind, reason from ledger where partition_key = $1', [day]);
      expect(ledger).toMatchObject({ kind: 'quarantined', reason: expect.stringMatching(each.reason!) });
      const [attempt] = await system.rows('select state from attempts where partition_key = $1', [day]);
      expect(attempt).toEqual({ state: 'quarantined' });
    },
  );

  test('two attempts among each other: neither is proved', () => {
    expect(quarantined.get(left)?.reason).toMatch(/first frame is missing|follows/);
    expect(quarantined.get(right)?.reason).toMatch(/first frame is missing|follows/);
  });

  test('serves nothing but the good day', async () => {
    const readable = CASES.filter(({ reason }) => reason !== null).length + 2;
    expect([...quarantined.keys()]).toHaveLength(readable);
    const [counts] = await system.rows(
      `select (select count(*) from ${DATASET}) as native, (select sum(trade_count) from canonical_aligned_1s_aggregates) as aligned,
        (select count(distinct partition_key) from frames) as frames, (select proved::text from coverage where dataset_id = 1) as proved`,
    );
    const from = Date.parse(`${good}T00:00:00Z`);
    expect(counts).toEqual({
      native: String(ROWS),
      aligned: String(ROWS),
      frames: '1',
      proved: `{[${from},${from + DAY_MS})}`,
    });
    const { json, exit } = await system.run(['status', DATASET]);
    expect(exit).toBe(1);
    expect(json.datasets[0].partitions).toMatchObject({ proved: 1, quarantined: readable });
    expect(json.datasets[0].log.lag_messages).toBe(0);
    expect(await system.leftovers()).toEqual([]);
  });

  test('is read from its checkpoint again and again without another word', async () => {
    const ledger = await system.rows('select count(*)::int4 as n from ledger');
    expect((await system.backfill(good, good)).exit).toBe(0);
    expect(await system.rows('select count(*)::int4 as n from ledger')).toEqual(ledger);
  });

  test('holds a quarantined day back until it is re-ingested from the vendor', async () => {
    const [day] = DAYS;
    await writeDocument(system.vendor, day, csvOfDay(0));
    const refused = await system.backfill(day, day);
    expect([refused.exit, refused.json.units[0].code]).toEqual([1, 'PARTITION_PROOF_FAILED']);
    expect(refused.json.units[0].reason).toContain('digest');
    const again = await system.reingest(day, day, 'the frame was damaged');
    expect([again.exit, again.json.units[0].state]).toEqual([0, 'proved']);
    const [row] = await system.rows(
      'select state, attempt, revision, reason from partitions where partition_key = $1',
      [day],
    );
    expect(row).toEqual({ state: 'proved', attempt: 2, revision: 2, reason: null });
  });

  test('has a day whose attempt got no manifest proved by the next one', async () => {
    const at = CASES.findIndex(({ name }) => name === 'frames without a manifest');
    await writeDocument(system.vendor, DAYS[at], csvOfDay(at));
    // That attempt is not in the catalog: to the publisher its subjects are taken, by itself as it were.
    const { exit, json } = await system.backfill(DAYS[at], DAYS[at]);
    expect([exit, json.units[0].state]).toEqual([0, 'proved']);
  });
});

describe('an attempt for a day that is proved', () => {
  test('is passed over: in silence with the same content, on record with other', async () => {
    await using system = await System.create();
    const [day, next, after] = dayNames('2024-08-01', 3);
    const csv = csvOf({ day, rows: ROWS, seed: 8, firstId: 1, timeUnit: 'ms' });
    await writeDocument(system.vendor, day, csv);
    await writeDocument(system.vendor, next, csvOf({ day: next, rows: ROWS, seed: 8, firstId: 201, timeUnit: 'ms' }));
    expect((await system.backfill(day, day)).exit).toBe(0);
    const before = await system.digests();
    await publish(system.env.natsUrl, attemptOf(day, csv, { attempt: 2 }));
    const other = csvOf({ day, rows: ROWS + 1, seed: 9, firstId: 1, timeUnit: 'ms' });
    await publish(system.env.natsUrl, attemptOf(day, other, { attempt: 3 }));
    expect((await system.backfill(next, next)).exit).toBe(0);
    expect((await system.digests())[day]).toEqual(before[day]);
    expect(await system.rows('select attempt, state from attempts where partition_key = $1 order by 1', [day])).toEqual(
      [
        { attempt: 1, state: 'proved' },
        { attempt: 2, state: 'refused' },
        { attempt: 3, state: 'refused' },
      ],
    );
    const ledger = await system.rows('select kind, reason, details from ledger');
    expect(ledger).toMatchObject([{ kind: 'late_arrival_refused', details: { attempt: 3 } }]);
    expect(ledger[0].reason).toContain('rows_hash');
    expect((await system.status()).late_arrivals).toHaveLength(1);

    // A revision that fails its proof leaves the proved one as it is.
    const revision = attemptOf(day, other, { attempt: 4, revision: 2 });
    revision.facts.rows_hash = '17';
    await publish(system.env.natsUrl, revision);
    const third = csvOf({ day: after, rows: ROWS, seed: 8, firstId: 401, timeUnit: 'ms' });
    await writeDocument(system.vendor, after, third);
    const last = await system.backfill(day, after);
    expect([last.exit, last.json.unchanged, last.json.proved]).toEqual([0, 2, 1]);
    expect((await system.digests())[day]).toEqual(before[day]);
    const [quarantine] = await system.rows(`select reason from ledger where kind = 'quarantined'`);
    expect(quarantine.reason).toMatch(/^rows_hash: expected 17/);
  });

  test('whose events are not what its manifest says is found by verify --deep', async () => {
    await using system = await System.create();
    const [day, next] = dayNames('2024-08-01', 2);
    const forged = attemptOf(day, csvOf({ day, rows: ROWS, seed: 8, firstId: 1, timeUnit: 'ms' }));
    forged.facts.events_sha256 = 'cd'.repeat(32);
    await publish(system.env.natsUrl, forged);
    await writeDocument(system.vendor, next, csvOf({ day: next, rows: ROWS, seed: 8, firstId: 201, timeUnit: 'ms' }));
    expect((await system.backfill(next, next)).exit).toBe(0);
    const { exit, json } = await system.run(['verify', DATASET, '--deep']);
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([
      { partition: day, state: 'quarantined', reason: expect.stringMatching(/^events_sha256: expected cdcd/) },
      { partition: next, state: 'proved' },
    ]);
  });
});

// ---- the stream itself ---------------------------------------------------------------------------------------------

describe('a stream that is not the one that was projected', () => {
  const days = dayNames('2024-09-01', 3);
  const csv = (index: number) =>
    csvOf({ day: days[index], rows: ROWS, seed: 4, firstId: 1 + index * ROWS, timeUnit: 'ms' });

  test('made anew: refused at once, nothing is published to it, what is served stays', async () => {
    await using system = await System.create();
    for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
    expect((await system.backfill(days[0], days[1])).exit).toBe(0);
    const digests = await system.digests();
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    const manager = await jetstreamManager(operator);
    // The account that ingests cannot do this.
    await using ours = await connectNats(system.env.natsUrl, 'test');
    const mine = await jetstreamManager(ours, { timeout: 1000 });
    await expect(mine.streams.delete(DATASET)).rejects.toThrow();
    await expect(mine.streams.purge(DATASET)).rejects.toThrow();
    await expect(mine.streams.deleteMessage(DATASET, 1)).rejects.toThrow();
    await manager.streams.delete(DATASET);

    const startedAt = performance.now();
    const { exit, json } = await system.backfill(days[2], days[2]);
    expect([exit, json.error?.code ?? json.units?.[0].code]).toEqual([1, 'LOG_REWOUND']);
    expect(performance.now() - startedAt).toBeLessThan(20_000);
    expect(await system.log()).toEqual([]);
    expect(await system.digests()).toEqual(digests);
    expect((await system.traces(days[2])).state).toBe(null);
  });

  test.each([
    ['that ends before the checkpoint', 'set stream_sequence = stream_sequence + 5', 'it ends at sequence'],
    ['that holds another message there', `set message_sha256 = repeat('ab', 32)`, 'holds another message'],
    ['made at another time', `set stream_created = stream_created - interval '1 s'`, 'it was made'],
  ])('%s: refused', async (_name, change, reason) => {
    await using system = await System.create();
    for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
    expect((await system.backfill(days[0], days[0])).exit).toBe(0);
    const messages = (await system.log()).length;
    await system.rows(`update checkpoints ${change}`);
    const { exit, json } = await system.backfill(days[1], days[1]);
    expect([exit, json.error?.code]).toEqual([1, 'LOG_REWOUND']);
    expect(json.error.message).toContain(reason);
    expect((await system.log()).length).toBe(messages);
  });

  test('that lost its tail on disk: refused; the day is there all the same', async () => {
    // The embedded stack of a state folder: at rest between two commands, so that its files can be put back.
    const dir = await temporaryDir();
    try {
      const vendor = join(dir, 'vendor');
      for (const [index, day] of days.entries()) await writeDocument(vendor, day, csv(index));
      const env = {
        SVC_STATE_DIR: join(dir, 'state'),
        SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${vendor}/`).href,
        SVC_STREAM_MAX_BYTES: String(1 << 26),
      };
      const run = async (...args: string[]) => await startCli(args, env).done;
      const backfill = (day: string) => run('backfill', DATASET, '--from', day, '--to', day);
      expect((await backfill(days[0])).exit).toBe(0);
      const servers = join(env.SVC_STATE_DIR, 'servers');
      const store = join(servers, (await readdir(servers)).find((name) => name.startsWith('nats'))!);
      // `cp -a` keeps the owner, who may be another user.
      execFileSync('cp', ['-a', store, join(dir, 'copy')]);
      expect((await backfill(days[1])).exit).toBe(0);
      await rm(store, { recursive: true });
      execFileSync('cp', ['-a', join(dir, 'copy'), store]);
      const { exit, json } = await backfill(days[2]);
      expect([exit, json.error?.code]).toEqual([1, 'LOG_REWOUND']);
      expect(json.error.message).toContain('it ends at sequence');
      const status = await run('status', DATASET);
      expect(status.json.datasets[0].partitions.proved).toBe(2);
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  });

  test('with other settings than the immutable log has: refused, not repaired', async () => {
    await using system = await System.create();
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    const manager = await jetstreamManager(operator);
    await manager.streams.add({ name: DATASET, subjects: [`${DATASET}.>`], max_bytes: 1 << 26 });
    await writeDocument(system.vendor, days[0], csv(0));
    const { exit, json } = await system.backfill(days[0], days[0], { SVC_STREAM_MAX_BYTES: String(1 << 26) });
    expect([exit, json.error?.code]).toEqual([1, 'LOG_STREAM_MISCONFIGURED']);
    for (const name of ['discard', 'deny_delete', 'deny_purge']) expect(json.error.message).toContain(name);
  });
});

describe('a stream that is full', () => {
  const days = dayNames('2024-09-01', 3);
  test.each([
    ['in the environment', (bytes: number) => [{ SVC_STREAM_MAX_BYTES: String(bytes) }, []] as const],
    ['as a flag', (bytes: number) => [{}, ['--stream-max-bytes', String(bytes)]] as const],
  ])(
    'stops the publisher with its own code; with more room, given %s, the same attempt goes on',
    async (_name, room) => {
      await using system = await System.create();
      const csv: string[] = [];
      for (const [index, day] of days.entries()) {
        const text = csvOf({ day, rows: 25_000, seed: 4, firstId: 1 + index * 25_000, timeUnit: 'us' });
        await writeDocument(system.vendor, day, text);
        csv.push(join(system.env.dir, `${day}.csv`));
        await writeFile(csv[index], text);
      }
      const run = ([env, flags]: readonly [Record<string, string> | object, readonly string[]]) =>
        system.backfill(days[0], days[2], { SVC_FRAME_RAW_BYTES: '50000', SVC_PUBLISH_WINDOW: '4', ...env }, flags);
      const { exit, json } = await run(room(1 << 20));
      expect(exit).toBe(1);
      const units = json.units.toSorted((a: Json, b: Json) => a.partition.localeCompare(b.partition));
      const full = units.findIndex((unit: Json) => unit.code === 'LOG_FULL');
      expect(full).toBeGreaterThan(0);
      // The days behind it are not tried: the attempt must stay the log's last.
      expect(units.map((unit: Json) => unit.state)).toEqual(
        days.map((_, index) => (index < full ? 'proved' : 'failed')),
      );
      expect(units.slice(full).map((unit: Json) => unit.code)).toEqual(days.slice(full).map(() => 'LOG_FULL'));
      expect(units[full].remedy).toContain('SVC_STREAM_MAX_BYTES');
      expect(await system.rows('select state, attempt from attempts where partition_key = $1', [days[full]])).toEqual([
        { state: 'publishing', attempt: 1 },
      ]);
      expect(await system.traces(days[full])).toMatchObject({ native: 0, aligned: 0, covered: 0, manifests: 0 });
      const messages = (await system.log()).length;

      const again = await run(room(1 << 24));
      expect([again.exit, again.json.proved, again.json.unchanged]).toEqual([0, days.length - full, full]);
      expect(await system.rows('select partition_key, attempt, state from attempts order by 1')).toEqual(
        days.map((day) => ({ partition_key: day, attempt: 1, state: 'proved' })),
      );
      const log = await system.log();
      expect(log.length).toBeGreaterThan(messages);
      expect(new Set(log.map(({ subject }) => subject)).size).toBe(log.length);
      expect(await compareNative(system, csv, system.env.dir)).toEqual([75_000, 75_000, 0, 0]);
      expect((await system.status()).log).toMatchObject({ max_bytes: 1 << 24, unreferenced_messages: 0 });
    },
  );
});

describe('the publisher lease', () => {
  test('held by another names its holder; the day is proved when it is free again', async () => {
    await using system = await System.create();
    const [day] = dayNames('2024-09-01', 1);
    await writeDocument(system.vendor, day, csvOf({ day, rows: ROWS, seed: 4, firstId: 1, timeUnit: 'ms' }));
    {
      await using holder = await connect({ url: system.env.databaseUrl, name: 'somebody else, pid 17' });
      await holder.query('select pg_advisory_lock($1, 1)', [PUBLISHER_LOCK]);
      const { exit, json } = await system.backfill(day, day);
      expect([exit, json.error.code]).toEqual([1, 'PUBLISHER_LEASE_HELD']);
      expect(json.error.message).toContain('somebody else, pid 17');
      expect(await system.log()).toEqual([]);
    }
    expect((await system.backfill(day, day)).exit).toBe(0);
  });

  test('lets one of two commands publish at a time, and neither does harm', async () => {
    await using system = await System.create();
    const days = dayNames('2024-09-01', 4);
    const csv: string[] = [];
    for (const [index, day] of days.entries()) {
      const text = csvOf({ day, rows: 20_000, seed: 4, firstId: 1 + index * 20_000, timeUnit: 'ms' });
      await writeDocument(system.vendor, day, text);
      csv.push(join(system.env.dir, `${day}.csv`));
      await writeFile(csv[index], text);
    }
    const answers = await Promise.all([system.backfill(days[0], days[3]), system.backfill(days[0], days[3])]);
    const codes = answers.map(({ exit, json }) => (exit === 0 ? 'done' : json.error?.code));
    expect(codes).toContain('done');
    expect(codes.every((code) => code === 'done' || code === 'PUBLISHER_LEASE_HELD')).toBe(true);
    expect(await compareNative(system, csv, system.env.dir)).toEqual([80_000, 80_000, 0, 0]);
    expect((await system.log()).filter(({ manifest }) => manifest)).toHaveLength(4);
  });
});

test('the documents are where the tests say they are', () => {
  expect(documentPath('2024-09-01')).toBe('spot/daily/trades/BTCUSDT/BTCUSDT-trades-2024-09-01.zip');
  expect(documentPath('2024-09')).toBe('spot/monthly/trades/BTCUSDT/BTCUSDT-trades-2024-09.zip');
});
