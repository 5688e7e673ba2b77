import { btcField, derivedFromBlocks } from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';
import { storedField as field } from '../definition.ts';

export const bitcoinCirculatingSupply = {
  number: 12,
  title: 'Bitcoin circulating supply',
  doc: 'Sum of the scheduled subsidies up to each block, lost coins included, one row per block.',
  ...derivedFromBlocks('bitcoin_circulating_supply', {
    metric: {
      name: 'btc_circulating_supply_btc',
      field: 'circulating_supply_btc',
      unit: 'BTC',
      doc: 'Supply after the block.',
    },
    columns: [{ name: 'circulating_supply_sats', pg: 'int8' }],
    totals: [{ column: 'circulating_supply_sats', scale: 0 }],
    fields: [
      field(
        'circulating_supply_sats',
        'int64',
        'int8',
        'Scheduled subsidies of blocks 0 to this one, including unclaimed and unspendable amounts.',
        { unit: 'sat' },
      ),
      btcField('circulating_supply_btc', 'circulating_supply_sats', 'The same in BTC.'),
    ],
  }),
} as const satisfies DatasetDefinition;
