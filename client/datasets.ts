/** Written by `npm run docs` from shared/registry: the rows of each route, and the method that asks for them. */
import type { Common, KlinesOnly, Mode, Options, Row, Shape, TradesOnly, VintagesOnly } from './requests.ts';
import type { Rows } from './rows.ts';

/** Keys of the datasets, which exports are asked for by. */
export type DatasetKey =
  | 'exchange_a_spot_trades'
  | 'exchange_b_spot_trades'
  | 'exchange_c_spot_trades'
  | 'etf_daily_metrics'
  | 'macro_series_metrics'
  | 'bitcoin_block_headers'
  | 'bitcoin_block_transactions'
  | 'bitcoin_mempool_state'
  | 'bitcoin_block_fee_totals'
  | 'bitcoin_block_subsidy_schedule'
  | 'bitcoin_network_hashrate_estimate'
  | 'bitcoin_circulating_supply';

/** Every spot trade of exchange A's daily trade files, one row per trade. */
export interface ExchangeASpotTrades extends Shape {
  readonly native: {
    /** Trade id of the exchange. */
    readonly trade_id: number;
    /** Trade time. Unit: ms. */
    readonly timestamp: number;
    /** Price. Unit: quote. */
    readonly price: number;
    /** Base quantity. Unit: base. */
    readonly quantity: number;
    /** 1 when the buyer was the maker (the taker sold). */
    readonly is_buyer_maker: 0 | 1;
    /** The same instant as `timestamp`. */
    readonly datetime: string;
    /** Quote quantity as in the source's file. Unit: quote. */
    readonly quote_quantity: number;
    /** 1 when the trade was the best price match, as the source states it. */
    readonly is_best_match: 0 | 1;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Price of the trade with the lowest id. Unit: quote. */
    readonly open_price: number;
    /** Highest price. Unit: quote. */
    readonly high_price: number;
    /** Lowest price. Unit: quote. */
    readonly low_price: number;
    /** Price of the trade with the highest id. Unit: quote. */
    readonly close_price: number;
    /** Base quantity traded: exact sum, rounded once. Unit: base. */
    readonly quantity_sum: number;
    /** Quote quantity traded, the source's own if it has one. Unit: quote. */
    readonly quote_volume_sum: number;
    /** Number of trades. */
    readonly trade_count: number;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: 'trade_id' | 'timestamp' | 'price' | 'quantity' | 'is_buyer_maker' | 'datetime';
}

/** Every spot trade of exchange B's daily trade files, one row per trade; exact repeats count once. */
export interface ExchangeBSpotTrades extends Shape {
  readonly native: {
    /** Trade id of the exchange. */
    readonly trade_id: number;
    /** Trade time. Unit: ms. */
    readonly timestamp: number;
    /** Price. Unit: quote. */
    readonly price: number;
    /** Base quantity. Unit: base. */
    readonly quantity: number;
    /** 1 when the buyer was the maker (the taker sold). */
    readonly is_buyer_maker: 0 | 1;
    /** The same instant as `timestamp`. */
    readonly datetime: string;
    /** Instrument, `<BASE>-<QUOTE>`. */
    readonly instrument_name: string;
    /** The taker's side: `buy` or `sell`. */
    readonly side: string;
    /** Base quantity. Unit: base. */
    readonly size: number;
    /** price x size, multiplied exactly and rounded once. Unit: quote. */
    readonly quote_quantity: number;
    /** Event id, packed from dataset, file day and trade id. */
    readonly event_id: string;
    /** The trade id, as the event's offset. */
    readonly source_offset_or_equivalent: string;
    /** The source's event time. */
    readonly source_event_time_utc: string | null;
    /** When the row's partition was ingested; a replay keeps it. */
    readonly ingested_at_utc: string;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Price of the trade with the lowest id. Unit: quote. */
    readonly open_price: number;
    /** Highest price. Unit: quote. */
    readonly high_price: number;
    /** Lowest price. Unit: quote. */
    readonly low_price: number;
    /** Price of the trade with the highest id. Unit: quote. */
    readonly close_price: number;
    /** Base quantity traded: exact sum, rounded once. Unit: base. */
    readonly quantity_sum: number;
    /** Quote quantity traded, the source's own if it has one. Unit: quote. */
    readonly quote_volume_sum: number;
    /** Number of trades. */
    readonly trade_count: number;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: 'trade_id' | 'timestamp' | 'price' | 'quantity' | 'is_buyer_maker' | 'datetime';
}

/** Every spot trade of exchange C's daily trade files, one row per trade; exact repeats count once. Files of the archive `trading` state the fields that are computed from those of `spot`. */
export interface ExchangeCSpotTrades extends Shape {
  readonly native: {
    /** Trade id of the exchange. */
    readonly trade_id: number;
    /** Trade time. Unit: ms. */
    readonly timestamp: number;
    /** Price. Unit: quote. */
    readonly price: number;
    /** Base quantity. Unit: base. */
    readonly quantity: number;
    /** 1 when the buyer was the maker (the taker sold). */
    readonly is_buyer_maker: 0 | 1;
    /** The same instant as `timestamp`. */
    readonly datetime: string;
    /** Symbol, `<BASE><QUOTE>`. */
    readonly symbol: string;
    /** Match id of the exchange, `m-<trade_id>`. */
    readonly trd_match_id: string;
    /** The taker's side: `buy` or `sell`. */
    readonly side: string;
    /** Base quantity; may be 0. Unit: base. */
    readonly size: number;
    /** Quote quantity, equal to `foreign_notional`. Unit: quote. */
    readonly quote_quantity: number;
    /** `PlusTick` or `MinusTick` if the price differs from the previous trade's, then `ZeroPlusTick` or `ZeroMinusTick`; empty until the day's first change. */
    readonly tick_direction: string;
    /** `quote_quantity` x 1e8: exact product, rounded once. */
    readonly gross_value: number;
    /** Base quantity, equal to `size`. Unit: base. */
    readonly home_notional: number;
    /** price x size, multiplied exactly and rounded once. Unit: quote. */
    readonly foreign_notional: number;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Price of the trade with the lowest id. Unit: quote. */
    readonly open_price: number;
    /** Highest price. Unit: quote. */
    readonly high_price: number;
    /** Lowest price. Unit: quote. */
    readonly low_price: number;
    /** Price of the trade with the highest id. Unit: quote. */
    readonly close_price: number;
    /** Base quantity traded: exact sum, rounded once. Unit: base. */
    readonly quantity_sum: number;
    /** Quote quantity traded, the source's own if it has one. Unit: quote. */
    readonly quote_volume_sum: number;
    /** Number of trades. */
    readonly trade_count: number;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: 'trade_id' | 'timestamp' | 'price' | 'quantity' | 'is_buyer_maker' | 'datetime';
}

/** What ten issuers publish each day about their bitcoin funds, one row per metric of a fund's day. */
export interface EtfDailyMetrics extends Shape {
  readonly native: {
    /** Id made only from stable facts. */
    readonly metric_id: string;
    /** Source of the value, one per fund or series. */
    readonly source_id: string;
    /** What is measured. */
    readonly metric_name: string;
    /** `BTC`, `USD`, `PCT` or `COUNT`; null for a text. */
    readonly metric_unit: string | null;
    /** The value as text; null if the source leaves it empty. */
    readonly metric_value_string: string | null;
    /** The value of an integer metric. */
    readonly metric_value_int: number | null;
    /** The value of a numeric metric. */
    readonly metric_value_float: number | null;
    /** The value of a yes-or-no metric. */
    readonly metric_value_bool: 0 | 1 | null;
    /** Midnight UTC of the as-of day, not of publication. */
    readonly observed_at_utc: string;
    /** Distinguishes values of one name: `{"row_index":"1"}`. */
    readonly dimensions_json: string;
    /** The value's document (`artifact_sha256`), location and adapter. */
    readonly provenance_json: string | null;
    /** When the row's partition was ingested; a replay keeps it. */
    readonly ingested_at_utc: string;
  };
  readonly aligned_1s: {
    /** Midnight UTC of the as-of day, not of publication. */
    readonly aligned_at_utc: string;
    /** Id made only from stable facts. */
    readonly metric_id: string;
    /** Source of the value, one per fund or series. */
    readonly source_id: string;
    /** What is measured. */
    readonly metric_name: string;
    /** `BTC`, `USD`, `PCT` or `COUNT`; null for a text. */
    readonly metric_unit: string | null;
    /** The value as text; null if the source leaves it empty. */
    readonly metric_value_string: string | null;
    /** The value of an integer metric. */
    readonly metric_value_int: number | null;
    /** The value of a numeric metric. */
    readonly metric_value_float: number | null;
    /** The value of a yes-or-no metric. */
    readonly metric_value_bool: 0 | 1 | null;
    /** Distinguishes values of one name: `{"row_index":"1"}`. */
    readonly dimensions_json: string;
    /** The value's document (`artifact_sha256`), location and adapter. */
    readonly provenance_json: string | null;
    /** Native rows of the series in the second; the latest gives the values. */
    readonly records_in_bucket: number;
    /** When that row's partition was ingested. */
    readonly latest_ingested_at_utc: string;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: keyof EtfDailyMetrics['native'];
}

/** Four macro-economic series with every revision, one row per value that a vintage changed. */
export interface MacroSeriesMetrics extends Shape {
  readonly native: {
    /** sha256 of `source_id|metric_name|observation_date|realtime_start`. */
    readonly metric_id: string;
    /** Source of the value, one per fund or series. */
    readonly source_id: string;
    /** What is measured. */
    readonly metric_name: string;
    /** Unit with its base, as the vintage names it. */
    readonly metric_unit: string;
    /** The value as text; null if the source leaves it empty. */
    readonly metric_value_string: string | null;
    /** The value of an integer metric. */
    readonly metric_value_int: number | null;
    /** The value of a numeric metric. */
    readonly metric_value_float: number | null;
    /** The value of a yes-or-no metric. */
    readonly metric_value_bool: 0 | 1 | null;
    /** Midnight UTC of the observation date, not of publication. */
    readonly observed_at_utc: string;
    /** Series, observation date, frequency and seasonal adjustment. */
    readonly dimensions_json: string;
    /** Series, title, unit, vintage (`realtime_start`) and the source's `last_updated_utc`. */
    readonly provenance_json: string;
    /** When the row's partition was ingested; a replay keeps it. */
    readonly ingested_at_utc: string;
  };
  readonly aligned_1s: {
    /** Midnight UTC of the observation date, not of publication. */
    readonly aligned_at_utc: string;
    /** sha256 of `source_id|metric_name|observation_date|realtime_start`. */
    readonly metric_id: string;
    /** Source of the value, one per fund or series. */
    readonly source_id: string;
    /** What is measured. */
    readonly metric_name: string;
    /** Unit with its base, as the vintage names it. */
    readonly metric_unit: string | null;
    /** The value as text; null if the source leaves it empty. */
    readonly metric_value_string: string | null;
    /** The value of an integer metric. */
    readonly metric_value_int: number | null;
    /** The value of a numeric metric. */
    readonly metric_value_float: number | null;
    /** The value of a yes-or-no metric. */
    readonly metric_value_bool: 0 | 1 | null;
    /** Series, observation date, frequency and seasonal adjustment. */
    readonly dimensions_json: string;
    /** Series, title, unit, vintage (`realtime_start`) and the source's `last_updated_utc`. */
    readonly provenance_json: string | null;
    /** Native rows of the series in the second; the latest gives the values. */
    readonly records_in_bucket: number;
    /** When that row's partition was ingested. */
    readonly latest_ingested_at_utc: string;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: keyof MacroSeriesMetrics['native'];
}

/** Every block's header, one row per block. */
export interface BitcoinBlockHeaders extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Hash of the previous block; empty at genesis. */
    readonly prev_hash: string;
    /** Root of the block's transactions. */
    readonly merkle_root: string;
    /** Version field, signed 32 bits. */
    readonly version: number;
    /** Nonce, unsigned 32 bits. */
    readonly nonce: number;
    /** Difficulty, from the header's compact target. */
    readonly difficulty: number;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly timestamp: number;
    /** The same instant as `timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Events of the second. */
    readonly records_in_bucket: number;
    /** The second's highest block, which the `latest_` fields describe. */
    readonly latest_height: number;
    /** Its hash. */
    readonly latest_block_hash: string;
    /** Hash of the previous block; empty at genesis. */
    readonly latest_prev_hash: string;
    /** Root of its transactions. */
    readonly latest_merkle_root: string;
    /** Its version field, signed 32 bits. */
    readonly latest_version: number;
    /** Its nonce, unsigned 32 bits. */
    readonly latest_nonce: number;
    /** Its difficulty. */
    readonly latest_difficulty: number;
    /** Its time. Unit: ms. */
    readonly latest_timestamp_ms: number;
    /** Chain of the node. */
    readonly latest_source_chain: string;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** Lowest offset. */
    readonly first_source_offset_or_equivalent: string;
    /** Highest offset. */
    readonly last_source_offset_or_equivalent: string;
    /** sha256 over each event: offset, LF, sha256 of its bytes, LF. */
    readonly bucket_sha256: string;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: keyof BitcoinBlockHeaders['native'];
}

/** Every block's transactions with inputs, outputs, scripts and witnesses, one row per transaction. */
export interface BitcoinBlockTransactions extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly block_height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly block_timestamp: number;
    /** Index in the block, from 0; 0 is the coinbase. */
    readonly transaction_index: number;
    /** Id of the transaction, in hexadecimal. */
    readonly txid: string;
    /** List of `{input_index, sequence, prev_txid, prev_vout, prevout_value_btc}`, of a coinbase `{input_index, sequence, coinbase_hex}`. */
    readonly inputs: string;
    /** List of `{output_index, value_btc, script_type, addresses}`. */
    readonly outputs: string;
    /** `{input_values_btc, output_values_btc, input_value_btc_sum, output_value_btc_sum}`; a coinbase has no inputs. */
    readonly values: string;
    /** `{input_script_sig, output_script_pub_key}`: scripts as `asm` and `hex`, outputs with type and addresses. */
    readonly scripts: string;
    /** List of `{input_index, stack}` for inputs with a witness. */
    readonly witness_data: string;
    /** 1 for the transaction that pays the miner. */
    readonly coinbase: 0 | 1;
    /** The same instant as `block_timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Events of the second. */
    readonly records_in_bucket: number;
    /** Transactions of the second. */
    readonly tx_count: number;
    /** Coinbases, one a block. */
    readonly coinbase_tx_count: number;
    /** Exact sum of inputs. Unit: BTC. */
    readonly total_input_value_btc: number;
    /** Exact sum of outputs. Unit: BTC. */
    readonly total_output_value_btc: number;
    /** Lowest block of the second. */
    readonly first_block_height: number;
    /** Highest block of the second. */
    readonly last_block_height: number;
    /** Time of that block. Unit: ms. */
    readonly latest_block_timestamp_ms: number;
    /** Last transaction of that block. */
    readonly latest_txid: string;
    /** Chain of the node. */
    readonly latest_source_chain: string;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** Lowest offset. */
    readonly first_source_offset_or_equivalent: string;
    /** Highest offset. */
    readonly last_source_offset_or_equivalent: string;
    /** sha256 over each event: offset, LF, sha256 of its bytes, LF. */
    readonly bucket_sha256: string;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: keyof BitcoinBlockTransactions['native'];
}

/** Snapshots of the node's mempool, one row per waiting transaction. */
export interface BitcoinMempoolState extends Shape {
  readonly native: {
    /** Time of the snapshot, by the service's clock. */
    readonly snapshot_at: string;
    /** The same instant. Unit: ms. */
    readonly snapshot_at_unix_ms: number;
    /** Id of the transaction, in hexadecimal. */
    readonly txid: string;
    /** Base fee divided by virtual size. Unit: sat/vB. */
    readonly fee_rate_sat_vb: number;
    /** Virtual size. Unit: vB. */
    readonly vsize: number;
    /** When the node first saw it. Unit: s. */
    readonly first_seen_timestamp: number;
    /** 1 when the node marks it replaceable (BIP 125). */
    readonly rbf_flag: 0 | 1;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second. */
    readonly aligned_at_utc: string;
    /** Events of the second. */
    readonly records_in_bucket: number;
    /** Transactions of the snapshot. */
    readonly tx_count: number;
    /** Lowest fee rate. Unit: sat/vB. */
    readonly fee_rate_sat_vb_min: number;
    /** Highest fee rate. Unit: sat/vB. */
    readonly fee_rate_sat_vb_max: number;
    /** Mean fee rate of the transactions. Unit: sat/vB. */
    readonly fee_rate_sat_vb_avg: number;
    /** Sum of virtual sizes. Unit: vB. */
    readonly total_vsize: number;
    /** Earliest first-seen time. Unit: s. */
    readonly first_seen_timestamp_min: number;
    /** Latest first-seen time. Unit: s. */
    readonly first_seen_timestamp_max: number;
    /** Transactions that may be replaced. */
    readonly rbf_true_count: number;
    /** Time of the last snapshot of the second. Unit: ms. */
    readonly latest_snapshot_at_unix_ms: number;
    /** Highest txid of that snapshot. */
    readonly latest_txid: string;
    /** Chain of the node. */
    readonly latest_source_chain: string;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** Lowest offset. */
    readonly first_source_offset_or_equivalent: string;
    /** Highest offset. */
    readonly last_source_offset_or_equivalent: string;
    /** sha256 over each event: offset, LF, sha256 of its bytes, LF. */
    readonly bucket_sha256: string;
    /** Start of validity, inclusive. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
  };
  readonly defaults: keyof BitcoinMempoolState['native'];
}

/** What the transactions of each block paid in fees, one row per block. */
export interface BitcoinBlockFeeTotals extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly block_height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly block_timestamp: number;
    /** Inputs less outputs of all transactions except the coinbase. Unit: BTC. */
    readonly fee_total_btc: number;
    /** The same instant as `block_timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second of the block's own time. */
    readonly aligned_at_utc: string;
    /** Always `bitcoin_core`. */
    readonly source_id: string;
    /** Always `block_fee_total_btc`. */
    readonly metric_name: string;
    /** Always `BTC`. */
    readonly metric_unit: string;
    /** Fees of the block. Unit: BTC. */
    readonly metric_value_float: number;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
    /** Blocks of the second; the highest gives the value. */
    readonly records_in_bucket: number;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** The block that gives the value. */
    readonly provenance_json: string;
    /** Always `{}`. */
    readonly dimensions_json: string;
    /** Always null. */
    readonly metric_value_string: string | null;
    /** Always null. */
    readonly metric_value_int: number | null;
    /** Always null. */
    readonly metric_value_bool: 0 | 1 | null;
  };
  readonly defaults: keyof BitcoinBlockFeeTotals['native'];
}

/** New coins that each block may create under the halving schedule, one row per block. */
export interface BitcoinBlockSubsidySchedule extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly block_height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly block_timestamp: number;
    /** Era: height / 210,000 (150 on regtest), rounded down. */
    readonly halving_interval: number;
    /** 50 BTC halved once per era; 0 from era 33 on. Unit: sat. */
    readonly subsidy_sats: number;
    /** The same in BTC. Unit: BTC. */
    readonly subsidy_btc: number;
    /** The same instant as `block_timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second of the block's own time. */
    readonly aligned_at_utc: string;
    /** Always `bitcoin_core`. */
    readonly source_id: string;
    /** Always `block_subsidy_btc`. */
    readonly metric_name: string;
    /** Always `BTC`. */
    readonly metric_unit: string;
    /** Subsidy of the block. Unit: BTC. */
    readonly metric_value_float: number;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
    /** Blocks of the second; the highest gives the value. */
    readonly records_in_bucket: number;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** The block that gives the value. */
    readonly provenance_json: string;
    /** Always `{}`. */
    readonly dimensions_json: string;
    /** Always null. */
    readonly metric_value_string: string | null;
    /** Always null. */
    readonly metric_value_int: number | null;
    /** Always null. */
    readonly metric_value_bool: 0 | 1 | null;
  };
  readonly defaults: keyof BitcoinBlockSubsidySchedule['native'];
}

/** Hashes a second, estimated from difficulty and block interval, one row per block. */
export interface BitcoinNetworkHashrateEstimate extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly block_height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly block_timestamp: number;
    /** Difficulty, from the header's compact target. */
    readonly difficulty: number;
    /** Seconds since the previous block, at least 1; for genesis, until the next block. Unit: s. */
    readonly observed_interval_seconds: number;
    /** difficulty x 2^32 / observed_interval_seconds. Unit: H/s. */
    readonly hashrate_hs: number;
    /** The same instant as `block_timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second of the block's own time. */
    readonly aligned_at_utc: string;
    /** Always `bitcoin_core`. */
    readonly source_id: string;
    /** Always `network_hashrate_hs`. */
    readonly metric_name: string;
    /** Always `H/s`. */
    readonly metric_unit: string;
    /** Estimate from this one block, as noisy as block times. Unit: H/s. */
    readonly metric_value_float: number;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
    /** Blocks of the second; the highest gives the value. */
    readonly records_in_bucket: number;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** The block that gives the value. */
    readonly provenance_json: string;
    /** Always `{}`. */
    readonly dimensions_json: string;
    /** Always null. */
    readonly metric_value_string: string | null;
    /** Always null. */
    readonly metric_value_int: number | null;
    /** Always null. */
    readonly metric_value_bool: 0 | 1 | null;
  };
  readonly defaults: keyof BitcoinNetworkHashrateEstimate['native'];
}

/** Sum of the scheduled subsidies up to each block, lost coins included, one row per block. */
export interface BitcoinCirculatingSupply extends Shape {
  readonly native: {
    /** Height of the block. */
    readonly block_height: number;
    /** Hash of the block, in hexadecimal. */
    readonly block_hash: string;
    /** Block time; may be earlier than the previous block's. Unit: ms. */
    readonly block_timestamp: number;
    /** Scheduled subsidies of blocks 0 to this one, including unclaimed and unspendable amounts. Unit: sat. */
    readonly circulating_supply_sats: number;
    /** The same in BTC. Unit: BTC. */
    readonly circulating_supply_btc: number;
    /** The same instant as `block_timestamp`. */
    readonly datetime: string;
    /** Chain: `main`, `test`, `testnet4`, `signet` or `regtest`. */
    readonly source_chain: string;
  };
  readonly aligned_1s: {
    /** The UTC second of the block's own time. */
    readonly aligned_at_utc: string;
    /** Always `bitcoin_core`. */
    readonly source_id: string;
    /** Always `btc_circulating_supply_btc`. */
    readonly metric_name: string;
    /** Always `BTC`. */
    readonly metric_unit: string;
    /** Supply after the block. Unit: BTC. */
    readonly metric_value_float: number;
    /** Start of validity, inclusive; not before the window. */
    readonly valid_from_utc: string;
    /** End of validity, exclusive. */
    readonly valid_to_utc_exclusive: string;
    /** Blocks of the second; the highest gives the value. */
    readonly records_in_bucket: number;
    /** Latest ingestion time of the second. */
    readonly latest_ingested_at_utc: string;
    /** The block that gives the value. */
    readonly provenance_json: string;
    /** Always `{}`. */
    readonly dimensions_json: string;
    /** Always null. */
    readonly metric_value_string: string | null;
    /** Always null. */
    readonly metric_value_int: number | null;
    /** Always null. */
    readonly metric_value_bool: 0 | 1 | null;
  };
  readonly defaults: keyof BitcoinCirculatingSupply['native'];
}

/** Candles of an exchange, computed by the database. */
export interface Klines extends Shape {
  readonly native: {
    /** Start of the bucket. */
    readonly datetime: string;
    /** Price of the trade with the lowest id. Unit: quote. */
    readonly open: number;
    /** Highest price. Unit: quote. */
    readonly high: number;
    /** Lowest price. Unit: quote. */
    readonly low: number;
    /** Price of the trade with the highest id. Unit: quote. */
    readonly close: number;
    /** Mean price, to 5 decimals. Unit: quote. */
    readonly mean: number;
    /** Population standard deviation of the price, to 6 decimals. Unit: quote. */
    readonly std: number;
    /** Median price, always a traded one. Unit: quote. */
    readonly median: number;
    /** Price at quantile 0.75 less that at 0.25. Unit: quote. */
    readonly iqr: number;
    /** Sum of quantities, exact, to 9 decimals. Unit: base. */
    readonly volume: number;
    /** Share of trades in which the buyer was the maker. */
    readonly maker_ratio: number;
    /** Number of trades. */
    readonly no_of_trades: number;
    /** Price x quantity of the trade with the lowest id. Unit: quote. */
    readonly open_liquidity: number;
    /** Highest price x quantity. Unit: quote. */
    readonly high_liquidity: number;
    /** Lowest price x quantity. Unit: quote. */
    readonly low_liquidity: number;
    /** Price x quantity of the trade with the highest id. Unit: quote. */
    readonly close_liquidity: number;
    /** Sum of price x quantity, exact, to 1 decimal. Unit: quote. */
    readonly liquidity_sum: number;
    /** Exact sum of quantities if the buyer was the maker. Unit: base. */
    readonly maker_volume: number;
    /** Sum of price x quantity of these trades, exact, to 1 decimal. Unit: quote. */
    readonly maker_liquidity: number;
  };
  readonly aligned_1s: {
    /** Start of the bucket. */
    readonly datetime: string;
    /** First `open_price`. Unit: quote. */
    readonly open: number;
    /** Highest `high_price`. Unit: quote. */
    readonly high: number;
    /** Lowest `low_price`. Unit: quote. */
    readonly low: number;
    /** Last `close_price`. Unit: quote. */
    readonly close: number;
    /** Sum of `quantity_sum`, exact, to 9 decimals. Unit: base. */
    readonly volume: number;
    /** Sum of `trade_count`. */
    readonly no_of_trades: number;
    /** Sum of `quote_volume_sum`, the source's own quantities, exact, to 1 decimal. Unit: quote. */
    readonly liquidity_sum: number;
  };
  readonly defaults: keyof Klines['native'];
}

export abstract class DatasetRoutes {
  /** Path below `/v1/historical/`, body, options. */
  protected abstract rows<R>(path: string, body: object, options: Options | undefined): Rows<R>;

  /** Every spot trade of exchange A's daily trade files, one row per trade. POST /v1/historical/exchange_a/spot/trades */
  get_exchange_a_spot_trades<M extends Mode = 'native', F extends keyof ExchangeASpotTrades[M] & string = never>(
    request: Common<ExchangeASpotTrades, M, F> & TradesOnly = {},
    options?: Options,
  ): Rows<Row<ExchangeASpotTrades, M, F>> {
    return this.rows('exchange_a/spot/trades', request, options);
  }

  /** Candles of exchange_a_spot_trades. POST /v1/historical/exchange_a/spot/klines */
  get_exchange_a_spot_klines<M extends Mode = 'native', F extends keyof Klines[M] & string = never>(
    request: Common<Klines, M, F> & KlinesOnly = {},
    options?: Options,
  ): Rows<Row<Klines, M, F>> {
    return this.rows('exchange_a/spot/klines', request, options);
  }

  /** Every spot trade of exchange B's daily trade files, one row per trade; exact repeats count once. POST /v1/historical/exchange_b/spot/trades */
  get_exchange_b_spot_trades<M extends Mode = 'native', F extends keyof ExchangeBSpotTrades[M] & string = never>(
    request: Common<ExchangeBSpotTrades, M, F> & TradesOnly = {},
    options?: Options,
  ): Rows<Row<ExchangeBSpotTrades, M, F>> {
    return this.rows('exchange_b/spot/trades', request, options);
  }

  /** Candles of exchange_b_spot_trades. POST /v1/historical/exchange_b/spot/klines */
  get_exchange_b_spot_klines<M extends Mode = 'native', F extends keyof Klines[M] & string = never>(
    request: Common<Klines, M, F> & KlinesOnly = {},
    options?: Options,
  ): Rows<Row<Klines, M, F>> {
    return this.rows('exchange_b/spot/klines', request, options);
  }

  /** Every spot trade of exchange C's daily trade files, one row per trade; exact repeats count once. Files of the archive `trading` state the fields that are computed from those of `spot`. POST /v1/historical/exchange_c/spot/trades */
  get_exchange_c_spot_trades<M extends Mode = 'native', F extends keyof ExchangeCSpotTrades[M] & string = never>(
    request: Common<ExchangeCSpotTrades, M, F> & TradesOnly = {},
    options?: Options,
  ): Rows<Row<ExchangeCSpotTrades, M, F>> {
    return this.rows('exchange_c/spot/trades', request, options);
  }

  /** Candles of exchange_c_spot_trades. POST /v1/historical/exchange_c/spot/klines */
  get_exchange_c_spot_klines<M extends Mode = 'native', F extends keyof Klines[M] & string = never>(
    request: Common<Klines, M, F> & KlinesOnly = {},
    options?: Options,
  ): Rows<Row<Klines, M, F>> {
    return this.rows('exchange_c/spot/klines', request, options);
  }

  /** What ten issuers publish each day about their bitcoin funds, one row per metric of a fund's day. POST /v1/historical/etf/daily_metrics */
  get_etf_daily_metrics<M extends Mode = 'native', F extends keyof EtfDailyMetrics[M] & string = never>(
    request: Common<EtfDailyMetrics, M, F> & VintagesOnly = {},
    options?: Options,
  ): Rows<Row<EtfDailyMetrics, M, F>> {
    return this.rows('etf/daily_metrics', request, options);
  }

  /** Four macro-economic series with every revision, one row per value that a vintage changed. POST /v1/historical/macro/series_metrics */
  get_macro_series_metrics<M extends Mode = 'native', F extends keyof MacroSeriesMetrics[M] & string = never>(
    request: Common<MacroSeriesMetrics, M, F> & VintagesOnly = {},
    options?: Options,
  ): Rows<Row<MacroSeriesMetrics, M, F>> {
    return this.rows('macro/series_metrics', request, options);
  }

  /** Every block's header, one row per block. POST /v1/historical/bitcoin/block_headers */
  get_bitcoin_block_headers<M extends Mode = 'native', F extends keyof BitcoinBlockHeaders[M] & string = never>(
    request: Common<BitcoinBlockHeaders, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinBlockHeaders, M, F>> {
    return this.rows('bitcoin/block_headers', request, options);
  }

  /** Every block's transactions with inputs, outputs, scripts and witnesses, one row per transaction. POST /v1/historical/bitcoin/block_transactions */
  get_bitcoin_block_transactions<M extends Mode = 'native', F extends keyof BitcoinBlockTransactions[M] & string = never>(
    request: Common<BitcoinBlockTransactions, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinBlockTransactions, M, F>> {
    return this.rows('bitcoin/block_transactions', request, options);
  }

  /** Snapshots of the node's mempool, one row per waiting transaction. POST /v1/historical/bitcoin/mempool_state */
  get_bitcoin_mempool_state<M extends Mode = 'native', F extends keyof BitcoinMempoolState[M] & string = never>(
    request: Common<BitcoinMempoolState, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinMempoolState, M, F>> {
    return this.rows('bitcoin/mempool_state', request, options);
  }

  /** What the transactions of each block paid in fees, one row per block. POST /v1/historical/bitcoin/block_fee_totals */
  get_bitcoin_block_fee_totals<M extends Mode = 'native', F extends keyof BitcoinBlockFeeTotals[M] & string = never>(
    request: Common<BitcoinBlockFeeTotals, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinBlockFeeTotals, M, F>> {
    return this.rows('bitcoin/block_fee_totals', request, options);
  }

  /** New coins that each block may create under the halving schedule, one row per block. POST /v1/historical/bitcoin/block_subsidy_schedule */
  get_bitcoin_block_subsidy_schedule<M extends Mode = 'native', F extends keyof BitcoinBlockSubsidySchedule[M] & string = never>(
    request: Common<BitcoinBlockSubsidySchedule, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinBlockSubsidySchedule, M, F>> {
    return this.rows('bitcoin/block_subsidy_schedule', request, options);
  }

  /** Hashes a second, estimated from difficulty and block interval, one row per block. POST /v1/historical/bitcoin/network_hashrate_estimate */
  get_bitcoin_network_hashrate_estimate<M extends Mode = 'native', F extends keyof BitcoinNetworkHashrateEstimate[M] & string = never>(
    request: Common<BitcoinNetworkHashrateEstimate, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinNetworkHashrateEstimate, M, F>> {
    return this.rows('bitcoin/network_hashrate_estimate', request, options);
  }

  /** Sum of the scheduled subsidies up to each block, lost coins included, one row per block. POST /v1/historical/bitcoin/circulating_supply */
  get_bitcoin_circulating_supply<M extends Mode = 'native', F extends keyof BitcoinCirculatingSupply[M] & string = never>(
    request: Common<BitcoinCirculatingSupply, M, F> = {},
    options?: Options,
  ): Rows<Row<BitcoinCirculatingSupply, M, F>> {
    return this.rows('bitcoin/circulating_supply', request, options);
  }
}
