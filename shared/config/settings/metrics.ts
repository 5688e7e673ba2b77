/** Settings of the ETF issuers and of the macro provider. */
import type { Setting } from './setting.ts';

export const METRICS = {
  SVC_MACRO_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:'],
    doc: "The macro provider's API: series, series/observations and series/vintagedates below it.",
  },
  SVC_MACRO_API_KEY: { group: 'Sources', kind: 'string', secret: true, doc: "Key for the macro provider's API." },
  SVC_ETF_ISHARES_IBIT_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of IBIT publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_INVESCO_BTCO_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of BTCO publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_BITWISE_BITB_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of BITB publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_ARK_ARKB_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of ARKB publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_VANECK_HODL_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of HODL publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_FRANKLIN_EZBC_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of EZBC publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_GRAYSCALE_GBTC_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of GBTC publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_FIDELITY_FBTC_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of FBTC publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_COINSHARES_BRRR_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of BRRR publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_ETF_HASHDEX_DEFI_BASE_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:', 'file:'],
    doc: 'Where the issuer of DEFI publishes it: its site, or a folder of documents archived by day.',
  },
  SVC_KEEP_DIR: {
    group: 'Sources',
    kind: 'path',
    doc: 'Folder of the kept documents, which cannot be fetched again (pages of issuers, answers of the macro provider). Nothing deletes them; back the folder up. Unset: `kept` in the state folder.',
  },
  SVC_BROWSER_PATH: {
    group: 'Sources',
    kind: 'path',
    doc: 'Chromium for issuer pages that scripts render (EZBC, GBTC, FBTC, BRRR), `/usr/bin/chromium` on Debian. Unset: such pages are read from archives only.',
  },
  SVC_FOLLOW_JITTER_SECONDS: {
    group: 'Sources',
    kind: 'integer',
    unit: 's',
    default: '600',
    min: 0,
    max: 86_400,
    doc: '`follow etf` and `follow macro` add a random time up to this to each wait, so that their requests do not fall at fixed times.',
  },
} as const satisfies Record<string, Setting>;
