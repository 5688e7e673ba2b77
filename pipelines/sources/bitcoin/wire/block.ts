/**
 * Block headers and transactions as the consensus rules serialise them, and the checks that tie them together: hash,
 * work, merkle roots.
 */
import { HASH_BYTES, satsAt, sha256d, sha256dInto, type WireReader } from './bytes.ts';
import { TransactionLayout } from './layout.ts';

export interface TxInput {
  /** In wire order; all zero for a coinbase. */
  readonly prevTxid: Buffer;
  readonly prevVout: number;
  readonly script: Buffer;
  readonly sequence: number;
  /** Items may be empty, which is common before a multisig's signatures. */
  readonly witness: readonly Buffer[];
}

export interface TxOutput {
  readonly sats: number;
  readonly script: Buffer;
}

export interface Transaction {
  readonly version: number;
  readonly inputs: readonly TxInput[];
  readonly outputs: readonly TxOutput[];
  readonly lockTime: number;
  /** The whole serialisation, witness included. */
  readonly raw: Buffer;
  /** In wire order: the hash without witness data, and with it. */
  readonly txid: Buffer;
  readonly wtxid: Buffer;
}

/** Reads the next transaction; its buffers are views of the reader's. */
export function readTransaction(reader: WireReader): Transaction {
  const layout = new TransactionLayout().read(reader);
  const { bytes, start, end } = layout;
  const raw = bytes.subarray(start, end);
  const txid = layout.txid;
  return {
    version: bytes.readInt32LE(start),
    inputs: Array.from({ length: layout.inputs }, (_, input) => ({
      prevTxid: bytes.subarray(layout.outpoint(input), layout.outpoint(input) + HASH_BYTES),
      prevVout: layout.prevVout(input),
      script: bytes.subarray(layout.inputScript(input), layout.inputScriptEnd(input)),
      sequence: layout.sequence(input),
      witness: witnessOf(layout, input),
    })),
    outputs: Array.from({ length: layout.outputs }, (_, output) => ({
      sats: satsAt(bytes, layout.amount(output)),
      script: bytes.subarray(layout.outputScript(output), layout.outputScriptEnd(output)),
    })),
    lockTime: bytes.readUInt32LE(end - 4),
    raw,
    txid,
    wtxid: layout.hasWitness ? sha256d(raw) : txid,
  };
}

function witnessOf(layout: TransactionLayout, input: number): Buffer[] {
  const items = layout.witness(input);
  return items ? Array.from({ length: items.count(1) }, () => items.field()) : [];
}

const HEADER_BYTES = 80;

/** Hashes are in wire order. */
export interface BlockHeader {
  readonly version: number;
  readonly prevHash: Buffer;
  readonly merkleRoot: Buffer;
  /** Epoch seconds, as the miner set it. */
  readonly time: number;
  readonly bits: number;
  readonly nonce: number;
}

export function readHeader(reader: WireReader): BlockHeader {
  return {
    version: reader.i32(),
    prevHash: reader.take(32),
    merkleRoot: reader.take(32),
    time: reader.u32(),
    bits: reader.u32(),
    nonce: reader.u32(),
  };
}

export function writeHeader(header: BlockHeader): Buffer {
  const bytes = Buffer.alloc(HEADER_BYTES);
  bytes.writeInt32LE(header.version, 0);
  header.prevHash.copy(bytes, 4);
  header.merkleRoot.copy(bytes, 36);
  bytes.writeUInt32LE(header.time, 68);
  bytes.writeUInt32LE(header.bits, 72);
  bytes.writeUInt32LE(header.nonce, 76);
  return bytes;
}

/** Whether the hash (in wire order) is at most the target that the header claims. */
export function hasItsWork(hash: Buffer, bits: number): boolean {
  const mantissa = bits & 0x007fffff;
  const shift = (bits >>> 24) - 3;
  if ((bits & 0x00800000) !== 0 || mantissa === 0) return false;
  const target = shift >= 0 ? BigInt(mantissa) << BigInt(8 * shift) : BigInt(mantissa >>> (-8 * shift));
  return BigInt(`0x${Buffer.from(hash).reverse().toString('hex')}`) <= target;
}

/**
 * The root over the hashes, and whether a level ends in a pair of equal hashes. In that case another list of
 * transactions has the same root (CVE-2012-2459), and the root proves nothing.
 */
export function merkleRoot(hashes: readonly Buffer[]): { readonly root: Buffer; readonly ambiguous: boolean } {
  return merkleRootOf(Buffer.concat(hashes), hashes.length);
}

/** The root of hashes one after the other. Overwrites them: each level replaces the one below it. */
function merkleRootOf(hashes: Buffer, count: number): { readonly root: Buffer; readonly ambiguous: boolean } {
  let ambiguous = false;
  const last = Buffer.alloc(2 * HASH_BYTES);
  for (let width = count; width > 1; width = (width + 1) >> 1) {
    for (let left = 0; left < width; left += 2) {
      const at = left * HASH_BYTES;
      let pair = hashes.subarray(at, at + 2 * HASH_BYTES);
      if (left + 1 === width) {
        hashes.copy(last, 0, at, at + HASH_BYTES);
        hashes.copy(last, HASH_BYTES, at, at + HASH_BYTES);
        pair = last;
      } else if (areSame(pair)) ambiguous = true;
      sha256dInto(hashes, (left >> 1) * HASH_BYTES, pair);
    }
  }
  return { root: Buffer.from(hashes.subarray(0, HASH_BYTES)), ambiguous };
}

function areSame(pair: Buffer): boolean {
  for (let at = 0; at < HASH_BYTES; at++) if (pair[at] !== pair[at + HASH_BYTES]) return false;
  return true;
}

/** The facts that tie transactions to their block. */
export interface BlockContent {
  readonly coinbase: Transaction | undefined;
  /** Whether any transaction but the first is a coinbase. */
  readonly hasSecondCoinbase: boolean;
  /** Whether any has witness data. */
  readonly hasWitness: boolean;
  readonly count: number;
  /** One after the other, in wire order. */
  readonly txids: Buffer;
  readonly wtxids: Buffer;
}

/** `OP_RETURN`, a push of 36 bytes, and the four marker bytes of BIP 141. */
const COMMITMENT = Buffer.from('6a24aa21a9ed', 'hex');
const COMMITMENT_BYTES = 38;

/**
 * Why the witness data differs from the coinbase's commitment (BIP 141), or undefined. Blocks without witness data need
 * no commitment, and those before segregated witness have none.
 */
function witnessFault({ coinbase, hasWitness, wtxids, count }: BlockContent & { coinbase: Transaction }) {
  const outputs = coinbase.outputs.filter(
    ({ script }) => script.length >= COMMITMENT_BYTES && script.subarray(0, COMMITMENT.length).equals(COMMITMENT),
  );
  const commitment = outputs.at(-1);
  const [reserved, ...more] = coinbase.inputs[0].witness;
  if (commitment === undefined || !hasWitness) {
    return commitment === undefined && hasWitness ? 'it has witness data without a commitment' : undefined;
  }
  if (reserved?.length !== HASH_BYTES || more.length > 0) return "the coinbase's witness is not one item of 32 bytes";
  const leaves = Buffer.from(wtxids);
  leaves.fill(0, 0, HASH_BYTES);
  const { root } = merkleRootOf(leaves, count);
  const expected = sha256d(Buffer.concat([root, reserved]));
  return expected.equals(commitment.script.subarray(COMMITMENT.length, COMMITMENT_BYTES))
    ? undefined
    : "its witness data differs from its coinbase's commitment";
}

/** Why the transactions do not match the header, or undefined. */
export function contentFault(header: BlockHeader, content: BlockContent): string | undefined {
  const { coinbase, txids, count } = content;
  if (count === 0) return 'it has no transactions';
  if (!coinbase) return 'its first transaction is not a coinbase';
  if (content.hasSecondCoinbase) return 'it has a second coinbase';
  const { root, ambiguous } = merkleRootOf(Buffer.from(txids), count);
  if (ambiguous) return 'its transactions repeat in a way that its merkle root cannot detect';
  if (!root.equals(header.merkleRoot)) return 'its transactions do not match its merkle root';
  return witnessFault({ ...content, coinbase });
}
