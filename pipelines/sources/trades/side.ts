/** The taker's side, in any case in the files, in lower case in storage. */
export const SIDES = ['buy', 'sell'] as const;

/** The bytes of each, by its index. */
export const SIDE_BYTES: readonly Buffer[] = SIDES.map((side) => Buffer.from(side, 'latin1'));
