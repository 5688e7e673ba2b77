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
  JsonMembers,
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

const BLOCK = new JsonMembers(
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
);
const TX = new JsonMembers('txid', 'hex', 'vin', 'vout');
const VIN = new JsonMembers('txid', 'vout', 'scriptSig', 'txinwitness', 'prevout', 'sequence', 'coinbase');
const VOUT = new JsonMembers('value', 'n', 'scriptPubKey');
const SCRIPT_SIG = new JsonMembers('asm', 'hex');
const SCRIPT_PUB_KEY = new JsonMembers('asm', 'hex', 'type', 'address');
const PREVOUT = new JsonMembers('value');

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
    const found: { -readonly [Fact in keyof NodeBlock]?: NodeBlock[Fact] } = {};
    enterObject(cursor, 'getblock');
    while (cursor.member()) {
      switch (BLOCK.nameAt(cursor)) {
        case 'hash':
          found.hash = hexTextAt(cursor, 'hash', HASH_BYTES);
          break;
        case 'height':
          found.height = integerAt(cursor, 'height');
          break;
        case 'version':
          found.version = integerAt(cursor, 'version', -(2 ** 31), 2 ** 31 - 1);
          break;
        case 'merkleroot':
          found.merkleRoot = hexTextAt(cursor, 'merkleroot', HASH_BYTES);
          break;
        case 'time':
          found.time = integerAt(cursor, 'time', 0, U32);
          break;
        case 'mediantime':
          found.medianTime = integerAt(cursor, 'mediantime', 0, U32);
          break;
        case 'nonce':
          found.nonce = integerAt(cursor, 'nonce', 0, U32);
          break;
        case 'bits':
          found.bits = hexTextAt(cursor, 'bits', 4);
          break;
        case 'previousblockhash':
          found.prevHash = hexTextAt(cursor, 'previousblockhash', HASH_BYTES);
          break;
        case 'size':
          found.bytes = integerAt(cursor, 'size', 81);
          break;
        case 'tx':
          found.transactions = this.#transactions();
          break;
        default:
          cursor.skip();
      }
    }
    const given = <T>(value: T | undefined, member: string): T => {
      if (value === undefined) throw unfit(member, 'a value', undefined);
      return value;
    };
    return {
      hash: given(found.hash, 'hash'),
      height: given(found.height, 'height'),
      version: given(found.version, 'version'),
      // The genesis block has none.
      prevHash: found.prevHash ?? '',
      merkleRoot: given(found.merkleRoot, 'merkleroot'),
      time: given(found.time, 'time'),
      medianTime: given(found.medianTime, 'mediantime'),
      bits: given(found.bits, 'bits'),
      nonce: given(found.nonce, 'nonce'),
      bytes: given(found.bytes, 'size'),
      transactions: given(found.transactions, 'tx'),
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
    let hasInputs = false;
    let hasOutputs = false;
    enterObject(cursor, 'tx');
    while (cursor.member()) {
      switch (TX.nameAt(cursor)) {
        case 'txid':
          txid = hexTextAt(cursor, 'tx.txid', HASH_BYTES);
          break;
        case 'hex':
          raw = this.#rawBytes();
          break;
        case 'vin':
          enterList(cursor, 'tx.vin');
          while (cursor.item()) this.#input(parsed.addInput());
          hasInputs = true;
          break;
        case 'vout':
          enterList(cursor, 'tx.vout');
          while (cursor.item()) this.#output(parsed.addOutput());
          hasOutputs = true;
          break;
        default:
          cursor.skip();
      }
    }
    if (txid === undefined) throw unfit('tx.txid', 'a hash', undefined);
    if (raw === undefined) throw unfit('tx.hex', 'hex', undefined);
    if (!hasInputs || !hasOutputs) throw unfit('tx.vin or tx.vout', 'a list', undefined);
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
    let hasTxid = false;
    let hasVout = false;
    let hasScript = false;
    let hasPrevout = false;
    let hasSequence = false;
    enterObject(cursor, 'tx.vin');
    while (cursor.member()) {
      switch (VIN.nameAt(cursor)) {
        case 'txid':
          hexAt(cursor, 'tx.vin.txid', HASH_BYTES);
          setRange(input.prevTxid, cursor);
          hasTxid = true;
          break;
        case 'vout':
          input.prevVout = integerAt(cursor, 'tx.vin.vout', 0, U32);
          hasVout = true;
          break;
        case 'scriptSig':
          this.#scriptSig(input);
          hasScript = true;
          break;
        case 'txinwitness':
          enterList(cursor, 'tx.vin.txinwitness');
          while (cursor.item()) {
            hexAt(cursor, 'tx.vin.txinwitness');
            witnessItems.push(cursor.start, cursor.end);
          }
          break;
        case 'prevout':
          this.#prevout(input);
          hasPrevout = true;
          break;
        case 'sequence':
          input.sequence = integerAt(cursor, 'tx.vin.sequence', 0, U32);
          hasSequence = true;
          break;
        case 'coinbase':
          hexAt(cursor, 'tx.vin.coinbase');
          setRange(input.coinbase, cursor);
          input.isCoinbase = true;
          break;
        default:
          cursor.skip();
      }
    }
    input.witnessTo = witnessItems.length;
    if (!hasSequence) throw unfit('tx.vin.sequence', 'a whole number', undefined);
    if (input.isCoinbase) return;
    if (!hasPrevout) {
      throw new TidemarkError(
        'NODE_ANSWER_INVALID',
        'The Bitcoin node does not state what inputs spend: it lacks the undo data of this block, so its fees are unknown',
        { remedy: 'The node needs version 23 or newer and its undo data (-reindex).' },
      );
    }
    if (!hasTxid || !hasVout || !hasScript) throw unfit('tx.vin', 'an input with txid, vout and scriptSig', undefined);
  }

  #scriptSig(input: RpcInput): void {
    const cursor = this.#cursor;
    let hasAsm = false;
    let hasHex = false;
    enterObject(cursor, 'tx.vin.scriptSig');
    while (cursor.member()) {
      switch (SCRIPT_SIG.nameAt(cursor)) {
        case 'asm':
          plainTextAt(cursor, 'tx.vin.scriptSig.asm');
          setRange(input.asm, cursor);
          hasAsm = true;
          break;
        case 'hex':
          hexAt(cursor, 'tx.vin.scriptSig.hex');
          setRange(input.hex, cursor);
          hasHex = true;
          break;
        default:
          cursor.skip();
      }
    }
    if (!hasAsm || !hasHex) throw unfit('tx.vin.scriptSig', 'a script', undefined);
  }

  #prevout(input: RpcInput): void {
    const cursor = this.#cursor;
    let hasValue = false;
    enterObject(cursor, 'tx.vin.prevout');
    while (cursor.member()) {
      if (PREVOUT.nameAt(cursor) === 'value') {
        input.prevValue.read(cursor, 'tx.vin.prevout.value');
        hasValue = true;
      } else cursor.skip();
    }
    if (!hasValue) throw unfit('tx.vin.prevout.value', 'an amount', undefined);
  }

  #output(output: RpcOutput): void {
    const cursor = this.#cursor;
    output.hasAddress = false;
    let hasValue = false;
    let hasNumber = false;
    let hasScript = false;
    enterObject(cursor, 'tx.vout');
    while (cursor.member()) {
      switch (VOUT.nameAt(cursor)) {
        case 'value':
          output.value.read(cursor, 'tx.vout.value');
          hasValue = true;
          break;
        case 'n':
          if (integerAt(cursor, 'tx.vout.n') !== this.#parsed.outputCount - 1) {
            throw new TidemarkError('NODE_ANSWER_INVALID', "The node's tx.vout is not in the order of its n");
          }
          hasNumber = true;
          break;
        case 'scriptPubKey':
          this.#scriptPubKey(output);
          hasScript = true;
          break;
        default:
          cursor.skip();
      }
    }
    if (!hasValue || !hasNumber || !hasScript)
      throw unfit('tx.vout', 'an output with value, n and scriptPubKey', undefined);
  }

  #scriptPubKey(output: RpcOutput): void {
    const cursor = this.#cursor;
    let hasAsm = false;
    let hasHex = false;
    let hasType = false;
    enterObject(cursor, 'tx.vout.scriptPubKey');
    while (cursor.member()) {
      switch (SCRIPT_PUB_KEY.nameAt(cursor)) {
        case 'asm':
          plainTextAt(cursor, 'tx.vout.scriptPubKey.asm');
          setRange(output.asm, cursor);
          hasAsm = true;
          break;
        case 'hex':
          hexAt(cursor, 'tx.vout.scriptPubKey.hex');
          setRange(output.hex, cursor);
          hasHex = true;
          break;
        case 'type':
          plainTextAt(cursor, 'tx.vout.scriptPubKey.type');
          setRange(output.type, cursor);
          hasType = true;
          break;
        case 'address':
          plainTextAt(cursor, 'tx.vout.scriptPubKey.address');
          setRange(output.address, cursor);
          output.hasAddress = true;
          break;
        default:
          cursor.skip();
      }
    }
    if (!hasAsm || !hasHex || !hasType)
      throw unfit('tx.vout.scriptPubKey', 'a script with asm, hex and type', undefined);
  }
}

/** Sets a range of bytes to that of the cursor's value. */
function setRange(range: { start: number; end: number }, cursor: JsonCursor): void {
  range.start = cursor.start;
  range.end = cursor.end;
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

const ENTRY = new JsonMembers('fees', 'vsize', 'time', 'bip125-replaceable');
const FEES = new JsonMembers('base');
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
    switch (ENTRY.nameAt(cursor)) {
      case 'fees':
        feeSats = baseFee(cursor);
        break;
      case 'vsize':
        vsize = integerAt(cursor, 'vsize', 1);
        break;
      case 'time':
        firstSeen = integerAt(cursor, 'time');
        break;
      case 'bip125-replaceable':
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
    if (FEES.nameAt(cursor) === 'base') fee = satsAt(cursor, 'fees.base');
    else cursor.skip();
  }
  return fee;
}
