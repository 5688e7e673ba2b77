import { btcField, derivedFromBlocks } from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';
import { storedField as field } from '../definition.ts';

export const bitcoinBlockSubsidySchedule = {
  number: 10,
  title: 'Bitcoin block subsidy schedule',
  doc: 'New coins that each block may create under the halving schedule, one row per block.',
  ...derivedFromBlocks('bitcoin_block_subsidy_schedule', {
    metric: { name: 'block_subsidy_btc', field: 'subsidy_btc', unit: 'BTC', doc: 'Subsidy of the block.' },
    columns: [
      { name: 'halving_interval', pg: 'int8' },
      { name: 'subsidy_sats', pg: 'int8' },
    ],
    totals: [
      { column: 'halving_interval', scale: 0 },
      { column: 'subsidy_sats', scale: 0 },
    ],
    fields: [
      field('halving_interval', 'int64', 'int8', 'Era: height / 210,000 (150 on regtest), rounded down.'),
      field('subsidy_sats', 'int64', 'int8', '50 BTC halved once per era; 0 from era 33 on.', {
        unit: 'sat',
      }),
      btcField('subsidy_btc', 'subsidy_sats', 'The same in BTC.'),
    ],
  }),
} as const satisfies DatasetDefinition;
