/**
 * The auxiliary data of events in the log: what a row needs that the consensus bytes of its event lack.
 *
 *     header:       u32 height, chain
 *     transaction:  u32 height, u32 index, u32 block time, 32 bytes block hash, chain; for each input, unless it is
 *                   a coinbase, u64 satoshis: the value of the output that the input spends
 *
 * Numbers are little-endian, hashes in wire order; chain is a u8 length and the name.
 */
import type { TidemarkError } from '../../../../shared/errors.ts';
import { WireReader } from '../wire/bytes.ts';

export interface HeaderAuxiliary {
  readonly height: number;
  readonly chain: string;
}

export interface TransactionAuxiliary extends HeaderAuxiliary {
  readonly index: number;
  /** Epoch seconds. */
  readonly time: number;
  readonly blockHash: Buffer;
  readonly spent: readonly number[];
}

const TRANSACTION_HEAD = 44;
const NO_SCRATCH = Buffer.alloc(0);

export function encodeHeaderAuxiliary({ height, chain }: HeaderAuxiliary): Buffer {
  const bytes = Buffer.alloc(5 + chain.length);
  bytes.writeUInt32LE(height, 0);
  writeChain(bytes, 4, chain);
  return bytes;
}

export function decodeHeaderAuxiliary(bytes: Buffer, fail: (message: string) => TidemarkError): HeaderAuxiliary {
  const reader = new WireReader(bytes, fail);
  const auxiliary = { height: reader.u32(), chain: readChain(reader) };
  if (reader.left > 0) throw reader.fault('bytes follow the auxiliary data of a header');
  return auxiliary;
}

/** Uses `scratch` for the result if it is large enough. */
export function encodeTransactionAuxiliary(
  { height, index, time, blockHash, chain, spent }: TransactionAuxiliary,
  scratch: Buffer = NO_SCRATCH,
): Buffer {
  const amountsAt = TRANSACTION_HEAD + 1 + chain.length;
  const length = amountsAt + 8 * spent.length;
  const bytes = length <= scratch.length ? scratch.subarray(0, length) : Buffer.alloc(length);
  bytes.writeUInt32LE(height, 0);
  bytes.writeUInt32LE(index, 4);
  bytes.writeUInt32LE(time, 8);
  blockHash.copy(bytes, 12);
  writeChain(bytes, TRANSACTION_HEAD, chain);
  for (const [input, sats] of spent.entries()) {
    bytes.writeUInt32LE(sats >>> 0, amountsAt + 8 * input);
    bytes.writeUInt32LE(Math.floor(sats / 4294967296), amountsAt + 8 * input + 4);
  }
  return bytes;
}

export function decodeTransactionAuxiliary(
  bytes: Buffer,
  fail: (message: string) => TidemarkError,
): TransactionAuxiliary {
  const reader = new WireReader(bytes, fail);
  const [height, index, time] = [reader.u32(), reader.u32(), reader.u32()];
  const blockHash = reader.take(32);
  const chain = readChain(reader);
  if (reader.left % 8 !== 0) throw reader.fault('the amounts of spent outputs are not a multiple of 8 bytes');
  const spent: number[] = [];
  while (reader.left > 0) spent.push(reader.sats());
  return { height, index, time, blockHash, chain, spent };
}

function writeChain(bytes: Buffer, at: number, chain: string): void {
  bytes[at] = chain.length;
  bytes.write(chain, at + 1, 'latin1');
}

const readChain = (reader: WireReader): string => reader.take(reader.u8()).toString('latin1');
