/** Names of an artifact's files: they say what is inside and hold nothing that a file system or a URL minds. */
import { DAY_MS } from '../../../shared/time/days.ts';
import type { ReadRequest, Window } from '../../read/types.ts';

/** `exchange_a_spot_trades.native.2019-04` */
export function stemOf({ dataset, mode, window, asOfMs }: ReadRequest): string {
  const asOf = asOfMs === undefined ? '' : `.as-of-${instantName(asOfMs)}`;
  return `${dataset.key}.${mode}.${windowName(window)}${asOf}`;
}

function windowName(window: Window): string {
  switch (window.kind) {
    case 'history':
      return 'history';
    case 'latest':
      return `latest-${window.rows}`;
    case 'random':
      return `random-${window.rows}-${window.seed}`;
    case 'range':
      return rangeName(window.fromMs, window.toMs);
  }
}

/** A month, a day or days by their dates, both included; anything else by its instants. */
function rangeName(fromMs: number | undefined, toMs: number | undefined): string {
  if (fromMs === undefined || toMs === undefined || fromMs % DAY_MS !== 0 || toMs % DAY_MS !== 0) {
    return `${instantName(fromMs)}-${instantName(toMs)}`;
  }
  const first = dateName(fromMs);
  const last = dateName(toMs - DAY_MS);
  if (first === last) return first;
  const isMonth = first.endsWith('-01') && dateName(toMs).endsWith('-01') && first.slice(0, 7) === last.slice(0, 7);
  return isMonth ? first.slice(0, 7) : `${first}_${last}`;
}

export const dateName = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

const instantName = (ms: number | undefined): string =>
  ms === undefined ? 'open' : new Date(ms).toISOString().replaceAll(/[-:]|\.000(?=Z)/g, '');
