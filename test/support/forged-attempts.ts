/** Attempts made by hand, right ones and all kinds of wrong ones: the log's format as documented, without the project's codec. */
import { createHash } from 'node:crypto';
import { crc32, zstdCompressSync } from 'node:zlib';
import { jetstream } from '@nats-io/jetstream';
import { ExchangeADecoder } from '../../pipelines/sources/exchange_a/decode.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { ensureStream } from '../../shared/nats/stream.ts';
import type { Json } from './command.ts';
import { DATASET, DAY_MS } from './pipeline.ts';
import type { TestEnv } from './stack.ts';

const sha256 = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex');

// ---- messages made by hand: the format as documented, without the project's codec -----------------------------------

export interface Message {
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
export interface Attempt {
  frames: Message[];
  manifest: Message;
  facts: Record<string, Json>;
}

export function attemptOf(day: string, csv: string, more: { attempt?: number; revision?: number } = {}): Attempt {
  const { attempt = 1, revision = 1 } = more;
  const fromMs = Date.parse(`${day}T00:00:00Z`);
  const toMs = fromMs + DAY_MS;
  const decoder = new ExchangeADecoder({ document: 'forged', fromMs, toMs, frameRawBytes: 5000 });
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

export type Sealed = Message | { subject: string; bytes: Buffer };

/** Publishes in order. The manifest is filled in last: it names the sequence of the first frame. */
export async function publish(
  { natsOperatorUrl }: Pick<TestEnv, 'natsOperatorUrl'>,
  attempt: Attempt | readonly Sealed[],
): Promise<void> {
  await using connection = await connectNats(natsOperatorUrl, 'forger');
  await ensureStream(connection, DATASET, { maxBytes: 1 << 30 });
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

export function sealed(manifest: Message, facts: object): Message {
  const copy = { ...manifest, header: { ...manifest.header } };
  rewrite(copy, manifest.raw.equals(Buffer.from('{}')) ? Buffer.from(JSON.stringify(facts)) : manifest.raw);
  return copy;
}

// ---- damaged and misleading attempts -------------------------------------------------------------------------------

export interface Case {
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

export const CASES: readonly Case[] = [
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
    // A read with filters leaves out what the frame's times do not hold.
    name: 'a frame that says it ends earlier',
    spoil: frameSays(({ last_ms }) => ({ last_ms: last_ms - 1 })),
    reason: /holds times from .* its header says/,
  },
  {
    name: 'a frame that says it begins later',
    spoil: frameSays(({ first_ms }) => ({ first_ms: first_ms + 1 })),
    reason: /holds times from .* its header says/,
  },
  {
    name: 'a frame that says it begins with an id of the frame before',
    spoil: framesAre(([first, second]) => Object.assign(second.header, { first_offset: first.header.last_offset })),
    reason: /Frame 1 begins at \d+, which does not follow \d+/,
  },
  {
    name: 'a frame of garbage, rightly signed',
    spoil: frameIs(() => Buffer.from('garbage\n'.repeat(100))),
    reason: /not a trade|cannot hold/,
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
  {
    name: 'a manifest with another last id',
    spoil: manifestSays((facts) => ({ last_offset: plusOne(facts.last_offset), gaps: 1 })),
    reason: /^last_offset: expected \d+, found \d+; missing offsets: /,
  },
  { name: 'a manifest with another first time', spoil: manifestSays((facts) => ({ first_ms: facts.first_ms + 1 })), reason: /^first_ms: / }, // biome-ignore format: a case a line
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
  { name: 'a manifest that claims another revision', spoil: manifestSays(() => ({ revision: 2 })), reason: /manifest\.revision/ }, // biome-ignore format: a case a line
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
