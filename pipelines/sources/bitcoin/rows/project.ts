/** The projector's side of the seven datasets: turns events into storage rows, from the log's bytes alone. */
import { TidemarkError } from '../../../../shared/errors.ts';
import type { EventRecord } from '../../../../shared/frame/records.ts';
import type { StoredValue } from '../../../../shared/proof/row-facts.ts';
import type { RecordRow } from '../../../rows/record-rows.ts';
import { TextWriter } from '../text-writer.ts';
import { readHeader } from '../wire/block.ts';
import { bytesSha256, displayHash, displayHashAt, HASH_BYTES, sha256d, WireReader } from '../wire/bytes.ts';
import { TransactionLayout } from '../wire/layout.ts';
import { consensusColumns } from './consensus-columns.ts';
import { DERIVED_FACTS, type DerivedDataset, difficultyOf, hashrateOf } from './derived.ts';
import { decodeHeaderAuxiliary, decodeTransactionAuxiliary } from './prevouts.ts';

const corrupt = (offset: string) => (message: string) =>
  new TidemarkError('LOG_DAMAGED', `The event ${offset} cannot be read: ${message}`);

export const headerRow: RecordRow = ({ offset, payload, auxiliary }) => {
  const fail = corrupt(offset);
  const reader = new WireReader(payload, fail);
  const header = readHeader(reader);
  if (reader.left > 0) throw reader.fault('bytes follow the header');
  const { height, chain } = decodeHeaderAuxiliary(auxiliary, fail);
  expectOffset(offset, `${height}`);
  return [
    header.time * 1000,
    height,
    header.version,
    header.nonce,
    difficultyOf(header.bits),
    displayHash(sha256d(payload)),
    height === 0 ? '' : displayHash(header.prevHash),
    displayHash(header.merkleRoot),
    chain,
    bytesSha256(payload),
  ];
};

/** Enough for the texts of all but a few rows. */
const TEXT_BYTES = 64 * 1024;

export const createTransactionRow = (): RecordRow => {
  const layout = new TransactionLayout();
  const writer = new TextWriter(TEXT_BYTES);
  const txid = Buffer.alloc(HASH_BYTES);
  /** The block of the previous transaction, nearly always the same as this one's. */
  const block = { hash: Buffer.alloc(HASH_BYTES), shown: displayHash(Buffer.alloc(HASH_BYTES)) };
  return ({ offset, payload, auxiliary }) => {
    const fail = corrupt(offset);
    const reader = new WireReader(payload, fail);
    layout.read(reader);
    if (reader.left > 0) throw reader.fault('bytes follow the transaction');
    const { height, index, time, blockHash, chain, spent } = decodeTransactionAuxiliary(auxiliary, fail);
    const coinbase = layout.isCoinbase;
    if (spent.length !== (coinbase ? 0 : layout.inputs))
      throw fail(`it has ${spent.length} amounts for ${layout.inputs} inputs`);
    layout.txidInto(txid, 0);
    const shown = displayHashAt(txid, 0);
    expectOffset(offset, `${height}:${index}:${shown}`);
    if (!block.hash.equals(blockHash))
      Object.assign(block, { hash: Buffer.from(blockHash), shown: displayHash(blockHash) });
    writer.clear(0);
    const columns = consensusColumns(layout, spent, chain, writer);
    return [
      time * 1000,
      height,
      index,
      columns.inputSats,
      columns.outputSats,
      coinbase,
      block.shown,
      shown,
      columns.inputs,
      columns.outputs,
      columns.values,
      columns.scripts,
      columns.witnessData,
      chain,
      bytesSha256(payload),
    ];
  };
};

/** The columns between the height and the texts in each derived dataset's row. */
const DERIVED_VALUES: Readonly<Record<DerivedDataset, (fact: (name: string) => number) => readonly StoredValue[]>> = {
  bitcoin_block_fee_totals: (fact) => [fact('fee_total_sats')],
  bitcoin_block_subsidy_schedule: (fact) => [fact('halving_interval'), fact('subsidy_sats')],
  bitcoin_network_hashrate_estimate: (fact) => {
    const difficulty = difficultyOf(fact('bits'));
    const seconds = fact('observed_interval_seconds');
    return [seconds, fact('raw_interval_seconds'), difficulty, hashrateOf(difficulty, seconds)];
  },
  bitcoin_circulating_supply: (fact) => [fact('circulating_supply_sats')],
};

export const derivedRow = (dataset: DerivedDataset): RecordRow => {
  const wanted = new Set<string>(DERIVED_FACTS[dataset]);
  return ({ offset, payload }) => {
    const facts = parse(offset, payload);
    const fact = (name: string): number => {
      const value = facts[name];
      if (!Number.isSafeInteger(value) || !(wanted.has(name) || name.startsWith('block_'))) {
        throw corrupt(offset)(`${name} is not a whole number`);
      }
      return value as number;
    };
    const height = fact('block_height');
    expectOffset(offset, `${height}`);
    return [
      fact('block_timestamp'),
      height,
      ...DERIVED_VALUES[dataset](fact),
      textOf(offset, facts, 'block_hash'),
      textOf(offset, facts, 'source_chain'),
    ];
  };
};

export const mempoolRow: RecordRow = ({ offset, payload }) => {
  const facts = parse(offset, payload);
  const whole = (name: string): number => {
    if (!Number.isSafeInteger(facts[name])) throw corrupt(offset)(`${name} is not a whole number`);
    return facts[name] as number;
  };
  const [snapshot, txid] = [whole('snapshot_at_unix_ms'), textOf(offset, facts, 'txid')];
  expectOffset(offset, `${snapshot}:${txid}`);
  return [
    snapshot,
    whole('fee_sats'),
    whole('vsize'),
    whole('first_seen_timestamp'),
    facts.rbf_flag === true,
    txid,
    textOf(offset, facts, 'source_chain'),
    bytesSha256(payload),
  ];
};

function parse(offset: string, payload: EventRecord['payload']): Record<string, unknown> {
  try {
    const facts = JSON.parse(payload.toString()) as unknown;
    if (typeof facts === 'object' && facts !== null) return facts as Record<string, unknown>;
  } catch {
    // reported below
  }
  throw corrupt(offset)('it is not a JSON object');
}

function textOf(offset: string, facts: Record<string, unknown>, name: string): string {
  const value = facts[name];
  if (typeof value !== 'string') throw corrupt(offset)(`${name} is not a string`);
  return value;
}

function expectOffset(offset: string, own: string): void {
  if (offset !== own) throw corrupt(offset)(`its content belongs to ${own}`);
}
