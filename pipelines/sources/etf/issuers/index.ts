/** The table of funds. Each fund has a file in this folder and a line below. */
import { arkArkb } from './ark-arkb.ts';
import { bitwiseBitb } from './bitwise-bitb.ts';
import { coinsharesBrrr } from './coinshares-brrr.ts';
import { fidelityFbtc } from './fidelity-fbtc.ts';
import { franklinEzbc } from './franklin-ezbc.ts';
import { grayscaleGbtc } from './grayscale-gbtc.ts';
import { hashdexDefi } from './hashdex-defi.ts';
import { invescoBtco } from './invesco-btco.ts';
import { isharesIbit } from './ishares-ibit.ts';
import type { Issuer } from './issuer.ts';
import { vaneckHodl } from './vaneck-hodl.ts';

export const ISSUERS: readonly Issuer[] = [
  isharesIbit,
  invescoBtco,
  bitwiseBitb,
  arkArkb,
  vaneckHodl,
  franklinEzbc,
  grayscaleGbtc,
  fidelityFbtc,
  coinsharesBrrr,
  hashdexDefi,
];
