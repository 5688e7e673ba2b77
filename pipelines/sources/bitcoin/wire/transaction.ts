/** Transactions as the consensus rules serialise them. */
import { HASH_BYTES, sha256d } from './hash.ts';
import { TransactionLayout } from './layout.ts';
import { satsAt, type WireReader } from './reader.ts';

export interface TxInput {
  /** As on the wire; all zero for a coinbase. */
  readonly prevTxid: Buffer;
  readonly prevVout: number;
  readonly script: Buffer;
  readonly sequence: number;
  /** Empty items are legal, and common before a multisig's signatures. */
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
  /** As on the wire: the hash without witness data, and with it. */
  readonly txid: Buffer;
  readonly wtxid: Buffer;
}

/** The next transaction; its buffers are views of the reader's. */
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
    wtxid: layout.marked ? sha256d(raw) : txid,
  };
}

function witnessOf(layout: TransactionLayout, input: number): Buffer[] {
  const items = layout.witness(input);
  return items ? Array.from({ length: items.count(1) }, () => items.field()) : [];
}
