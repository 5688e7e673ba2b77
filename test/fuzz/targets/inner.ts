/** Formats of our own: frames, manifests, records, the proof log's notes, leaves and tiles, manifests of lakes, files of rows. */
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { decodeMessage, encodeMessage, type FrameHeader } from '../../../shared/frame/codec.ts';
import { differingFacts, type Manifest, parseManifest } from '../../../shared/frame/manifest.ts';
import { encodeRecord, findRecord, RecordAssembler, recordsOf } from '../../../shared/frame/records.ts';
import { MirrorFault, parseFileManifest, parseLakeManifest } from '../../../shared/mirror/lake-manifest.ts';
import { RowFault } from '../../../shared/proof-log/cells.ts';
import { CsvFeed } from '../../../shared/proof-log/csv-feed.ts';
import { decodeLeaf, encodeLeaf, type Leaf, LeafFault } from '../../../shared/proof-log/leaf.ts';
import {
  checkpointText,
  generateSigner,
  keysIn,
  NoteFault,
  openCheckpoint,
  openNote,
  parseRotations,
  parseVerifier,
} from '../../../shared/proof-log/note.ts';
import { RowDigests } from '../../../shared/proof-log/rows.ts';
import { decodeEntries, encodeEntries, parseTilePath, TileFault, tilePath } from '../../../shared/proof-log/tiles.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { rowLayoutOf } from '../../../shared/registry/proof-rows.ts';
import { fileManifest, placeOf, rootManifest } from '../../support/lake-folder.ts';
import { refusal, same, type Target, Wrong } from '../target.ts';

const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest('hex');
const DATASET = 'exchange_a_spot_trades';
const DIGEST = 'ab'.repeat(32);

const refused = (work: () => string, ...classes: Parameters<typeof refusal>[1][]): string => {
  try {
    return work();
  } catch (error) {
    return refusal(error, ...classes);
  }
};

// ---- frames ----------------------------------------------------------------------------------------------------------

const FRAME = {
  kind: 'frame',
  encoding: 'records',
  dataset: DATASET,
  partition: '2024-01-15',
  revision: 1,
  attempt: 1,
  frame: 0,
  document_sha256: DIGEST,
  rows: 2,
  first_offset: '1',
  last_offset: '2',
  first_ms: 0,
  last_ms: 1,
} as const;
const RECORDS = Buffer.concat([
  encodeRecord('1', Buffer.from('one')),
  encodeRecord('2:a', Buffer.from('two'), Buffer.alloc(40, 3)),
]);

/** The CRC is made right: what it hides is what is looked for. */
const sealed = (message: Buffer): Buffer => {
  const copy = Buffer.from(message);
  if (copy.length >= 12) copy.writeUInt32LE(crc32(copy.subarray(12)), 8);
  return copy;
};

async function frameRun(bytes: Buffer): Promise<string> {
  try {
    const { header, raw } = await decodeMessage(bytes, 'a place');
    same('size', raw.length, header.raw_bytes);
    same('digest', sha256(raw), header.raw_sha256);
    if (header.kind === 'frame') new RecordAssembler().take(header, raw);
    return `accepted ${header.kind}`;
  } catch (error) {
    return refusal(error);
  }
}

const MANIFEST: Manifest = {
  format: 1,
  dataset: DATASET,
  partition: '2024-01-15',
  revision: 1,
  attempt: 1,
  frames: 1,
  first_sequence: 1,
  from_ms: 1_705_276_800_000,
  to_ms: 1_705_363_200_000,
  synthetic: false,
  document: { name: 'x.zip', sha256: DIGEST, bytes: 10, granularity: 'daily' },
  ingested_at_ms: 1_705_400_000_000,
  rows: 2,
  first_offset: '1',
  last_offset: '2',
  first_ms: 1_705_276_800_000,
  last_ms: 1_705_276_800_001,
  gaps: 0,
  totals: { price: '17' },
  rows_hash: '-5',
  events_sha256: DIGEST,
  missing_offsets: ['3', '4..5'],
  repeats_dropped: 1,
  record_sha256: DIGEST,
};

const manifestRun = (bytes: Buffer): string =>
  refused(() => {
    const manifest = parseManifest(bytes, 'a place');
    same('differs from itself', differingFacts(manifest, manifest), []);
    differingFacts(manifest, MANIFEST);
    new Date(manifest.from_ms).toISOString();
    new Date(manifest.ingested_at_ms).toISOString();
    return 'accepted';
  });

const recordsRun = (bytes: Buffer): string =>
  refused(() => {
    let count = 0;
    const again: Buffer[] = [];
    for (const { offset, payload, auxiliary } of recordsOf(bytes)) {
      count++;
      const isText = Buffer.from(offset).toString() === offset && !offset.includes('\ufffd');
      if (offset !== '' && Buffer.byteLength(offset) <= 1024 && isText)
        again.push(encodeRecord(offset, payload, auxiliary));
    }
    if (again.length === count && !Buffer.concat(again).equals(bytes)) throw new Wrong('records are not what was read');
    findRecord(bytes, '2:a');
    return `accepted ${Math.min(count, 3)}`;
  });

// ---- the proof log ---------------------------------------------------------------------------------------------------

const signer = generateSigner('log.example/one');
const KEYS = [signer.verifier];
const ROOT_HASH = Buffer.alloc(32, 7);
const CHECKPOINT = checkpointText({ origin: 'log.example/one', size: 12, root: ROOT_HASH });

const noteRun = (bytes: Buffer): string => {
  const text = bytes.toString();
  const outcomes = [
    refused(() => {
      const { size, root, origin } = openCheckpoint(text, KEYS);
      // Only what the key signed can be accepted, and it signed one text.
      same(
        'checkpoint',
        [size, Buffer.from(root).toString('hex'), origin],
        [12, ROOT_HASH.toString('hex'), 'log.example/one'],
      );
      same('text', openNote(text, KEYS).text, CHECKPOINT);
      return 'accepted';
    }, NoteFault),
    refused(() => {
      const verifier = parseVerifier(text);
      same('key', parseVerifier(verifier.line).line, verifier.line);
      return 'accepted';
    }, NoteFault),
    refused(() => `${keysIn(text).length > 0}`, NoteFault),
  ];
  const rotations = parseRotations(text);
  return `${outcomes.join(' | ')} | ${rotations.length > 0}`;
};

const LEAF: Leaf = {
  v: 1,
  kind: 'proved',
  dataset: DATASET,
  partition: '2024-01-15',
  revision: 1,
  attempt: 1,
  synthetic: false,
  document: { name: 'x.zip', sha256: DIGEST },
  rows: 2,
  first_offset: '1',
  last_offset: '2',
  rows_hash: '-5',
  events_sha256: DIGEST,
  rows_sha256: DIGEST,
  at: '2024-01-16T00:00:00.000Z',
  reason: null,
};

const leafRun = (bytes: Buffer): string =>
  refused(() => {
    const leaf = decodeLeaf(bytes);
    if (!encodeLeaf(leaf).equals(bytes)) throw new Wrong('a leaf is not what was read');
    return `accepted ${leaf.kind}`;
  }, LeafFault);

const tilesRun = (bytes: Buffer): string => {
  const outcomes = [1, 3, 256].map((width) =>
    refused(() => {
      const entries = decodeEntries(bytes, width);
      same('entries', entries.length, width);
      if (!encodeEntries(entries).equals(bytes)) throw new Wrong('entries are not what was read');
      return 'accepted';
    }, TileFault),
  );
  const path = bytes.toString('latin1');
  const name = parseTilePath(path);
  if (name && tilePath(name.level, name.index, name.width) !== path) throw new Wrong(`the path ${path}`);
  return `${outcomes.join(' | ')} | ${name !== undefined}`;
};

// ---- lakes and files of rows -----------------------------------------------------------------------------------------

const PLACE = placeOf(DATASET, '2024-01-15');
const CONTENTS = new Map(
  [PLACE, placeOf('macro_series_metrics', '2024')].map((place) => [place, Buffer.from(`rows of ${place}`)]),
);
const ROOT_MANIFEST = rootManifest(CONTENTS, { change: 17 });
const ENTRY = parseLakeManifest(ROOT_MANIFEST).files[0];

const lakeRun = (bytes: Buffer): string => {
  const root = refused(() => {
    const { files, change } = parseLakeManifest(bytes);
    if (!Number.isSafeInteger(change)) throw new Wrong(`change ${change}`);
    for (const { path, manifest } of files)
      if (/\.\.|^\/|\0/.test(path + manifest.path)) throw new Wrong(`a file leads to ${path}`);
    return `accepted ${files.length > 0}`;
  }, MirrorFault);
  const beside = refused(() => {
    parseFileManifest(bytes, ENTRY);
    return 'accepted';
  }, MirrorFault);
  return `${root} | ${beside}`;
};

const layout = rowLayoutOf(datasetOf(DATASET));
const FIELDS = [
  ...new Set([
    ...layout.partitionFields,
    ...layout.columns.flatMap(({ fields }) => fields),
    ...layout.copies.map(({ field }) => field),
  ]),
];
const digests = () => new RowDigests(layout, [{ partition: '2024-01-15', document_sha256: null }]);

/** A row's cells by the names of its fields. */
function csvRow(id: number): string {
  const ms = 1_705_276_800_000 + id;
  const cells = FIELDS.map((name) => {
    if (/datetime/.test(name)) return new Date(ms).toISOString();
    if (/time/.test(name)) return String(ms);
    if (/id$/.test(name)) return String(id);
    if (/^is_/.test(name)) return '1';
    return '42283.58';
  });
  return `${cells.join(',')}\n`;
}
const CSV = Buffer.from(`${FIELDS.join(',')}\n${[1, 2, 3].map(csvRow).join('')}`);

function feed(bytes: Buffer, size: number): string {
  const found = digests();
  return refused(() => {
    const csv = new CsvFeed(layout, found, FIELDS);
    for (let at = 0; at < bytes.length; at += size) csv.push(Buffer.from(bytes.subarray(at, at + size)));
    csv.end();
    return JSON.stringify([found.digests(), found.strays]);
  }, RowFault);
}

function csvRun(bytes: Buffer): string {
  const whole = feed(bytes, bytes.length || 1);
  same('the same file in pieces', feed(bytes, 7), whole);
  return whole.startsWith('[') ? 'accepted' : whole;
}

export async function innerTargets(): Promise<Target[]> {
  const message = await encodeMessage<FrameHeader>(FRAME, RECORDS);
  const parted = await encodeMessage<FrameHeader>({ ...FRAME, part: 1, parts: 2 }, Buffer.alloc(100, 'x'));
  const leaf = encodeLeaf(LEAF);
  const rotation = signer.sign(`${generateSigner('log.example/one').verifier.line}\n`);
  const texts = [
    signer.sign(CHECKPOINT),
    signer.verifier.line,
    rotation,
    signer.sign(`${CHECKPOINT}more\n`).slice(0, 60),
  ];
  const json = ['null', '{}', '[]', '-1', '1e999', '"x"', '8640000000000001'];
  return [
    {
      name: 'frame',
      form: 'bytes',
      seeds: [message, parted],
      words: ['TMK1', '"kind":"withheld"', '"raw_bytes":0', '"parts":1'],
      pack: sealed,
      weight: 6,
      run: frameRun,
    },
    { name: 'frame as it is', form: 'bytes', seeds: [message], weight: 1, run: frameRun },
    {
      name: 'manifest',
      form: 'json',
      seeds: [Buffer.from(JSON.stringify(MANIFEST))],
      words: json,
      weight: 6,
      run: manifestRun,
    },
    { name: 'records', form: 'bytes', seeds: [RECORDS], weight: 6, run: recordsRun },
    {
      name: 'note',
      form: 'text',
      seeds: texts.map((text) => Buffer.from(text)),
      words: ['\n\n', '\u2014 ', 'log.example/one', '+', 'PRIVATE+KEY+'],
      weight: 3,
      run: noteRun,
    },
    {
      name: 'leaf',
      form: 'json',
      seeds: [leaf, encodeLeaf({ ...LEAF, kind: 'restored', document: null, reason: 'why' })],
      words: json,
      weight: 6,
      run: leafRun,
    },
    {
      name: 'tile',
      form: 'bytes',
      seeds: [
        encodeEntries([leaf]),
        encodeEntries([leaf, Buffer.from('x'), Buffer.alloc(0)]),
        ...['tile/0/x001/x234/067', 'tile/entries/000.p/3'].map((path) => Buffer.from(path)),
      ],
      words: ['.p/', 'x', 'tile/', 'entries'],
      weight: 4,
      run: tilesRun,
    },
    {
      name: 'lake manifest',
      form: 'json',
      seeds: [ROOT_MANIFEST, fileManifest(PLACE, CONTENTS.get(PLACE)!)],
      words: [...json, '../', '%2e%2e'],
      weight: 6,
      run: lakeRun,
    },
    {
      name: 'csv feed',
      form: 'lines',
      seeds: [CSV],
      words: ['""', '"', '2024-01-15T00:00:00.001Z'],
      weight: 6,
      run: csvRun,
    },
  ];
}
