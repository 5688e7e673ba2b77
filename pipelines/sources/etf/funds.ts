/** Funds by the names an operator gives them. */
import { TidemarkError } from '../../../shared/errors.ts';
import { ISSUERS } from './issuers/index.ts';
import type { Issuer } from './issuers/types.ts';

/** Tickers or source ids, with commas between; all without. @throws TidemarkError USAGE naming those there are. */
export function fundsNamed(names: string | undefined): readonly Issuer[] {
  if (names === undefined) return ISSUERS;
  const wanted = names.split(',').map((name) => name.trim());
  const found = wanted.map((name) => ({ name, issuer: ISSUERS.find((issuer) => isNamed(issuer, name)) }));
  const unknown = found.filter(({ issuer }) => issuer === undefined).map(({ name }) => JSON.stringify(name));
  if (unknown.length > 0) {
    const known = ISSUERS.map(({ ticker }) => ticker).join(', ');
    throw new TidemarkError('USAGE', `There is no fund ${unknown.join(', ')}; known: ${known}`);
  }
  return ISSUERS.filter((issuer) => found.some((one) => one.issuer === issuer));
}

const isNamed = ({ ticker, sourceId }: Issuer, name: string) =>
  ticker === name.toUpperCase() || sourceId === name.toLowerCase();
