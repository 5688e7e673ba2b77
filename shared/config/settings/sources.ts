/** Settings of the sources: exchanges, the Bitcoin node, the macro provider and the issuers of funds. */
import { choice, otherInstruments, path, type Setting, symbol, text, url, whole } from './setting.ts';

/** A vendor's site, or a folder in its layout. */
const FOLDER_OR_SITE = ['http:', 'https:', 'file:'];

const issuer = (ticker: string) =>
  ({
    group: 'Sources',
    schema: url(...FOLDER_OR_SITE),
    doc: `Where the issuer of ${ticker} publishes it: its site, or a folder of documents archived by day.`,
  }) as const;

const also = (exchange: string) =>
  ({
    group: 'Sources',
    schema: otherInstruments,
    doc: `Other instruments of exchange ${exchange} beside the default, at most 64, separated by commas. One that the exchange lists no longer, or began again, has intervals: \`LUNAUSDT:2020-08-21..2022-05-13\`. What was proved of one that is left out stays readable.`,
  }) as const;

export const SOURCES = {
  SVC_EXCHANGE_A_BASE_URL: {
    group: 'Sources',
    schema: url(...FOLDER_OR_SITE),
    doc: 'Archive of exchange A: spot/daily/trades/SYMBOL/SYMBOL-trades-YYYY-MM-DD.zip below it, each with .CHECKSUM.',
  },
  SVC_EXCHANGE_A_SYMBOL: {
    group: 'Sources',
    schema: symbol,
    default: 'BTCUSDT',
    doc: 'Symbol of exchange A that requests mean when they name no instrument.',
  },
  SVC_EXCHANGE_A_ALSO: also('A'),
  SVC_EXCHANGE_B_BASE_URL: {
    group: 'Sources',
    schema: url(...FOLDER_OR_SITE),
    doc: 'Archive of exchange B: trades/daily/YYYYMMDD/INSTRUMENT-trades-YYYY-MM-DD.zip below it. It excludes SVC_EXCHANGE_B_LINK_URL.',
  },
  SVC_EXCHANGE_B_LINK_URL: {
    group: 'Sources',
    schema: url('http:', 'https:'),
    doc: "Endpoint of exchange B that answers with the link of a day's zip: the vendor's public index, a GET (the path ends with /api/v5/public/market-data-history), else the endpoint of its web page, a POST. All processes of this host together call it at most once in 0.75 s.",
  },
  SVC_EXCHANGE_B_INSTRUMENT: {
    group: 'Sources',
    schema: symbol,
    default: 'BTC-USDT',
    doc: 'Instrument of exchange B that requests mean when they name none; rows of any other in its files are refused.',
  },
  SVC_EXCHANGE_B_ALSO: also('B'),
  SVC_EXCHANGE_B_DOCUMENT: {
    group: 'Sources',
    schema: choice('instrument', 'allspot'),
    default: 'instrument',
    doc: "Documents of exchange B that are read: a day's file of each instrument, or its `allspot` file, which holds all of them.",
  },
  SVC_EXCHANGE_C_BASE_URL: {
    group: 'Sources',
    schema: url(...FOLDER_OR_SITE),
    doc: 'Archive of exchange C: spot/SYMBOL/SYMBOL_YYYY-MM-DD.csv.gz below it, or trading/SYMBOL/SYMBOLYYYY-MM-DD.csv.gz.',
  },
  SVC_EXCHANGE_C_ARCHIVE: {
    group: 'Sources',
    schema: choice('spot', 'trading'),
    default: 'spot',
    doc: 'Tree of the archive that is read: `spot`, or `trading`, in which the vendor publishes perpetuals.',
  },
  SVC_EXCHANGE_C_SYMBOL: {
    group: 'Sources',
    schema: symbol,
    default: 'BTCUSDT',
    doc: 'Symbol of exchange C that requests mean when they name no instrument; rows of any other in its files of the tree `trading` are refused.',
  },
  SVC_EXCHANGE_C_ALSO: also('C'),

  SVC_BITCOIN_RPC_URL: {
    group: 'Sources',
    schema: url('http:', 'https:'),
    doc: 'RPC endpoint of the unpruned Bitcoin node to read instead of the embedded one.',
  },
  SVC_BITCOIN_RPC_USER: {
    group: 'Sources',
    schema: text,
    doc: "User of the node's RPC.",
  },
  SVC_BITCOIN_RPC_PASSWORD: {
    group: 'Sources',
    schema: text,
    secret: true,
    doc: "Password of the node's RPC.",
  },
  SVC_BITCOIN_NETWORK: {
    group: 'Sources',
    schema: choice('main', 'test', 'testnet4', 'signet', 'regtest'),
    default: 'main',
    doc: 'Chain that the node must be on, by the name that the node gives it.',
  },
  SVC_BITCOIN_RPC_TIMEOUT_SECONDS: {
    group: 'Sources',
    schema: whole(1, 3600, 's'),
    default: '60',
    doc: 'Longest wait for one whole answer of the node; after it the call is retried.',
  },
  SVC_BITCOIN_CONFIRMATION_DEPTH: {
    group: 'Sources',
    schema: whole(0, 10_000, 'blocks'),
    doc: 'Blocks that must follow a block before it is ingested. Unset: 6, on regtest 0.',
  },
  SVC_BITCOIN_HEADERS_START_HEIGHT: {
    group: 'Sources',
    schema: whole(0, 100_000_000),
    default: '0',
    doc: 'First height that is ingested, for all six chain datasets.',
  },
  SVC_BITCOIN_HEADERS_END_HEIGHT: {
    group: 'Sources',
    schema: whole(0, 100_000_000),
    doc: 'Last height that is ingested, for all six chain datasets. Unset: as far as the chain goes.',
  },
  SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: {
    group: 'Sources',
    schema: whole(0, 86_400, 's'),
    default: '600',
    doc: '`follow bitcoin` takes a mempool snapshot this often; 0: never.',
  },
  SVC_MACRO_BASE_URL: {
    group: 'Sources',
    schema: url('http:', 'https:'),
    doc: "The macro provider's API: series, series/observations and series/vintagedates below it.",
  },
  SVC_MACRO_API_KEY: {
    group: 'Sources',
    schema: text,
    secret: true,
    doc: "Key for the macro provider's API.",
  },
  SVC_ETF_ISHARES_IBIT_BASE_URL: issuer('IBIT'),
  SVC_ETF_INVESCO_BTCO_BASE_URL: issuer('BTCO'),
  SVC_ETF_BITWISE_BITB_BASE_URL: issuer('BITB'),
  SVC_ETF_ARK_ARKB_BASE_URL: issuer('ARKB'),
  SVC_ETF_VANECK_HODL_BASE_URL: issuer('HODL'),
  SVC_ETF_FRANKLIN_EZBC_BASE_URL: issuer('EZBC'),
  SVC_ETF_GRAYSCALE_GBTC_BASE_URL: issuer('GBTC'),
  SVC_ETF_FIDELITY_FBTC_BASE_URL: issuer('FBTC'),
  SVC_ETF_COINSHARES_BRRR_BASE_URL: issuer('BRRR'),
  SVC_ETF_HASHDEX_DEFI_BASE_URL: issuer('DEFI'),
  SVC_KEEP_DIR: {
    group: 'Sources',
    schema: path,
    doc: 'Folder of the kept documents, which cannot be fetched again (pages of issuers, answers of the macro provider), and of trade documents that replaced proved ones, with their differences, which the service hands out. Nothing deletes them; back the folder up. Unset: `kept` in the state folder.',
  },
  SVC_BROWSER_PATH: {
    group: 'Sources',
    schema: path,
    doc: 'Chromium for issuer pages that scripts render (EZBC, GBTC, FBTC, BRRR), `/usr/bin/chromium` on Debian. Unset: such pages are read from archives only.',
  },
  SVC_FOLLOW_JITTER_SECONDS: {
    group: 'Sources',
    schema: whole(0, 86_400, 's'),
    default: '600',
    doc: '`follow etf` and `follow macro` add a random time up to this to each wait, so that their requests do not fall at fixed times.',
  },
} as const satisfies Record<string, Setting>;
