/** Answers of a Bitcoin node and the bytes of blocks: what is accepted is held against JSON.parse, and written again. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { readBlocks } from '../../../pipelines/sources/bitcoin/blocks.ts';
import { bitcoin } from '../../../pipelines/sources/bitcoin/feed.ts';
import { mempoolEvents } from '../../../pipelines/sources/bitcoin/mempool.ts';
import type { BitcoinNode } from '../../../pipelines/sources/bitcoin/node.ts';
import { type NodeBlock, readBlockAnswer, readMempoolAnswer } from '../../../pipelines/sources/bitcoin/node-answers.ts';
import { expectedEvents } from '../../../pipelines/sources/bitcoin/rows/expected-events.ts';
import { btcText } from '../../../pipelines/sources/bitcoin/rpc/answers.ts';
import { parseExactly } from '../../../pipelines/sources/bitcoin/rpc/client.ts';
import { JsonCursor } from '../../../pipelines/sources/bitcoin/rpc/json-cursor.ts';
import {
  encodeTransaction,
  input,
  keyOf,
  mine,
  note,
  output,
  payToKeyHash,
  payToWitnessKeyHash,
} from '../../../pipelines/sources/bitcoin/sample/chain.ts';
import { writeAsm } from '../../../pipelines/sources/bitcoin/script/asm.ts';
import { TextWriter } from '../../../pipelines/sources/bitcoin/text-writer.ts';
import {
  readHeader,
  readTransaction,
  type Transaction,
  writeHeader,
} from '../../../pipelines/sources/bitcoin/wire/block.ts';
import { displayHash, WireReader } from '../../../pipelines/sources/bitcoin/wire/bytes.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { encodeRecord } from '../../../shared/frame/records.ts';
import { refusal, same, type Target, Wrong } from '../target.ts';

const SHARED = join(import.meta.dirname, '../../../../shared/data/bitcoin');
const CHAIN = 'regtest';
const fail = (message: string) => new TidemarkError('NODE_ANSWER_INVALID', message, { details: {} });

const key = keyOf('fuzz');
const spending = encodeTransaction({
  version: 2,
  inputs: [
    input(Buffer.alloc(32, 7), 1, { script: Buffer.of(2, 0x51, 0x52), witness: [] }),
    input(Buffer.alloc(32, 9), 0, { witness: [Buffer.alloc(71, 0x30), key.publicKey] }),
  ],
  outputs: [output(90_000, payToKeyHash(key)), output(1, payToWitnessKeyHash(key)), output(0, note('x'))],
  lockTime: 17,
});
const plain = encodeTransaction({
  version: 1,
  inputs: [input(Buffer.alloc(32, 5), 3, { script: Buffer.of(0x51) })],
  outputs: [output(2_100_000_000_000_000, Buffer.of(0x51))],
  lockTime: 0,
});
const block = mine({
  prevHash: Buffer.alloc(32, 1),
  height: 7,
  time: 1_700_000_600,
  reward: 5_000_000_000 + 109_999,
  payTo: payToKeyHash(key),
  transactions: [spending],
});
const HASH = displayHash(block.hash);
const PREVIOUS = displayHash(Buffer.alloc(32, 1));

const hex = (bytes: Buffer) => bytes.toString('hex');
function asm(script: Buffer, role: 'input' | 'output'): string {
  const writer = new TextWriter(1024);
  writeAsm(writer, script, role);
  return writer.take().toString('latin1');
}

/** A transaction as the node writes it, with what its inputs spend. */
function shown({ inputs, outputs, txid, raw }: Transaction, isCoinbase: boolean): object {
  return {
    txid: displayHash(txid),
    version: 2,
    vin: inputs.map(({ prevTxid, prevVout, script, sequence, witness }) =>
      isCoinbase
        ? { coinbase: hex(script), txinwitness: witness.map(hex), sequence }
        : {
            txid: displayHash(prevTxid),
            vout: prevVout,
            scriptSig: { asm: asm(script, 'input'), hex: hex(script) },
            ...(witness.length > 0 && { txinwitness: witness.map(hex) }),
            prevout: {
              generated: false,
              height: 3,
              value: 0.001,
              scriptPubKey: { asm: '', hex: '', type: 'nonstandard' },
            },
            sequence,
          },
    ),
    vout: outputs.map(({ sats, script }, n) => ({
      value: Number(btcText(sats)),
      n,
      scriptPubKey: { asm: asm(script, 'output'), hex: hex(script), type: 'pubkeyhash', address: 'm' },
    })),
    hex: hex(raw),
  };
}

const { header } = block;
const ANSWER = {
  result: {
    hash: HASH,
    confirmations: 1,
    height: 7,
    version: header.version,
    merkleroot: displayHash(header.merkleRoot),
    time: header.time,
    mediantime: header.time,
    nonce: header.nonce,
    bits: header.bits.toString(16),
    difficulty: 4.656542373906925e-10,
    previousblockhash: PREVIOUS,
    size: block.raw.length,
    tx: block.transactions.map((transaction, index) => shown(transaction, index === 0)),
  },
  error: null,
  id: '1',
};

/** As the client reads an answer: what is no JSON is an answer that was cut. */
function read<T>(bytes: Buffer, reader: (cursor: JsonCursor) => T): T {
  const cursor = new JsonCursor(bytes);
  let found: { readonly is: T } | undefined;
  cursor.object();
  while (cursor.member()) {
    if (bytes.toString('latin1', cursor.start, cursor.end) === 'result') found = { is: reader(cursor) };
    else cursor.skip();
  }
  cursor.finish();
  if (!found) throw new SyntaxError('no result');
  return found.is;
}

const U64 = (value: unknown) => (typeof value === 'string' ? Number(value) : value);

/** What JSON.parse finds where the cursor found a block; undefined where its text is no JSON elsewhere. */
function plainly(bytes: Buffer): Record<string, unknown> | undefined {
  try {
    return (parseExactly(bytes) as { result: Record<string, unknown> }).result;
  } catch {
    // The cursor does not look into what it skips.
    return undefined;
  }
}

const writer = new TextWriter(0);

async function blockRun(bytes: Buffer): Promise<string> {
  let found: NodeBlock;
  try {
    found = read(bytes, (cursor) => readBlockAnswer(cursor, writer));
  } catch (error) {
    return refusal(error, SyntaxError);
  }
  const elsewhere = plainly(bytes);
  if (elsewhere && !hasTwins(bytes)) {
    const { hash, height, time, nonce, tx } = elsewhere;
    same('block', [found.hash, found.height, found.time, found.nonce], [hash, ...[height, time, nonce].map(U64)]);
    const list = tx as { txid: string; hex: string; vin: unknown[]; vout: unknown[] }[];
    same(
      'transactions',
      found.transactions.map(({ txid, raw }) => [txid.toLowerCase(), hex(raw)]),
      list.map(({ txid, hex }) => [txid.toLowerCase(), hex.toLowerCase()]),
    );
    same(
      'inputs',
      found.transactions.map(({ inputs, outputs }) => [inputs, outputs]),
      list.map(({ vin, vout }) => [vin.length, vout.length]),
    );
  }
  const node = {
    block: async () => found,
    header: async (asked: string) => (asked === HASH ? writeHeader(header) : previousHeader),
  } as unknown as BitcoinNode;
  try {
    for await (const checked of readBlocks(node, { chain: CHAIN, from: 7, to: 7, hashes: [HASH], lookahead: 1 })) {
      for (const { dataset, offset, payload, auxiliary } of expectedEvents(checked, CHAIN)) {
        const projection = bitcoin.projections[dataset];
        const rows = projection.createRows({ key: '7', fromMs: -8.64e15, toMs: 8.64e15 });
        same('rows', rows.rows(encodeRecord(offset, payload, auxiliary), 1).rows, 1);
      }
    }
    return 'accepted';
  } catch (error) {
    return refusal(error);
  }
}
/** Only its time is read, and its hash would have to be mined: the check of the link is another test's. */
const previousHeader = writeHeader({ ...header, time: header.time - 600 });

/** Whether an object has a member twice, of which JSON.parse takes the last one. */
const hasTwins = (bytes: Buffer): boolean => {
  try {
    return (
      JSON.stringify(JSON.parse(bytes.toString())).length < bytes.length / 2 ||
      countOf(bytes) !== countOf(Buffer.from(JSON.stringify(JSON.parse(bytes.toString()))))
    );
  } catch {
    return true;
  }
};
const countOf = (bytes: Buffer) => bytes.reduce((count, byte) => count + (byte === 0x22 ? 1 : 0), 0);

function mempoolRun(bytes: Buffer): string {
  try {
    const { entries } = read(bytes, readMempoolAnswer);
    const elsewhere = plainly(bytes) as Record<string, { vsize: unknown; time: unknown }> | undefined;
    if (elsewhere && !hasTwins(bytes)) {
      const sorted = Object.keys(elsewhere).sort();
      same(
        'ids',
        entries.map(({ txid }) => txid),
        sorted,
      );
      same(
        'sizes',
        entries.map(({ vsize, firstSeen }) => [vsize, firstSeen]),
        sorted.map((id) => [U64(elsewhere[id].vsize), U64(elsewhere[id].time)]),
      );
    }
    const snapshot = {
      takenAtMs: 1_700_000_000_000,
      chain: CHAIN,
      entries,
      document: { name: 'x', sha256: '', bytes: 1 },
    };
    const rows = bitcoin.projections.bitcoin_mempool_state.createRows({
      key: '1700000000000',
      fromMs: 0,
      toMs: 8.64e15,
    });
    for (const { offset, payload } of mempoolEvents(snapshot)) rows.rows(encodeRecord(offset, payload), 1);
    return `accepted ${entries.length > 0}`;
  } catch (error) {
    return refusal(error, SyntaxError);
  }
}

/** A block as the wire has it; what is read is what is written again. */
function wireRun(bytes: Buffer): string {
  const reader = new WireReader(bytes, fail);
  try {
    const found = readHeader(reader);
    if (!writeHeader(found).equals(bytes.subarray(0, 80))) throw new Wrong('a header is not what was read');
    const count = reader.count(60);
    for (let index = 0; index < count; index++) {
      const from = reader.at;
      const transaction = readTransaction(reader);
      const again = encodeTransaction(transaction);
      if (!transaction.raw.equals(bytes.subarray(from, reader.at))) throw new Wrong('the raw bytes of a transaction');
      if (!again.raw.equals(transaction.raw)) throw new Wrong('a transaction is not what was read');
      if (!again.txid.equals(transaction.txid) || !again.wtxid.equals(transaction.wtxid)) throw new Wrong('an id');
    }
    return `accepted ${count > 0}, ${reader.left > 0}`;
  } catch (error) {
    return refusal(error);
  }
}

function realAnswers(): Buffer[] {
  const folder = join(SHARED, 'rpc-getblock-verbosity2');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .filter((name) => name.includes('getblock_'))
    .map((name) => readFileSync(join(folder, name)))
    .map((bytes) => (bytes.includes('"result"') ? bytes : Buffer.from(`{"result":${bytes},"error":null,"id":1}`)))
    .filter(({ length }) => length < 32_768);
}

const entry = {
  fees: { base: 0.00001, modified: 0.00001 },
  vsize: 141,
  time: 1_700_000_000,
  'bip125-replaceable': false,
  depends: [],
};
const MEMPOOL = [{}, Object.fromEntries([1, 2, 3].map((id) => [String(id).repeat(64), entry]))];

export const bitcoinTargets = (): Target[] => {
  const answers = [Buffer.from(JSON.stringify(ANSWER)), ...realAnswers()];
  const words = [
    '"result":',
    '"prevout":',
    '"hex":""',
    '"coinbase":"00"',
    'null',
    '1e-8',
    '0.00000001',
    '\\u0000',
    '\ud800',
  ];
  return [
    { name: 'getblock', form: 'json', seeds: answers, words, weight: 8, run: blockRun },
    {
      name: 'getrawmempool',
      form: 'json',
      seeds: MEMPOOL.map((result) => Buffer.from(JSON.stringify({ result, error: null, id: '1' }))),
      words,
      weight: 6,
      run: mempoolRun,
    },
    {
      name: 'block bytes',
      form: 'bytes',
      seeds: [
        block.raw,
        Buffer.concat([block.raw.subarray(0, 80), Buffer.of(1), plain.raw]),
        block.raw.subarray(0, 81),
      ],
      words: ['\0\x01', '\xfd\xfd\0', '\xfe\0\0\x01\0', '\xff\xff\xff\xff\xff\xff\xff\xff\xff'],
      weight: 8,
      run: wireRun,
    },
  ];
};
