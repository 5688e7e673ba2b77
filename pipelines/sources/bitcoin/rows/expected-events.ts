/**
 * The publisher's side of a block's events: their bytes and the rows they must become. The rows come from the node's
 * JSON, the bytes from its hex. The projector sees only the bytes, so the recount compares two independent readings of
 * the block.
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
  /** The 80 bytes of the header. */
  readonly header: Buffer;
  /** Digest of each transaction's bytes, in hex. */
  readonly digests: readonly string[];
  /** The fees of all transactions, satoshis. */
  readonly fees: number;
  /** Time of this block minus that of the one before; for genesis, time of the next one minus this. */
  readonly rawInterval: number;
}

export type ChainDataset = 'bitcoin_block_headers' | 'bitcoin_block_transactions' | DerivedDataset;

export interface BlockEvent extends RecordedEvent {
  readonly dataset: ChainDataset;
}

/** Enough for the auxiliary data of all but a few transactions. */
const AUXILIARY_BYTES = 4 * 1024;

/**
 * Yields one block's events of all six datasets, transactions in their order. Auxiliary data is valid until the next
 * event.
 */
export function* expectedEvents(checked: CheckedBlock, chain: string): Generator<BlockEvent> {
  yield headerEvent(checked, chain);
  const of = { chain, blockHash: hashFromDisplay(checked.block.hash), scratch: Buffer.allocUnsafe(AUXILIARY_BYTES) };
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
    auxiliary: encodeHeaderAuxiliary({ height, chain }),
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
  { chain, blockHash, scratch }: { readonly chain: string; readonly blockHash: Buffer; readonly scratch: Buffer },
): BlockEvent {
  const { height, time } = block;
  const { txid, raw, coinbase, spent, sums, columns } = block.transactions[index];
  return {
    dataset: 'bitcoin_block_transactions',
    offset: `${height}:${index}:${txid}`,
    payload: raw,
    auxiliary: encodeTransactionAuxiliary({ height, index, time, blockHash, chain, spent }, scratch),
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

/**
 * Difficulty from the compact form in hex, in whole numbers: a power of 256 by the difference of the exponents, times
 * the ratio of the mantissas.
 */
function difficultyFromText(bits: string): number {
  const exponent = Number.parseInt(bits.slice(0, 2), 16);
  const mantissa = Number.parseInt(bits.slice(2), 16);
  return exponent <= 29
    ? (0xffff * 2 ** (8 * (29 - exponent))) / mantissa
    : 0xffff / (mantissa * 2 ** (8 * (exponent - 29)));
}
