/** How the events of each dataset that has a source become rows: all that the projector needs to know of sources. */
import { TidemarkError } from '../../shared/errors.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { ALIGNED_TRADE_COLUMNS } from '../rows/aligned-trades.ts';
import type { FoldingProjection, Projection } from '../rows/binary-copy.ts';
import { METRIC_PROJECTIONS } from '../rows/record-rows.ts';
import { NODE_PROJECTIONS } from './bitcoin/datasets.ts';
import { TradeRowProjector } from './exchange_a/project.ts';
import { ExchangeBRowProjector } from './exchange_b/project.ts';
import { ExchangeCRowProjector } from './exchange_c/project.ts';

const tradesBy = (createRows: FoldingProjection['createRows']): FoldingProjection => ({
  createRows,
  alignedColumns: ALIGNED_TRADE_COLUMNS,
});

const PROJECTIONS: Readonly<Record<string, Projection>> = {
  exchange_a_spot_trades: tradesBy((window) => new TradeRowProjector(window)),
  exchange_b_spot_trades: tradesBy((window) => new ExchangeBRowProjector(window)),
  exchange_c_spot_trades: tradesBy((window) => new ExchangeCRowProjector(window)),
  ...NODE_PROJECTIONS,
  ...METRIC_PROJECTIONS,
};

/** Datasets that a source is written for, in the order of the registry. */
export const fedDatasets = (): DatasetDefinition[] => [...DATASETS.values()].filter(({ key }) => key in PROJECTIONS);

export function projectionOf(dataset: DatasetDefinition): Projection {
  const projection = PROJECTIONS[dataset.key];
  if (!projection) throw new TidemarkError('USAGE', `No source is written for ${dataset.key} yet`);
  return projection;
}
