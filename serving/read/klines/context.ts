/** What a plan for klines is made of, and the statements for all klines of some parts. */
import { Params } from '../../db/params.ts';
import type { Statement } from '../../db/wire-messages.ts';
import type { LiveContext } from '../context.ts';
import type { Part } from '../coverage.ts';
import type { KlineRelation } from './relation.ts';
import { type Grid, klineSlices } from './slices.ts';

export interface KlineContext extends LiveContext {
  readonly klines: KlineRelation;
  readonly grid: Grid;
}

export function* klinesInOrder({ klines, grid }: KlineContext, parts: readonly Part[]): Generator<Statement> {
  for (const slice of klineSlices(parts, grid)) {
    const params = new Params();
    yield { text: klines.select(slice, params), params: params.list };
  }
}
