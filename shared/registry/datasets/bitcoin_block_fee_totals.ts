import { btcField, derivedFromBlocks } from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';

export const bitcoinBlockFeeTotals = {
  number: 9,
  title: 'Bitcoin block fee totals',
  doc: 'What the transactions of each block paid in fees, one row per block.',
  ...derivedFromBlocks('bitcoin_block_fee_totals', {
    metric: { name: 'block_fee_total_btc', field: 'fee_total_btc', unit: 'BTC', doc: 'Fees of the block.' },
    columns: [{ name: 'fee_total_sats', pg: 'int8', shown: 'sats' }],
    totals: [{ column: 'fee_total_sats', scale: 0 }],
    fields: [
      btcField('fee_total_btc', 'fee_total_sats', 'Inputs less outputs of all transactions except the coinbase.'),
    ],
  }),
} as const satisfies DatasetDefinition;
