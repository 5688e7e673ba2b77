/**
 * Events of a block and the rows they must become: the publisher's side. Rows come from what the node told, bytes from
 * what it sent; the projector knows the bytes only, so that the recount compares two readings of the block.
 */
import { sha256Hex } from '../../../../shared/frame/codec.ts';
import type { StoredValue } from '../../../../shared/proof/row-facts.ts';
import type { RecordedEvent } from '../../record-frames.ts';
import type { NodeBlock } from '../node-answers.ts';
import { hashFromDisplay } from '../wire/bytes.ts';
import {
  type BlockFacts,
  type DerivedDataset,
  type DerivedFacts,
  derivedPayload,
  eraOf,
  halvingInterval,
  hashrateOf,
  observedInterval,
  subsidyOf,
  supplyAt,
} from './derived.ts';
import { encodeHeaderAuxiliary, encodeTransactionAuxiliary } from './prevouts.ts';

export interface CheckedBlock {
  readonly block: NodeBlock;
  /** 80 bytes. */
  readonly header: Buffer;
  /** Digest of each transaction's bytes, in hex. */
  readonly digests: readonly string[];
  /** Of all transactions, satoshis. */
  readonly fees: number;
  /** Time of this block minus that of the one before; at genesis of the next one minus this. */
  readonly rawInterval: number;
}

export type ChainDataset = 'bitcoin_block_headers' | 'bitcoin_block_transactions' | DerivedDataset;

export interface BlockEvent extends RecordedEvent {
  readonly dataset: ChainDataset;
}

/** Side facts of all but a few transactions. */
const SIDE_BYTES = 4 * 1024;

/** All six datasets' events of one block, transactions in their order. Side facts are good until the next event. */
export function* expectedEvents(checked: CheckedBlock, chain: string): Generator<BlockEvent> {
  yield headerEvent(checked, chain);
  const of = { chain, blockHash: hashFromDisplay(checked.block.hash), sideRoom: Buffer.allocUnsafe(SIDE_BYTES) };
  for (let index = 0; index < checked.block.transactions.length; index++) yield transactionEvent(checked, index, of);
  yield* derivedEvents(checked, chain);
}

function headerEvent({ block, header }: CheckedBlock, chain: string): BlockEvent {
  const { height } = block;
  const offset = `${height}`;
  return {
    dataset: 'bitcoin_block_headers',
    offset,
    payload: header,
    side: encodeHeaderAuxiliary({ height, chain }),
    row: [
      block.time * 1000,
      height,
      block.version,
      block.nonce,
      difficultyFromText(block.bits),
      block.hash,
      block.prevHash,
      block.merkleRoot,
      chain,
      sha256Hex(header),
    ],
  };
}

function transactionEvent(
  { block, digests }: CheckedBlock,
  index: number,
  { chain, blockHash, sideRoom }: { readonly chain: string; readonly blockHash: Buffer; readonly sideRoom: Buffer },
): BlockEvent {
  const { height, time } = block;
  const { txid, raw, coinbase, spent, sums, columns } = block.transactions[index];
  return {
    dataset: 'bitcoin_block_transactions',
    offset: `${height}:${index}:${txid}`,
    payload: raw,
    side: encodeTransactionAuxiliary({ height, index, time, blockHash, chain, spent }, sideRoom),
    row: [
      time * 1000,
      height,
      index,
      sums.input,
      sums.output,
      coinbase,
      block.hash,
      txid,
      columns.inputs,
      columns.outputs,
      columns.values,
      columns.scripts,
      columns.witnessData,
      chain,
      digests[index],
    ],
  };
}

function* derivedEvents({ block, fees, rawInterval }: CheckedBlock, chain: string): Generator<BlockEvent> {
  const { height, hash, time } = block;
  const facts: BlockFacts = {
    block_hash: hash,
    block_height: height,
    block_timestamp: time * 1000,
    source_chain: chain,
  };
  const event = (dataset: DerivedDataset, own: DerivedFacts, values: readonly StoredValue[]): BlockEvent => ({
    dataset,
    offset: `${height}`,
    payload: derivedPayload(facts, own),
    row: [facts.block_timestamp, height, ...values, hash, chain],
  });
  yield event('bitcoin_block_fee_totals', { fee_total_sats: fees }, [fees]);

  const era = eraOf(height, halvingInterval(chain));
  const subsidy = subsidyOf(era);
  yield event('bitcoin_block_subsidy_schedule', { halving_interval: era, subsidy_sats: subsidy }, [era, subsidy]);

  const seconds = observedInterval(rawInterval);
  const difficulty = difficultyFromText(block.bits);
  yield event(
    'bitcoin_network_hashrate_estimate',
    {
      bits: Number.parseInt(block.bits, 16),
      observed_interval_seconds: seconds,
      raw_interval_seconds: rawInterval,
    },
    [seconds, rawInterval, difficulty, hashrateOf(difficulty, seconds)],
  );

  const supply = supplyAt(height, halvingInterval(chain));
  yield event('bitcoin_circulating_supply', { circulating_supply_sats: supply }, [supply]);
}

/** Of the compact form in hex, by whole numbers: 256 to the difference of the exponents, the mantissas as a fraction. */
function difficultyFromText(bits: string): number {
  const exponent = Number.parseInt(bits.slice(0, 2), 16);
  const mantissa = Number.parseInt(bits.slice(2), 16);
  return exponent <= 29
    ? (0xffff * 2 ** (8 * (29 - exponent))) / mantissa
    : 0xffff / (mantissa * 2 ** (8 * (exponent - 29)));
}
