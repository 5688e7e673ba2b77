/** The formats of the proof log against other implementations: notes and keys, tile paths, proofs, and numbers of CSV. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { CsvFeed, decimalOf } from '../../shared/proof-log/csv-feed.ts';
import { commitTo, decodeLeaf, encodeLeaf, type Leaf, LeafFault, MAX_LEAF_BYTES } from '../../shared/proof-log/leaf.ts';
import {
  consistencyProof,
  GrowingTree,
  type Hash,
  type HashAt,
  inclusionProof,
  leafHash,
  treeRoot,
  verifyConsistency,
} from '../../shared/proof-log/merkle.ts';
import {
  checkpointText,
  generateSigner,
  NoteFault,
  openCheckpoint,
  openNote,
  parseCheckpoint,
  parseSigner,
  parseVerifier,
  type Signer,
  signCheckpoint,
} from '../../shared/proof-log/note.ts';
import {
  followRotations,
  keysFrom,
  keysIn,
  parseRotations,
  rotationNote,
  trustedKeys,
} from '../../shared/proof-log/rotations.ts';
import { RowDigests } from '../../shared/proof-log/rows.ts';
import { signManifest, verifyManifest } from '../../shared/proof-log/signed-manifest.ts';
import { decodeEntries, encodeEntries, parseTilePath, tilePath, widthIn } from '../../shared/proof-log/tiles.ts';
import { checkTlogProof } from '../../shared/proof-log/tlog-proof.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { rowLayoutOf } from '../../shared/registry/proof-rows.ts';
import madeNotes from '../vectors/proof-log-notes.json' with { type: 'json' };
import vectors from '../vectors/proof-log-tree.json' with { type: 'json' };

// The example of golang.org/x/mod/sumdb/note.
const SECRET = 'PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz';
const KEY = 'PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW';
const TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
const NOTE = `${TEXT}
— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
`;

test('a note is signed as another implementation signs it, byte for byte', () => {
  const signer = parseSigner(SECRET);
  expect(signer.verifier.line).toBe(KEY);
  expect(signer.sign(TEXT)).toBe(NOTE);
  expect(openNote(NOTE, [parseVerifier(KEY)]).text).toBe(TEXT);
});

test('a note with a signature of a witness beside the log’s opens; with a changed text, key or signature it does not', () => {
  const verifier = parseVerifier(KEY);
  const witness = generateSigner('witness.example/one')
    .sign(TEXT)
    .slice(TEXT.length + 1);
  expect(openNote(NOTE + witness, [verifier]).text).toBe(TEXT);
  expect(() => openNote(NOTE.replace('answer', 'question'), [verifier])).toThrow('does not belong to the text');
  expect(() => openNote(NOTE, [generateSigner('AliceLiddell').verifier])).toThrow('did not sign the note');
  // An honest export of before a key was rotated was only called unsigned.
  expect(() => openNote(NOTE, [generateSigner('PeterNeumann').verifier])).toThrow(
    /^PeterNeumann\+c74f20a3 signed the note, another key of the log than PeterNeumann\+[0-9a-f]{8}: where the key was rotated/,
  );
  expect(() => openNote(TEXT, [verifier])).toThrow('an empty line');
  expect(() => openNote(NOTE.replace('x08g', 'x08h'), [verifier])).toThrow();
  expect(() => parseVerifier(KEY.replace('c74f20a3', 'c74f20a4'))).toThrow('has the hash c74f20a3');
  expect(() => parseSigner(SECRET.replace('AYEK', 'AYEL'))).toThrow('does not have the hash');
  expect(() => generateSigner('two words')).toThrow('neither spaces nor plus signs');
});

test('a checkpoint is of the log that its key names; further lines are room for others', () => {
  const signer = generateSigner('log.example/one');
  const root = Buffer.alloc(32, 7);
  const text = checkpointText({ origin: 'log.example/one', size: 12, root });
  expect(text).toBe(`log.example/one\n12\n${root.toString('base64')}\n`);
  expect(openCheckpoint(signer.sign(`${text}an extension\n`), [signer.verifier])).toMatchObject({ size: 12 });
  expect(() => openCheckpoint(signer.sign(text.replace('/one', '/two')), [signer.verifier])).toThrow('is of the log');
  for (const bad of ['', 'o\n-1\nx\n', `o\n01\n${root.toString('base64')}\n`, 'o\n1\nAAAA\n']) {
    expect(() => parseCheckpoint(bad)).toThrow('three lines');
  }
});

test('the time of a checkpoint is a cosignature of its own key, as another implementation makes it', () => {
  // The formula of c2sp.org/tlog-cosignature, written out.
  const signer = generateSigner('log.example/one');
  const head = { origin: 'log.example/one', size: 12, root: Buffer.alloc(32, 7) };
  const note = signCheckpoint(head, [signer], 1_700_000_000);
  const [first, second] = note.split('\n\n')[1].split('\n');
  expect(first).toBe(signer.signature(checkpointText(head)).trimEnd());
  const bytes = Buffer.from(second.split(' ')[2], 'base64');
  const key = Buffer.from(signer.verifier.line.split('+').slice(2).join('+'), 'base64').subarray(1);
  const id = createHash('sha256').update('log.example/one\n').update(Buffer.of(4)).update(key).digest().subarray(0, 4);
  expect(bytes.subarray(0, 4)).toEqual(id);
  expect(bytes.readBigUInt64BE(4)).toBe(1_700_000_000n);
  const message = `cosignature/v1\ntime 1700000000\n${checkpointText(head)}`;
  expect(signer.verifier.verifies(message, bytes.subarray(12))).toBe(true);
  expect(openCheckpoint(note, [signer.verifier]).signedAt).toBe(1_700_000_000);
  // Another time under the same signature.
  bytes.writeBigUInt64BE(1_800_000_000n, 4);
  const later = note.replace(second, `\u2014 log.example/one ${bytes.toString('base64')}`);
  expect(() => openCheckpoint(later, [signer.verifier])).toThrow('the time that log.example/one states is not signed');
});

describe('a key that is rotated', () => {
  const [first, second, third, other] = [1, 2, 3, 4].map(() => generateSigner('log'));
  const to = (from: Signer, next: Signer, size: number) =>
    rotationNote(from, { next: next.verifier, size, untilMs: Date.parse('2026-01-08') });
  const rotations = [to(first, second, 10), to(second, third, 20)];
  const keys = keysFrom(first.verifier, rotations);
  const names = new Map([first, second, third].map((one, at) => [one.verifier.line, ['first', 'second', 'third'][at]]));
  const opened = (size: number, ...by: Signer[]) => {
    const note = signCheckpoint({ origin: 'log', size, root: Buffer.alloc(32, 1) }, by, 1);
    return names.get(openCheckpoint(note, keys).by.line);
  };

  test('is a note of four lines, which the key before signs', () => {
    expect(rotations[0].split('\n\n')[0]).toBe(
      `log key rotation\n${second.verifier.line}\n10\n2026-01-08T00:00:00.000Z`,
    );
    expect(keys.map(({ from, to }) => [from, to])).toEqual([
      [undefined, 10],
      [10, 20],
      [20, undefined],
    ]);
    expect(keysIn(`${first.verifier.line}\n${rotations.join('')}`).map(({ line }) => line)).toEqual([...names.keys()]);
  });

  test('signs trees up to its last one, and the next key the larger ones, whoever signs beside it', () => {
    expect([opened(10, first), opened(10, second), opened(11, second), opened(20, third)]).toEqual([
      'first',
      'second',
      'second',
      'third',
    ]);
    expect([opened(11, second, first), opened(11, first, second), opened(21, first, second, third)]).toEqual([
      'second',
      'second',
      'third',
    ]);
    const [one, two, three] = [first, second, third].map(({ verifier }) => `log\\+${verifier.line.split('+')[1]}`);
    for (const [size, by, says] of [
      [
        11,
        [first],
        `^the checkpoint of 11 leaves is signed with ${one}, .* at most 10 leaves: above them only ${two} counts$`,
      ],
      [21, [first], `^the checkpoint of 21 leaves is signed with ${one}, .* at most 10 leaves`],
      [
        21,
        [second],
        `^the checkpoint of 21 leaves is signed with ${two}, .* at most 20 leaves: above them only ${three}`,
      ],
      [21, [second, first], `^the checkpoint of 21 leaves is signed with ${two}`],
      [9, [second], `^the checkpoint of 9 leaves is signed with ${two}, which signs trees from 10 leaves on$`],
    ] as const) {
      expect(() => opened(size, ...by), `${size} ${says}`).toThrow(new RegExp(says));
    }
  });

  test('is followed through its rotations, and through no others', () => {
    followRotations(first.verifier, third.verifier, rotations);
    followRotations(second.verifier, third.verifier, rotations);
    const lead = (notes: readonly string[]) => () => followRotations(first.verifier, third.verifier, notes);
    expect(lead(rotations.slice(1))).toThrow('no rotation leads');
    expect(lead([to(third, second, 5)])).toThrow('no rotation leads');
    expect(lead([first.sign(`${third.verifier.line}\n`)])).toThrow('no rotation leads');
    expect(lead([...rotations, to(third, first, 30)])).toThrow('leads back');
    expect(lead([rotations[0], to(second, third, 9)])).toThrow('leads back');
  });

  test('is rotated once: a second note of it is refused, wherever it stands and whatever it says', () => {
    for (const forged of [to(first, other, 10), to(first, other, 30), to(first, second, 11), to(second, other, 20)]) {
      for (const notes of [
        [forged, ...rotations],
        [...rotations, forged],
      ])
        expect(() => keysFrom(first.verifier, notes)).toThrow(
          /^the key log\+[0-9a-f]{8} was rotated twice, to .* and to /,
        );
    }
    expect(keysFrom(first.verifier, [...rotations, ...rotations])).toHaveLength(3);
  });

  test('is its own log’s where the log still names it, and never that of one that no rotation links', () => {
    const lines = (list: readonly { readonly line: string }[]) => list.map(({ line }) => names.get(line));
    expect(lines(trustedKeys(second.verifier, first.verifier, rotations))).toEqual(['second', 'third']);
    expect(lines(trustedKeys(first.verifier, second.verifier, rotations))).toEqual(['first', 'second', 'third']);
    expect(() => trustedKeys(other.verifier, first.verifier, rotations)).toThrow('no rotation leads');
  });

  test('signs no manifest of a larger tree', () => {
    const checkpoint = signCheckpoint({ origin: 'log', size: 11, root: Buffer.alloc(32, 1) }, [second], 1);
    const signed = (facts: object, by: Signer) => verifyManifest(signManifest(facts, by), keys).line;
    const early = checkpoint.replace('\n11\n', '\n10\n');
    expect(names.get(signed({ proof_log: { checkpoint: early } }, first))).toBe('first');
    expect(names.get(signed({ proof_log: { checkpoint: early } }, third))).toBe('third');
    const ofLake = [{ change: 11 }, { change: 11, checkpoint: early }, { change: 10, checkpoint }];
    for (const facts of [{ proof_log: { checkpoint } }, { proof_log: { checkpoint: null } }, ...ofLake, {}])
      expect(() => signed(facts, first)).toThrow(/^the manifest is signed with log\+[0-9a-f]{8}, which was rotated/);
    expect(names.get(signed({ change: 10, checkpoint: null }, first))).toBe('first');
    expect(names.get(signed({ change: 10, checkpoint: early }, first))).toBe('first');
  });
});

test('tiles have the paths of the format', () => {
  expect(tilePath(0, 1_234_067)).toBe('tile/0/x001/x234/067');
  expect(tilePath('entries', 7, 112)).toBe('tile/entries/007.p/112');
  expect(parseTilePath('tile/1/x273/000.p/112')).toEqual({ level: 1, index: 273_000, width: 112 });
  for (const bad of [
    'tile/0/67',
    'tile/0/x000/001',
    'tile/0/001.p/0',
    'tile/0/001.p/256',
    'tile/0/../001',
    'x',
    'tile/00/001',
  ]) {
    expect([bad, parseTilePath(bad)]).toEqual([bad, undefined]);
  }
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 2 ** 40 }), fc.integer({ min: 1, max: 256 }), (index, width) => {
      expect(parseTilePath(tilePath(3, index, width))).toEqual({ level: 3, index, width });
    }),
  );
  expect([widthIn(0, 273, 70_000), widthIn(1, 1, 70_000), widthIn(2, 0, 70_000)]).toEqual([112, 17, 1]);
});

test('entries come back from their tile, and a tile with fewer or more bytes is refused', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 300 }), { minLength: 1, maxLength: 20 }), (entries) => {
      const bytes = encodeEntries(entries);
      expect(decodeEntries(bytes, entries.length).map((entry) => [...entry])).toEqual(
        entries.map((entry) => [...entry]),
      );
      expect(() => decodeEntries(bytes.subarray(0, -1), entries.length)).toThrow('ends in entry');
      expect(() => decodeEntries(Buffer.concat([bytes, Buffer.of(0)]), entries.length)).toThrow('goes on after');
    }),
  );
});

test('roots and proofs are those of another implementation, over 70,000 leaves', async () => {
  const size = 70_000;
  const hashes = new Map<string, Hash>();
  const tree = new GrowingTree();
  for (let index = 0; index < size; index++) {
    tree.add(leafHash(Buffer.from(`entry ${index}`)), (level, at, hash) => hashes.set(`${level}/${at}`, hash));
  }
  const at: HashAt = async (level, index) => hashes.get(`${level}/${index}`)!;
  const base64 = (hash: Hash) => Buffer.from(hash).toString('base64');
  for (const [n, root] of Object.entries(vectors.roots)) expect(base64(await treeRoot(Number(n), at))).toBe(root);
  for (const [index, proof] of Object.entries(vectors.inclusion)) {
    expect((await inclusionProof(Number(index), size, at)).map(base64)).toEqual(proof);
  }
  for (const [old, proof] of Object.entries(vectors.consistency)) {
    const found = await consistencyProof(Number(old), size, at);
    expect(found.map(base64)).toEqual(proof);
    const before = { size: Number(old), root: await treeRoot(Number(old), at) };
    expect(verifyConsistency(before, { size, root: tree.root }, found)).toBe(true);
  }
});

describe('notes and proofs of another implementation, which the Python client opens and refuses alike', () => {
  test.each(madeNotes.notes)('a checkpoint $name', ({ key, note, refused, signed_at: signedAt }) => {
    const [line, ...rotations] = key.split('\n');
    const open = () => openCheckpoint(note, keysFrom(parseVerifier(line), parseRotations(rotations.join('\n'))));
    if (refused) expect(open).toThrow(NoteFault);
    else expect(open().signedAt ?? null).toBe(signedAt);
  });

  test.each(madeNotes.proofs)('a tlog-proof: $name', async ({ proof, leaf, accepted }) => {
    const { ok } = await checkTlogProof(proof, [parseVerifier(madeNotes.log)], async () => Buffer.from(leaf));
    expect(ok).toBe(accepted);
  });
});

const SALT = Buffer.alloc(32, 1);
const FACTS = {
  document_sha256: 'ab'.repeat(32),
  offsets: '1 3',
  rows_hash: '-1',
  events_sha256: 'cd'.repeat(32),
  rows_sha256: 'ef'.repeat(32),
};
const leaf: Leaf = {
  v: 2,
  kind: 'proved',
  dataset: 'exchange_a_spot_trades',
  partition: '2024-01-01',
  revision: 1,
  attempt: 1,
  synthetic: false,
  document: 'a.zip',
  rows: 3,
  ...commitTo(SALT, FACTS),
  facts_commitment: null,
  at: '2024-01-02T00:00:00.000Z',
  reason: null,
};

test('a leaf never has more than a kilobyte, whatever its document and its reason are called', () => {
  fc.assert(
    fc.property(
      fc.string({ unit: 'binary', maxLength: 400 }),
      fc.string({ unit: 'binary', maxLength: 400 }),
      (name, reason) => {
        const bytes = encodeLeaf({ ...leaf, document: name, reason });
        expect(bytes.length).toBeLessThanOrEqual(MAX_LEAF_BYTES);
        expect(decodeLeaf(bytes)).toMatchObject({ rows_commitment: leaf.rows_commitment, kind: 'proved' });
      },
    ),
  );
  // What is proved keeps its words.
  const longest = encodeLeaf({ ...leaf, document: 'd'.repeat(120), facts_commitment: leaf.rows_commitment });
  expect(decodeLeaf(longest).document).toHaveLength(120);
});

test('other bytes of the same leaf are refused: nobody can have two hashes for one statement', () => {
  const text = encodeLeaf(leaf).toString();
  for (const other of [
    text.replace('{', '{ '),
    text.replace('"v":2', '"v":2.0'),
    `${text}\n`,
    text.replace('"kind":"proved"', '"kind":"lost"'),
  ]) {
    expect(() => decodeLeaf(Buffer.from(other))).toThrow();
  }
});

test('a leaf whose members have other types is refused as a leaf, not by whoever reads it', () => {
  const members = JSON.parse(encodeLeaf(leaf).toString());
  for (const name of Object.keys(members)) {
    for (const value of [{}, [], 5, 'x', true, null]) {
      const bytes = Buffer.from(JSON.stringify({ ...members, [name]: value }));
      const isLeaf =
        value === null ||
        (name !== 'v' && typeof value === (typeof members[name] === 'object' ? 'string' : typeof members[name]));
      if (isLeaf) continue;
      expect(() => decodeLeaf(bytes), `${name}: ${JSON.stringify(value)}`).toThrow(LeafFault);
    }
  }
  for (const [name, value] of [
    ['document', 5],
    ['facts_commitment', {}],
    ['reason', 5],
    ['at', null],
    ['synthetic', null],
  ] as const) {
    expect(() => decodeLeaf(Buffer.from(JSON.stringify({ ...members, [name]: value }))), name).toThrow(LeafFault);
  }
});

test('numbers of CSV are read as JavaScript reads them', () => {
  const read = (text: string) => decimalOf(Buffer.from(text), 0, text.length);
  fc.assert(
    fc.property(
      fc.oneof(
        fc.double({ noNaN: true, noDefaultInfinity: true }),
        fc.maxSafeInteger(),
        fc.float({ noNaN: true, noDefaultInfinity: true }),
      ),
      (value) => {
        expect(read(String(value))).toBe(Number(String(value)));
      },
    ),
    { numRuns: 5000 },
  );
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 10 ** 9 }), fc.integer({ min: 0, max: 10 ** 8 - 1 }), (whole, part) => {
      const text = `${whole}.${String(part).padStart(8, '0')}`;
      expect(read(text)).toBe(Number(text));
    }),
    { numRuns: 5000 },
  );
  for (const bad of ['', 'x', '1x', '--1', '1.2.3', '-', '.', '-.', '0x10', ' 16', '1e', 'Infinity'])
    expect(() => read(bad)).toThrow('is not a number');
});

describe('a cell of CSV that is changed to another value', () => {
  const HEADER = 'trade_id,timestamp,price,quantity,quote_quantity,is_buyer_maker,datetime,is_best_match';
  const DAY = '2024-01-01';
  const layout = rowLayoutOf(datasetOf('exchange_a_spot_trades'));
  const line = (id: number, ms: number, price: number) =>
    [id, ms, price, 0.5, price / 2, id % 2, new Date(ms).toISOString(), 1].map(String);

  function digestOf(rows: readonly (readonly string[])[], pieces = 1): string | null {
    const digests = new RowDigests(layout, [{ partition: DAY, document_sha256: null }]);
    const feed = new CsvFeed(layout, digests, HEADER.split(','));
    const bytes = Buffer.from(`${HEADER}\n${rows.map((cells) => `${cells.join(',')}\n`).join('')}`);
    const size = Math.ceil(bytes.length / pieces);
    for (let at = 0; at < bytes.length; at += size) feed.push(bytes.subarray(at, at + size));
    feed.end();
    return digests.digests()[0]?.sha256 ?? null;
  }
  const made = fc
    .array(fc.tuple(fc.integer({ min: 0, max: 86_399_999 }), fc.double({ min: 0.01, max: 1e6, noNaN: true })), {
      minLength: 1,
      maxLength: 20,
    })
    .map((list) =>
      list
        .map(([ms], at) => ms + at)
        .sort((a, b) => a - b)
        .map((ms, at) => line(at + 1, Date.parse(DAY) + Math.min(ms, 86_399_999), list[at][1])),
    );
  /** Texts that a careless reader takes for the value before. */
  const twisted = (text: string): string[] => [
    `${text}5`,
    `1${text}`,
    `${text} `,
    `-${text}`,
    `${text}.5`,
    '',
    '2',
    'x',
    `${text}e1`,
    text.replace('Z', 'z'),
    text.replace('T', ' '),
  ];

  test('the example by hand of docs/proof-log.md has its digest', () => {
    const [, digest] = /With header and end: `([0-9a-f]{64})`/.exec(readFileSync('docs/proof-log.md', 'utf8'))!;
    const cells = ['1', '1704067200000', '40000.5', '0.25', '10000.125', '1', '2024-01-01T00:00:00.000Z', '0'];
    expect(digestOf([cells])).toBe(digest);
  });

  test('changes the digest of its partition, or is refused', () => {
    fc.assert(
      fc.property(made, fc.nat(), fc.nat(7), fc.nat(10), (rows, at, column, how) => {
        const before = digestOf(rows);
        const row = at % rows.length;
        const text = twisted(rows[row][column])[how];
        // A date or a number that reads the same is the same value.
        if (text === rows[row][column] || (column !== 6 && text !== '' && Number(text) === Number(rows[row][column])))
          return;
        const changed = rows.map((cells, index) => (index === row ? cells.with(column, text) : cells));
        let after: string | null | undefined;
        try {
          after = digestOf(changed);
        } catch {
          return;
        }
        expect([text, after]).not.toEqual([text, before]);
      }),
      { numRuns: 2000 },
    );
  });

  test('is no matter of where the file is cut into pieces', () => {
    fc.assert(
      fc.property(made, fc.integer({ min: 1, max: 50 }), (rows, pieces) => {
        expect(digestOf(rows, pieces)).toBe(digestOf(rows));
      }),
    );
  });

  test('a row with a cell more or less is refused with its line, quoted or not', () => {
    const rows = [line(1, Date.parse(DAY), 1), line(2, Date.parse(DAY) + 1, 1), line(3, Date.parse(DAY) + 2, 1)];
    for (const at of [0, 2]) {
      const [short, long] = [rows[at].slice(0, -1), [...rows[at], '1']];
      for (const cells of [short, long, short.with(0, `"${at + 1}"`), long.with(0, `"${at + 1}"`)]) {
        expect(() => digestOf(rows.with(at, cells))).toThrow(
          `line ${at + 2}: ${cells.length} cells, and 8 in the header`,
        );
      }
    }
    expect(() => digestOf(rows.with(2, rows[2].with(0, '"3"5')))).toThrow(
      'line 4: cell 1 goes on after its closing quote',
    );
  });

  test('a fault of a last row without its end was another one where the file was cut before it', () => {
    for (const [row, said] of [
      ['1,""1', 'line 2: cell 2 goes on after its closing quote'],
      ['1,"1', 'the file ends within line 2'],
    ]) {
      const bytes = Buffer.from(`${HEADER}\n${row}`);
      for (let size = 1; size <= bytes.length; size++) {
        const feed = new CsvFeed(layout, new RowDigests(layout, []), HEADER.split(','));
        const read = () => {
          for (let at = 0; at < bytes.length; at += size) feed.push(bytes.subarray(at, at + size));
          feed.end();
        };
        expect(read, `pieces of ${size}`).toThrow(said);
      }
    }
  });

  test('a row that never ends is not kept in memory', () => {
    const feed = new CsvFeed(layout, new RowDigests(layout, []), HEADER.split(','));
    feed.push(Buffer.from(`${HEADER}\n1,`));
    const piece = Buffer.alloc(1 << 20, '3');
    for (let at = 1; at < 64; at++) feed.push(piece);
    expect(() => feed.push(piece)).toThrow('line 2: the row has more than 67108864 bytes');
  });

  test('a header that is not the one of the manifest is refused', () => {
    const headed = (header: string, fields = HEADER.split(',')) => {
      const digests = new RowDigests(layout, [{ partition: DAY, document_sha256: null }]);
      return () => new CsvFeed(layout, digests, fields).push(Buffer.from(`${header}\n`));
    };
    expect(headed(HEADER)).not.toThrow();
    expect(headed(HEADER.replace('trade_id,timestamp', 'timestamp,trade_id'))).toThrow(
      'column 1 is timestamp, and trade_id in the manifest',
    );
    expect(headed(`${HEADER},price`)).toThrow('column 9 is price, and none in the manifest');
    expect(headed(HEADER.replace(',is_best_match', ''))).toThrow('column is_best_match of the manifest is missing');
    expect(headed(`${HEADER},price`, `${HEADER},price`.split(','))).toThrow('two columns are called price');
  });

  test('a time that is another instant, or not of its form, is refused with its line', () => {
    const rows = [line(1, Date.parse(DAY), 1), line(2, Date.parse(DAY) + 1, 1), line(3, Date.parse(DAY) + 2, 1)];
    for (const text of [
      '2024-01-01T00:00:00.003Z',
      '2024-01-02T00:00:00.002Z',
      '2024-01-01 00:00:00.002Z',
      '2024-01-01T00:00:00.00xZ',
      '2024-01-01T00:00:00.0/<Z',
      '2024-01-00T24:00:00.002Z',
      String(Date.parse(DAY) + 2),
      '',
    ]) {
      expect(() => digestOf(rows.with(2, rows[2].with(6, text)))).toThrow(
        'line 4: datetime is not the value of timestamp',
      );
    }
  });
});
