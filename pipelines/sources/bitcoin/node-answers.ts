/** Reads the large answers of a node in one pass: `getblock` with the prevouts of all inputs, and `getrawmempool`. */
import { TidemarkError } from '../../../shared/errors.ts';
import { type RpcColumns, type RpcInput, type RpcOutput, RpcTransaction } from './rows/rpc-columns.ts';
import { unfit } from './rpc/answers.ts';
import {
  enterList,
  enterObject,
  flagAt,
  hexAt,
  hexTextAt,
  integerAt,
  type JsonCursor,
  JsonKeys,
  plainTextAt,
  satsAt,
} from './rpc/json-cursor.ts';
import type { TextWriter } from './text-writer.ts';

/** A block as the node states it: hashes in the node's notation, amounts in satoshis. */
export interface NodeBlock {
  readonly hash: string;
  readonly height: number;
  readonly version: number;
  readonly prevHash: string;
  readonly merkleRoot: string;
  /** Epoch seconds. */
  readonly time: number;
  /** Median time of this block and the ten before it. */
  readonly medianTime: number;
  readonly bits: string;
  readonly nonce: number;
  readonly bytes: number;
  readonly transactions: readonly NodeTransaction[];
}

export interface NodeTransaction {
  readonly txid: string;
  readonly raw: Buffer;
  readonly coinbase: boolean;
  readonly inputs: number;
  readonly outputs: number;
  /** What each input spends; empty for a coinbase. */
  readonly spent: readonly number[];
  readonly sums: { readonly input: number; readonly output: number };
  readonly columns: RpcColumns;
}

const U32 = 2 ** 32 - 1;
const HASH_BYTES = 32;

/** In each table of names, the code below relies on the order. */
const BLOCK = new JsonKeys([
  'hash',
  'height',
  'version',
  'merkleroot',
  'time',
  'mediantime',
  'nonce',
  'bits',
  'previousblockhash',
  'size',
  'tx',
]);
const TX = new JsonKeys(['txid', 'hex', 'vin', 'vout']);
const VIN = new JsonKeys(['txid', 'vout', 'scriptSig', 'txinwitness', 'prevout', 'sequence', 'coinbase']);
const VOUT = new JsonKeys(['value', 'n', 'scriptPubKey']);
const SCRIPT = new JsonKeys(['asm', 'hex', 'type', 'address']);
const PREVOUT = new JsonKeys(['value']);

/**
 * The transactions' bytes and columns are written to `writer`, which is cleared first. They are valid until `writer` is
 * used again.
 */
export function readBlockAnswer(cursor: JsonCursor, writer: TextWriter): NodeBlock {
  return new BlockAnswer(cursor, writer).read();
}

class BlockAnswer {
  readonly #cursor: JsonCursor;
  readonly #parsed: RpcTransaction;
  readonly #writer: TextWriter;

  constructor(cursor: JsonCursor, writer: TextWriter) {
    this.#cursor = cursor;
    this.#parsed = new RpcTransaction(cursor.bytes);
    this.#writer = writer;
    // The extracted texts are normally shorter than the answer. Reserved memory costs nothing until it is written.
    writer.clear(cursor.bytes.length);
  }

  read(): NodeBlock {
    const cursor = this.#cursor;
    const texts: (string | undefined)[] = [];
    const numbers: (number | undefined)[] = [];
    let transactions: NodeTransaction[] | undefined;
    enterObject(cursor, 'getblock');
    while (cursor.member()) {
      const place = BLOCK.placeOf(cursor.bytes, cursor.start, cursor.end);
      switch (place) {
        case 0:
          texts[place] = hexTextAt(cursor, 'hash', HASH_BYTES);
          break;
        case 1:
          numbers[place] = integerAt(cursor, 'height');
          break;
        case 2:
          numbers[place] = integerAt(cursor, 'version', -(2 ** 31), 2 ** 31 - 1);
          break;
        case 3:
          texts[place] = hexTextAt(cursor, 'merkleroot', HASH_BYTES);
          break;
        case 4:
          numbers[place] = integerAt(cursor, 'time', 0, U32);
          break;
        case 5:
          numbers[place] = integerAt(cursor, 'mediantime', 0, U32);
          break;
        case 6:
          numbers[place] = integerAt(cursor, 'nonce', 0, U32);
          break;
        case 7:
          texts[place] = hexTextAt(cursor, 'bits', 4);
          break;
        case 8:
          texts[place] = hexTextAt(cursor, 'previousblockhash', HASH_BYTES);
          break;
        case 9:
          numbers[place] = integerAt(cursor, 'size', 81);
          break;
        case 10:
          transactions = this.#transactions();
          break;
        default:
          cursor.skip();
      }
    }
    const given = <T>(value: T | undefined, where: string): T => {
      if (value === undefined) throw unfit(where, 'a value', undefined);
      return value;
    };
    return {
      hash: given(texts[0], 'hash'),
      height: given(numbers[1], 'height'),
      version: given(numbers[2], 'version'),
      // The genesis block has none.
      prevHash: texts[8] ?? '',
      merkleRoot: given(texts[3], 'merkleroot'),
      time: given(numbers[4], 'time'),
      medianTime: given(numbers[5], 'mediantime'),
      bits: given(texts[7], 'bits'),
      nonce: given(numbers[6], 'nonce'),
      bytes: given(numbers[9], 'size'),
      transactions: given(transactions, 'tx'),
    };
  }

  #transactions(): NodeTransaction[] {
    const transactions: NodeTransaction[] = [];
    enterList(this.#cursor, 'tx');
    while (this.#cursor.item()) transactions.push(this.#transaction());
    return transactions;
  }

  #transaction(): NodeTransaction {
    const cursor = this.#cursor;
    const parsed = this.#parsed;
    parsed.clear();
    let txid: string | undefined;
    let raw: Buffer | undefined;
    let isWhole = 0;
    enterObject(cursor, 'tx');
    while (cursor.member()) {
      switch (TX.placeOf(cursor.bytes, cursor.start, cursor.end)) {
        case 0:
          txid = hexTextAt(cursor, 'tx.txid', HASH_BYTES);
          break;
        case 1:
          raw = this.#rawBytes();
          break;
        case 2:
          enterList(cursor, 'tx.vin');
          while (cursor.item()) this.#input(parsed.addInput());
          isWhole |= 1;
          break;
        case 3:
          enterList(cursor, 'tx.vout');
          while (cursor.item()) this.#output(parsed.addOutput());
          isWhole |= 2;
          break;
        default:
          cursor.skip();
      }
    }
    if (txid === undefined) throw unfit('tx.txid', 'a hash', undefined);
    if (raw === undefined) throw unfit('tx.hex', 'hex', undefined);
    if (isWhole !== 3) throw unfit('tx.vin or tx.vout', 'a list', undefined);
    const spent = parsed.spent();
    let input = 0;
    for (const sats of spent) input += sats;
    const sums = { input, output: parsed.paid() };
    return {
      txid,
      raw,
      coinbase: parsed.isCoinbase(),
      inputs: parsed.inputCount,
      outputs: parsed.outputCount,
      spent,
      sums,
      columns: parsed.columns(this.#writer, sums),
    };
  }

  #rawBytes(): Buffer {
    const cursor = this.#cursor;
    if (!cursor.isString) throw unfit('tx.hex', 'hex', undefined);
    cursor.longString();
    const { bytes, start, end } = cursor;
    if (!this.#writer.bytesOfHex(bytes.toString('latin1', start, end))) {
      throw unfit('tx.hex', 'hex', bytes.toString('latin1', start, Math.min(end, start + 80)));
    }
    return this.#writer.take();
  }

  #input(input: RpcInput): void {
    const cursor = this.#cursor;
    const { witnessItems } = this.#parsed;
    input.isCoinbase = false;
    input.witnessFrom = witnessItems.length;
    let seen = 0;
    enterObject(cursor, 'tx.vin');
    while (cursor.member()) {
      const place = VIN.placeOf(cursor.bytes, cursor.start, cursor.end);
      switch (place) {
        case 0:
          hexAt(cursor, 'tx.vin.txid', HASH_BYTES);
          mark(input.prevTxid, cursor);
          break;
        case 1:
          input.prevVout = integerAt(cursor, 'tx.vin.vout', 0, U32);
          break;
        case 2:
          this.#scriptSig(input);
          break;
        case 3:
          enterList(cursor, 'tx.vin.txinwitness');
          while (cursor.item()) {
            hexAt(cursor, 'tx.vin.txinwitness');
            witnessItems.push(cursor.start, cursor.end);
          }
          break;
        case 4:
          this.#prevout(input);
          break;
        case 5:
          input.sequence = integerAt(cursor, 'tx.vin.sequence', 0, U32);
          break;
        case 6:
          hexAt(cursor, 'tx.vin.coinbase');
          mark(input.coinbase, cursor);
          input.isCoinbase = true;
          break;
        default:
          cursor.skip();
          continue;
      }
      seen |= 1 << place;
    }
    input.witnessTo = witnessItems.length;
    if ((seen & HAS.sequence) === 0) throw unfit('tx.vin.sequence', 'a whole number', undefined);
    if (input.isCoinbase) return;
    if ((seen & HAS.prevout) === 0) {
      throw new TidemarkError(
        'NODE_UNDO_MISSING',
        'The Bitcoin node does not state what inputs spend: it lacks the undo data of this block, so its fees are unknown',
      );
    }
    if ((seen & HAS.spending) !== HAS.spending)
      throw unfit('tx.vin', 'an input with txid, vout and scriptSig', undefined);
  }

  #scriptSig(input: RpcInput): void {
    const cursor = this.#cursor;
    let seen = 0;
    enterObject(cursor, 'tx.vin.scriptSig');
    while (cursor.member()) {
      const place = SCRIPT.placeOf(cursor.bytes, cursor.start, cursor.end);
      if (place === 0) {
        plainTextAt(cursor, 'tx.vin.scriptSig.asm');
        mark(input.asm, cursor);
      } else if (place === 1) {
        hexAt(cursor, 'tx.vin.scriptSig.hex');
        mark(input.hex, cursor);
      } else {
        cursor.skip();
        continue;
      }
      seen |= 1 << place;
    }
    if (seen !== 3) throw unfit('tx.vin.scriptSig', 'a script', undefined);
  }

  #prevout(input: RpcInput): void {
    const cursor = this.#cursor;
    let seen = false;
    enterObject(cursor, 'tx.vin.prevout');
    while (cursor.member()) {
      if (PREVOUT.placeOf(cursor.bytes, cursor.start, cursor.end) === 0) {
        input.prevValue.read(cursor, 'tx.vin.prevout.value');
        seen = true;
      } else cursor.skip();
    }
    if (!seen) throw unfit('tx.vin.prevout.value', 'an amount', undefined);
  }

  #output(output: RpcOutput): void {
    const cursor = this.#cursor;
    output.hasAddress = false;
    let seen = 0;
    enterObject(cursor, 'tx.vout');
    while (cursor.member()) {
      const place = VOUT.placeOf(cursor.bytes, cursor.start, cursor.end);
      switch (place) {
        case 0:
          output.value.read(cursor, 'tx.vout.value');
          break;
        case 1:
          if (integerAt(cursor, 'tx.vout.n') !== this.#parsed.outputCount - 1) {
            throw new TidemarkError('NODE_ANSWER_INVALID', "The node's tx.vout is not in the order of its n");
          }
          break;
        case 2:
          this.#scriptPubKey(output);
          break;
        default:
          cursor.skip();
          continue;
      }
      seen |= 1 << place;
    }
    if (seen !== 7) throw unfit('tx.vout', 'an output with value, n and scriptPubKey', undefined);
  }

  #scriptPubKey(output: RpcOutput): void {
    const cursor = this.#cursor;
    let seen = 0;
    enterObject(cursor, 'tx.vout.scriptPubKey');
    while (cursor.member()) {
      const place = SCRIPT.placeOf(cursor.bytes, cursor.start, cursor.end);
      switch (place) {
        case 0:
          plainTextAt(cursor, 'tx.vout.scriptPubKey.asm');
          mark(output.asm, cursor);
          break;
        case 1:
          hexAt(cursor, 'tx.vout.scriptPubKey.hex');
          mark(output.hex, cursor);
          break;
        case 2:
          plainTextAt(cursor, 'tx.vout.scriptPubKey.type');
          mark(output.type, cursor);
          break;
        case 3:
          plainTextAt(cursor, 'tx.vout.scriptPubKey.address');
          mark(output.address, cursor);
          output.hasAddress = true;
          break;
        default:
          cursor.skip();
          continue;
      }
      seen |= 1 << place;
    }
    if ((seen & 7) !== 7) throw unfit('tx.vout.scriptPubKey', 'a script with asm, hex and type', undefined);
  }
}

/** Bits by index in VIN. */
const HAS = { prevout: 1 << 4, sequence: 1 << 5, spending: 0b111 } as const;

function mark(piece: { start: number; end: number }, cursor: JsonCursor): void {
  piece.start = cursor.start;
  piece.end = cursor.end;
}

export interface MempoolEntry {
  readonly txid: string;
  readonly feeSats: number;
  readonly vsize: number;
  /** Epoch seconds. */
  readonly firstSeen: number;
  readonly replaceable: boolean;
}

export interface MempoolAnswer {
  /** In the order of txid. */
  readonly entries: readonly MempoolEntry[];
  /** Exactly as the node sent them. */
  readonly bytes: Buffer;
}

const ENTRY = new JsonKeys(['fees', 'vsize', 'time', 'bip125-replaceable']);
const FEES = new JsonKeys(['base']);
const TXID = /^[0-9a-f]{64}$/;

export function readMempoolAnswer(cursor: JsonCursor): MempoolAnswer {
  const entries: MempoolEntry[] = [];
  enterObject(cursor, 'getrawmempool');
  const from = cursor.at - 1;
  while (cursor.member()) {
    const txid = cursor.bytes.toString('latin1', cursor.start, cursor.end);
    if (!TXID.test(txid)) throw unfit('getrawmempool', 'a list by transaction id', txid);
    entries.push(entryOf(cursor, txid));
  }
  entries.sort((a, b) => (a.txid < b.txid ? -1 : a.txid > b.txid ? 1 : 0));
  return { entries, bytes: cursor.bytes.subarray(from, cursor.at) };
}

function entryOf(cursor: JsonCursor, txid: string): MempoolEntry {
  let [feeSats, vsize, firstSeen, replaceable]: [number?, number?, number?, boolean?] = [];
  enterObject(cursor, 'getrawmempool entry');
  while (cursor.member()) {
    switch (ENTRY.placeOf(cursor.bytes, cursor.start, cursor.end)) {
      case 0:
        feeSats = baseFee(cursor);
        break;
      case 1:
        vsize = integerAt(cursor, 'vsize', 1);
        break;
      case 2:
        firstSeen = integerAt(cursor, 'time');
        break;
      case 3:
        replaceable = flagAt(cursor, 'bip125-replaceable');
        break;
      default:
        cursor.skip();
    }
  }
  if (feeSats === undefined) throw unfit('fees.base', 'an amount', undefined);
  if (vsize === undefined) throw unfit('vsize', 'a whole number', undefined);
  if (firstSeen === undefined) throw unfit('time', 'a whole number', undefined);
  if (replaceable === undefined) {
    throw new TidemarkError(
      'NODE_ANSWER_INVALID',
      'The node does not state which waiting transactions may be replaced (bip125-replaceable). From version 32 on, start it with -deprecatedrpc=bip125',
      { details: { field: 'bip125-replaceable' } },
    );
  }
  return { txid, feeSats, vsize, firstSeen, replaceable };
}

function baseFee(cursor: JsonCursor): number | undefined {
  let fee: number | undefined;
  enterObject(cursor, 'fees');
  while (cursor.member()) {
    if (FEES.placeOf(cursor.bytes, cursor.start, cursor.end) === 0) fee = satsAt(cursor, 'fees.base');
    else cursor.skip();
  }
  return fee;
}
