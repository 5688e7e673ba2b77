/**
 * The facts of a partition: what its own rows determine beside their digests. Leaves commit to the canonical bytes, which
 * docs/proof-log.md describes.
 */
import type { Manifest } from '../frame/manifest.ts';
import type { DatasetDefinition } from '../registry/index.ts';

export const MINUTE_MS = 60_000;

/** What the trades of a file day determine, made as their rows go by. */
export interface TradeFacts {
  /** The greatest decimals that explain every row; null without a value other than zero. */
  readonly price: string | null;
  readonly quantity: string | null;
  /** Times without an event between two that are more than a minute apart, and whether the ids on both sides follow each other. */
  readonly silences: readonly (readonly [from: number, to: number, follows: boolean])[];
}

/** How sure it is that the exchange had no trade: `proved` where it numbers its trades without gaps. */
export type SilenceState = 'proved' | 'unknown';

export interface Facts {
  /** Epoch ms of the first and the last event; null without rows. */
  readonly first_ms: number | null;
  readonly last_ms: number | null;
  /** Rows of the document that repeated another and were dropped. */
  readonly repeats: number;
  /** Ids between the first and the last that no row has. Of trades alone, as all that follows. */
  readonly ids_missing?: number;
  readonly price_increment?: string | null;
  readonly quantity_increment?: string | null;
  readonly silences?: readonly (readonly [from: number, to: number, state: SilenceState])[];
}

/** Whether the exchange itself numbers the trades, without gaps and for ever: only then ids that follow each other tell anything. */
export const isNumbered = ({ trades, offset }: DatasetDefinition): boolean => trades !== undefined && offset.unique;

/** The canonical bytes of the facts of a proved partition. */
export function factsText(
  dataset: DatasetDefinition,
  manifest: Pick<Manifest, 'rows' | 'first_ms' | 'last_ms' | 'gaps' | 'repeats_dropped'>,
  trades: TradeFacts | undefined,
): string {
  const isEmpty = manifest.rows === 0;
  const numbered = isNumbered(dataset);
  const facts: Facts = {
    first_ms: isEmpty ? null : manifest.first_ms,
    last_ms: isEmpty ? null : manifest.last_ms,
    repeats: manifest.repeats_dropped ?? 0,
    ...(trades && {
      ids_missing: manifest.gaps,
      price_increment: trades.price,
      quantity_increment: trades.quantity,
      silences: trades.silences.map(([from, to, follows]) => [from, to, numbered && follows ? 'proved' : 'unknown']),
    }),
  };
  return JSON.stringify(facts);
}
