/** The names of instruments: an exchange's symbols. */
import { createHash } from 'node:crypto';

/** A symbol that `parseInstrument` has checked. */
export type Instrument = string & { readonly instrument: unique symbol };

/** Safe in SQL literals, subjects, paths and file names as it stands. */
const SYMBOL = /^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$/;
export const SYMBOL_RULE = 'at most 32 letters, digits, ".", "_" and "-", of which the first is a letter or digit';

/** @returns undefined for a text that is no symbol. */
export const parseInstrument = (text: string): Instrument | undefined =>
  SYMBOL.test(text) ? (text as Instrument) : undefined;

/** What event ids hold of a symbol: 28 bits of its digest, so that two databases give the same. */
export const instrumentTag = (instrument: Instrument): number =>
  createHash('sha256').update(instrument).digest().readUInt32BE(0) >>> 4;

/**
 * Whether what a key is limited to covers an instrument. An entry is the key of a dataset, with all of its instruments, or
 * `dataset:instrument`.
 * @param entries null: the key is not limited
 * @param instrument the symbol, of the default too; undefined of a dataset without instruments, and where any of them will do
 */
export const coversInstrument = (entries: readonly string[] | null, dataset: string, instrument?: string): boolean =>
  entries === null ||
  entries.some((entry) =>
    instrument === undefined
      ? entry.split(':', 1)[0] === dataset
      : entry === dataset || entry === `${dataset}:${instrument}`,
  );
