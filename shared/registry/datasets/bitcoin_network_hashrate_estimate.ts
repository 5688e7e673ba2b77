import { derivedFromBlocks } from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';
import { storedField as field } from '../definition.ts';

export const bitcoinNetworkHashrateEstimate = {
  number: 11,
  title: 'Bitcoin network hashrate estimate',
  doc: 'Hashes a second, estimated from difficulty and block interval, one row per block.',
  ...derivedFromBlocks('bitcoin_network_hashrate_estimate', {
    metric: {
      name: 'network_hashrate_hs',
      field: 'hashrate_hs',
      unit: 'H/s',
      doc: 'Estimate from this one block, as noisy as block times.',
    },
    columns: [
      { name: 'observed_interval_seconds', pg: 'int8' },
      // The difference of the block times, which may be 0 or negative. Aligned provenance shows it; no field does.
      { name: 'raw_interval_seconds', pg: 'int8', shown: 'none' },
      { name: 'difficulty', pg: 'float8' },
      { name: 'hashrate_hs', pg: 'float8' },
    ],
    totals: [{ column: 'observed_interval_seconds', scale: 0 }],
    fields: [
      field('difficulty', 'float64', 'float8', "Difficulty, from the header's compact target."),
      field(
        'observed_interval_seconds',
        'int64',
        'int8',
        'Seconds since the previous block, at least 1; for genesis, until the next block.',
        { unit: 's' },
      ),
      field('hashrate_hs', 'float64', 'float8', 'difficulty x 2^32 / observed_interval_seconds.', { unit: 'H/s' }),
    ],
  }),
} as const satisfies DatasetDefinition;
