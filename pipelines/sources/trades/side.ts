/** The taker's side, in any case in the files, in lower case in storage. */
import { knownText } from '../../../shared/proof/row-hash.ts';

export const SIDES = ['buy', 'sell'] as const;

/** Each for the row hash, by its index. */
export const HASHED_SIDES = SIDES.map(knownText);
