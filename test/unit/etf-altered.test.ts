/**
 * Documents that are not what they seem: another fund's, incomplete, altered, mixed. Each is refused, or says what the
 * unaltered one says; but a fact that the layout states once has nothing to be compared with.
 */
import Big from 'big.js';
import { describe, expect, test } from 'vitest';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { type FactName, metricsOf } from '../../pipelines/sources/etf/parse/facts.ts';
import { DOCUMENTS, type FundDocument, flattened, fundOf } from '../../pipelines/sources/etf/sample.ts';
import { TidemarkError } from '../../shared/errors.ts';

const DAY = '2026-03-05';
const ALTERED = 30;

/** Whole numbers below `below`; the same seed gives the same numbers. */
function numbers(seed: number) {
  // Seeds that are close together would start with the same numbers.
  let state = Math.imul(seed, 0x9e_37_79_b1) >>> 0;
  return (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Cash is a per cent or so, so that its loss shows in weights of two decimals. */
function fundOfSeed(seed: number): FundDocument {
  const next = numbers(seed);
  return fundOf(DAY, {
    units: new Big(20_000 + next(10_000)).plus(next(1000) / 1000).toFixed(),
    priceUsd: new Big(60_000 + next(20_000)).plus(next(100) / 100).toFixed(),
    cashUsd: new Big(10_000_000 + next(9_000_000)).plus(next(100) / 100).toFixed(),
    sharesOutstanding: new Big(30_000_000 + next(9_000_000)).toFixed(),
    visit: `v${seed}`,
  });
}

type Values = Readonly<Record<string, string | null>>;

/** The day's metrics; the refusal's message where it is refused. */
function outcome(sourceId: string, document: string): Values | string {
  const { issuer, ticker, parse } = ISSUERS.find((one) => one.sourceId === sourceId)!;
  try {
    const metrics = metricsOf({ issuer, ticker, ...parse(document) });
    return Object.fromEntries(metrics.map(({ name, text }) => [name, text]));
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    expect(error.code).toBe('SOURCE_LAYOUT_UNKNOWN');
    return error.message;
  }
}

interface Layout {
  /** Facts that its documents state once. */
  readonly once: readonly FactName[];
  /** What names the fund, and another's; the layouts of BITB and HODL have no name, but may. */
  readonly name: readonly [own: string, other: string];
  readonly isPage?: true;
  /** Its documents have a list that can lose a row. */
  readonly hasList?: true;
}

const DATES = ['as_of_date', 'observed_at_utc'] as unknown as readonly FactName[];

const LAYOUTS: Readonly<Record<string, Layout>> = {
  etf_ishares_ibit_daily: {
    once: [...DATES, 'btc_units', 'shares_outstanding'],
    name: ['iShares Bitcoin Trust ETF', 'iShares Bitcoin ETP'],
    hasList: true,
  },
  etf_invesco_btco_daily: { once: [...DATES, 'btc_units'], name: ['46091J101', '46091J102'], hasList: true },
  etf_bitwise_bitb_daily: {
    once: ['btc_units', 'shares_outstanding', 'wallet_balance_total_btc', 'proof_of_reserves_total_btc'].concat([
      'fund_data_updated_at_utc',
      'proof_of_reserves_timestamp_utc',
    ]) as FactName[],
    name: ['"asOfDate"', '"ticker":"ETHW","asOfDate"'],
    hasList: true,
  },
  etf_ark_arkb_daily: { once: ['btc_units'], name: ['ARKB', 'ARKX'], hasList: true },
  etf_vaneck_hodl_daily: {
    once: [...DATES, 'btc_units'],
    name: ['"AsOfDate"', '"Ticker":"ETHV","AsOfDate"'],
    hasList: true,
  },
  etf_franklin_ezbc_daily: {
    once: ['btc_units', 'nav_per_share_usd', 'market_price_per_share_usd'],
    name: ['EZBC', 'EZET'],
    hasList: true,
  },
  etf_grayscale_gbtc_daily: {
    once: [...DATES, 'btc_units', 'btc_market_value_usd', 'market_price_per_share_usd', 'premium_discount_pct'],
    name: ['GBTC', 'ETHE'],
    isPage: true,
  },
  etf_fidelity_fbtc_daily: {
    once: [...DATES, 'btc_units', 'net_assets_as_of_date'],
    name: ['FBTC', 'FETH'],
    isPage: true,
  },
  etf_coinshares_brrr_daily: {
    once: [...DATES, 'btc_units', 'nav_per_share_usd'],
    name: ['BRRR', 'WGMI'],
    isPage: true,
    hasList: true,
  },
  etf_hashdex_defi_daily: {
    once: [...DATES, 'shares_outstanding', 'holdings_download_url'],
    name: ['"DEFI"', '"NCIQ"'],
    hasList: true,
  },
};

/** The first significant digit of one of the document's numbers becomes another. */
function withAnotherDigit(document: string, next: (below: number) => number): string {
  const digits = [...document.matchAll(/(?<![\d.,])[0.,]*([1-9])/g)].map((match) => match.index + match[0].length - 1);
  const at = digits[next(digits.length)];
  const digit = (Number(document[at]) + next(8)) % 9;
  return `${document.slice(0, at)}${digit + 1}${document.slice(at + 1)}`;
}

/** Two of the page's lines change places. */
function withMovedLine(document: string, next: (below: number) => number): string {
  const lines = document.split('\n');
  const [from] = lines.splice(2 + next(lines.length - 3), 1);
  lines.splice(2 + next(lines.length - 3), 0, from);
  return lines.join('\n');
}

/** A number in a tooltip after one of the page's lines. */
function withTooltip(document: string, next: (below: number) => number): string {
  const lines = document.split('\n');
  const marks = [
    'role="tooltip"',
    'class="info-tooltip__text"',
    'hidden',
    'aria-hidden="true"',
    'style="display: none"',
  ];
  lines.splice(2 + next(lines.length - 3), 0, `<div ${marks[next(marks.length)]}><b>${next(1000)}</b></div>`);
  return lines.join('\n');
}

describe.each(Object.entries(LAYOUTS))('%s', (sourceId, { once, name, isPage, hasList }) => {
  const write = DOCUMENTS[sourceId];
  const said = (seed: number) => outcome(sourceId, write(fundOfSeed(seed)));

  test('an unaltered document is taken', () => {
    for (let seed = 1; seed <= ALTERED; seed++) expect([seed, said(seed)]).toEqual([seed, expect.any(Object)]);
  });

  test('with another digit it is refused, or differs in facts that it states once', () => {
    let refused = 0;
    for (let seed = 1; seed <= ALTERED; seed++) {
      const now = outcome(sourceId, withAnotherDigit(write(fundOfSeed(seed)), numbers(seed * 7)));
      if (typeof now === 'string') refused++;
      else {
        const before = said(seed) as Values;
        const differing = Object.keys(before).filter((fact) => before[fact] !== now[fact]);
        expect([seed, differing.filter((fact) => !once.includes(fact as FactName))]).toEqual([seed, []]);
      }
    }
    expect(refused).toBeGreaterThan(3);
  });

  test('the document of another fund is refused', () => {
    for (let seed = 1; seed <= ALTERED; seed++) {
      const document = write(fundOfSeed(seed));
      const other = document.replaceAll(name[0], name[1]);
      expect(other).not.toBe(document);
      expect([seed, outcome(sourceId, other)]).toEqual([seed, expect.any(String)]);
    }
  });

  if (hasList) {
    test('a list that has lost a holding is refused', () => {
      for (let seed = 1; seed <= ALTERED; seed++) {
        const fund = fundOfSeed(seed);
        const cut = write({ ...fund, holdings: fund.holdings.slice(0, 1) });
        const whole = ['netAssets', 'numHoldings', 'totalNumberOfHoldings'];
        // Where the document has a count, it still says two.
        const counted = whole.reduce((text, key) => text.replace(new RegExp(`("${key}":)1\\b`), '$12'), cut);
        const stated = counted.replace(/(# of holdings<\/span><\/div>\n<div><span>)1</, '$12<');
        expect([seed, outcome(sourceId, stated)]).toEqual([seed, expect.any(String)]);
      }
    });
  }

  if (isPage) {
    test('a page whose lines are moved, or that has numbers in tooltips, is refused or says the same', () => {
      for (let seed = 1; seed <= ALTERED; seed++) {
        const [document, next, before] = [write(fundOfSeed(seed)), numbers(seed), said(seed)];
        expect([seed, outcome(sourceId, withTooltip(document, next))]).toEqual([seed, before]);
        const moved = outcome(sourceId, withMovedLine(document, next));
        if (typeof moved !== 'string') expect([seed, moved]).toEqual([seed, before]);
      }
    });
  }
});

const taken = (ticker: string, document: string) =>
  outcome(ISSUERS.find((one) => one.ticker === ticker)!.sourceId, document);

test('IBIT: the file of another fund of the issuer is refused by its title', () => {
  const document = DOCUMENTS.etf_ishares_ibit_daily(fundOfSeed(1));
  for (const title of ['iShares Bitcoin ETP', 'iShares Ethereum Trust ETF', 'iShares Bitcoin Premium Income ETF', '']) {
    expect(taken('IBIT', document.replace('iShares Bitcoin Trust ETF', title))).toContain(`the fund is "${title}"`);
  }
  expect(taken('IBIT', document.replace('iShares Bitcoin Trust ETF', 'iShares Bitcoin Trust'))).toEqual(
    taken('IBIT', document),
  );
});

test('IBIT: that another fund has no data for a day says nothing of this one', () => {
  const { saysNoData } = ISSUERS.find(({ ticker }) => ticker === 'IBIT')!;
  const holiday = DOCUMENTS.etf_ishares_ibit_daily({ ...fundOfSeed(1), asOf: '-' });
  expect(saysNoData!(holiday)).toBe(true);
  expect(saysNoData!(holiday.replaceAll(/$/gm, ',,'))).toBe(true);
  expect(saysNoData!('Fund Holdings as of,"-"')).toBe(true);
  expect(saysNoData!(holiday.replace('iShares Bitcoin Trust ETF', 'iShares Bitcoin ETP'))).toBe(false);
});

test('IBIT: a file that a spreadsheet has saved again says the same', () => {
  const document = DOCUMENTS.etf_ishares_ibit_daily(fundOfSeed(1));
  const pad = (commas: number) => (line: string) => `${line.replace(/^\s+$/, '')}${','.repeat(commas)}`;
  const before = taken('IBIT', document);
  for (const end of ['\n', '\r\n']) {
    const lines = document.split('\n');
    expect(taken('IBIT', lines.map(pad(9)).join(end))).toEqual(before);
    expect(taken('IBIT', lines.map((line, at) => pad(at % 4)(line)).join(end))).toEqual(before);
  }
  // Cells beyond the header that have something in them belong to a column without a name.
  const more = document.split('\n').map((line) => (line.startsWith('"BTC"') ? `${line},5` : line));
  expect(taken('IBIT', more.join('\n'))).toContain('has 11 cells, not 10');
});

test('HODL: Bitcoin at 60 % as the only row is refused as a partial list', () => {
  const holding = { HoldingName: 'Bitcoin', Shares: '13,000.5', MV: '$900,000,000.00', CUSIP: null };
  const document = (weight: string) =>
    JSON.stringify({ AsOfDate: '03/05/2026', Holdings: [{ ...holding, Weight: weight }] });
  expect(taken('HODL', document('60.02%'))).toContain(
    'the list is partial: the weights of its 1 holdings add up to 60.02',
  );
  expect(taken('HODL', document('100.00%'))).toMatchObject({ btc_units: '13000.5', holdings_row_count: '1' });
});

test('HODL: another fund’s name or ticker is refused, also of a row; one row that nothing vouches for is no list', () => {
  const document = JSON.parse(DOCUMENTS.etf_vaneck_hodl_daily(fundOfSeed(1)));
  const [first, ...rows] = document.Holdings;
  const changed = (change: object) => taken('HODL', JSON.stringify({ ...document, ...change }));
  expect(changed({ FundName: 'VanEck Ethereum ETF' })).toContain('not HODL');
  expect(changed({ Holdings: [{ ...first, FundTicker: 'ETHV' }, ...rows] })).toContain('not HODL');
  expect(changed({ FundName: 'VanEck Bitcoin ETF', Ticker: 'HODL' })).toMatchObject({ ticker: 'HODL' });
  expect(changed({ Holdings: [{ ...first, Weight: '--' }] })).toContain('nothing in the document says');
});

test('BRRR: a worth of another day than that of the list is refused', () => {
  const document = DOCUMENTS.etf_coinshares_brrr_daily(fundOfSeed(1));
  const label = 'ASSETS UNDER MANAGEMENT (US$)</span></div>';
  const dated = document.replace(label, `${label}<div><span>As of 2026-03-04</span></div>`);
  expect(dated).not.toBe(document);
  expect(taken('BRRR', dated)).toContain('the page is of two days');
});

test('BTCO: a list that states more holdings than it has is refused; its address asks for the daily one', () => {
  const fund = fundOfSeed(1);
  const document = DOCUMENTS.etf_invesco_btco_daily(fund).replace(
    '"totalNumberOfHoldings":2',
    '"totalNumberOfHoldings":12',
  );
  expect(taken('BTCO', document)).toBe('the list is partial: the document states 12 holdings and lists 2');
  const { path } = ISSUERS.find(({ ticker }) => ticker === 'BTCO')!.document;
  expect(new URL(path, 'https://funds.example').searchParams.get('interval')).toBe('daily');
});

describe('FBTC', () => {
  const line = (text: string) => `<div><span>${text}</span></div>`;
  const page = (body: string, title = 'FBTC') =>
    `<!doctype html><html><head><title>${title}</title></head><body>${body}</body></html>`;
  const dated = (label: string, value: string, between = '') =>
    `${line(label)}${between}${line('As of Mar-05-2026')}${line(value)}`;
  const body = ({ between = '', units = '170,123.4567', perShare = '0.00086', nav = '$61.05' } = {}) =>
    [
      dated('Net assets', '$12.05B'),
      dated('Total bitcoin in fund', units, between),
      dated('Bitcoin per share', perShare),
      line('Shares outstanding'),
      line('197.3M'),
      line('Nav'),
      line(nav),
    ].join('');
  const values = { btc_units: '170123.4567', total_net_assets_usd: '12050000000', shares_outstanding: '197300000' };

  test('the value of a label follows its date; a number of the explanation before it is none', () => {
    expect(taken('FBTC', page(body()))).toMatchObject(values);
    const explained = [line('All units of 1 bitcoin that are held'), line('24 hours delayed'), line('24')].join('');
    expect(taken('FBTC', page(body({ between: explained })))).toMatchObject(values);
  });

  test('labels and values in the cells of a table, and in a list of definitions', () => {
    const label = /<div><span>(Net|Total|Bitcoin|Shares|Nav)/g;
    const table = body()
      .replaceAll(label, '</tr><tr><div><span>$1')
      .replaceAll(/<div><span>(.*?)<\/span><\/div>/g, '<td>$1</td>');
    expect(taken('FBTC', page(`<table>${table}</table>`))).toMatchObject(values);
    const list = body().replaceAll(/<div><span>([A-Z][a-z]+(?: [a-z]+)*)<\/span><\/div>/g, '<dt>$1</dt>');
    expect(list).toContain('<dt>Nav</dt>');
    expect(taken('FBTC', page(`<dl>${list}</dl>`))).toMatchObject(values);
    const noValue = table.replace('<td>$61.05</td>', '<td></td></tr><tr><td>$61.05</td>');
    expect(taken('FBTC', page(`<table>${noValue}</table>`))).toContain('"Nav" is not followed by a value');
  });

  test('the value after another label is not the one of this label, also where the other is not known', () => {
    const other = `${line('Expense ratio')}${line('0.25%')}`;
    expect(taken('FBTC', page(body().replace(line('$61.05'), other)))).toContain('"Nav" is not followed by a value');
    expect(taken('FBTC', page(body({ between: line('Indicative value') })))).toContain(
      '"Total bitcoin in fund" is not followed',
    );
    const earlier = `${line('As of Mar-04-2026')}${line('170,001.5')}`;
    expect(taken('FBTC', page(body({ between: earlier })))).toContain('has two dates');
    expect(
      taken('FBTC', page(body({ between: `${line('All bitcoin that the fund has')}${line('Close')}` }))),
    ).toMatchObject(values);
  });

  test('NAV x shares, and Bitcoin per share x shares, within what their digits leave', () => {
    expect(taken('FBTC', page(body({ nav: '$61.07' })))).toMatchObject(values);
    expect(taken('FBTC', page(body({ nav: '$62.05' })))).toContain('net asset value x shares outstanding');
    expect(taken('FBTC', page(body({ units: '24' })))).toContain('Bitcoin per share x shares');
    // Of different days they need not agree.
    const yesterday = body({ nav: '$62.05' }).replace('Mar-05-2026', 'Mar-04-2026');
    expect(taken('FBTC', page(yesterday))).toMatchObject({ ...values, net_assets_as_of_date: '2026-03-04' });
  });

  test('a repeated label must repeat its value; digits over two lines are refused', () => {
    expect(taken('FBTC', page(`${dated('Net assets', '$12.05B')}${body()}`))).toMatchObject(values);
    expect(taken('FBTC', page(`${dated('Net assets', '$99.05B')}${body()}`))).toContain('"Net assets" has two values');
    expect(taken('FBTC', page(body({ units: '170,123</span><span>.4567' })))).toContain('on a line of its own');
  });

  test('a number of an explanation between date and value is not taken for the value', () => {
    for (const explained of [
      `${line('12')}<button>Close</button>`,
      `<div class="info-tip"><b>24</b> hours</div>`,
      `${line('12')}${line('months of history')}`,
      `${line('As of Mar-05-2026')}${line('7')}${line('is what an example of this')}`,
    ]) {
      const text = body().replace(line('170,123.4567'), `${explained}${line('170,123.4567')}`);
      expect(taken('FBTC', page(text)), explained).toBeTypeOf('string');
    }
  });

  test('the page of another fund that mentions FBTC in its menu or beside its own name is refused', () => {
    expect(taken('FBTC', page(`<nav><a>FBTC</a></nav>${body()}`, 'FETH'))).toContain('names FBTC');
    expect(taken('FBTC', page(`<nav><h1>FBTC</h1></nav>${body()}`, 'Fidelity'))).toContain('names FBTC');
    expect(taken('FBTC', page(`<h1>Fidelity Ethereum Fund (FETH)</h1>${body()}`))).toContain('is about FETH');
    expect(taken('FBTC', page(body(), 'FETH: compare with FBTC'))).toContain('is about FETH');
  });
});

describe('GBTC', () => {
  const facts = {
    ticker: 'GBTC',
    pricingDataDate: DAY,
    totalAssetInTrust: '180,000.5',
    aum: '$12,000,000,000.00',
    gaapAum: '$12,001,000,000.00',
    sharesOutstanding: '200,000,000',
    holdingsPerShare: '60.00',
    marketPricePerShare: '$60.01',
    premiumDiscountPercent: '0.02%',
    cusip: '389637109',
  };
  const values = { btc_units: '180000.5', source_cusip: '389637109', shares_outstanding: '200000000' };
  /** @param cuts where the text is passed on in pieces. */
  const page = (data: unknown, ...cuts: readonly number[]) => {
    const text = JSON.stringify(data);
    const pieces = [0, ...cuts].map((from, at) => text.slice(from, cuts[at]));
    const scripts = pieces.map((piece) => `<script>self.push([1,${JSON.stringify(piece)}])</script>`);
    // Other scripts between the pieces are not part of their text.
    const body = scripts.join('<script>window.built = "2026";</script>');
    return `<!doctype html><html><head><title>GBTC</title></head><body>${body}</body></html>`;
  };
  const card = {
    name: 'Another trust',
    totalAssetInTrust: '7',
    aum: '$1.00',
    sharesOutstanding: '9',
    cusip: '389638107',
  };

  test('all facts are of the object that has the pricing date and the ticker', () => {
    for (const data of [
      facts,
      [card, facts, card],
      { cards: [card], product: { ...facts, related: [card] }, more: { ...card, ticker: 'ETHE' } },
      { ticker: 'GBTC', cusip: facts.cusip, pricing: { ...facts, ticker: undefined, cusip: undefined } },
    ]) {
      expect(taken('GBTC', page(data))).toMatchObject(values);
      expect(taken('GBTC', page(data, 40, 90))).toMatchObject(values);
    }
  });

  test('another product is refused, also where the menu or a card names GBTC', () => {
    const other = { ...facts, ticker: 'ETHE' };
    expect(taken('GBTC', page([{ label: 'Bitcoin', ticker: 'GBTC' }, other]))).toContain('ticker is "ETHE"');
    expect(taken('GBTC', page({ menu: [{ ticker: 'GBTC' }], product: { ...facts, ticker: undefined } }))).toContain(
      'no ticker',
    );
    expect(taken('GBTC', page({ ticker: 'GBTC', cards: [{ ...facts, ticker: undefined }] }))).toContain('no ticker');
    expect(taken('GBTC', page({ ...facts, cusip: '389638107' }))).toContain('CUSIP is "389638107"');
  });

  test('a fact that only a card has is missing; two objects of the fund must not differ', () => {
    expect(taken('GBTC', page([card, { ...facts, totalAssetInTrust: undefined }]))).toContain('no totalAssetInTrust');
    expect(taken('GBTC', page([facts, facts]))).toMatchObject(values);
    expect(taken('GBTC', page([facts, { ...facts, totalAssetInTrust: '8' }]))).toContain('they differ');
  });

  test('the worth of a share x shares is one of the two worths that are stated', () => {
    expect(taken('GBTC', page({ ...facts, holdingsPerShare: '60.005' }))).toMatchObject(values);
    expect(taken('GBTC', page({ ...facts, holdingsPerShare: '61.00' }))).toContain(
      'holdingsPerShare x sharesOutstanding',
    );
  });
});

test('DEFI: the list is the product’s own, beside products before and after it', () => {
  const product = (name: string, ticker: string, price: string) => ({
    name,
    ticker,
    holdings: {
      values: [
        {
          name: 'Bitcoin',
          price,
          shares: '100',
          ticker: 'BTC',
          weight: '100.00',
          referenceDate: DAY,
          totalNetAssets: price.replace('.00', '00.00'),
          sharesOutstanding: '70000',
          weight_percentage: '100.00%',
        },
      ],
      downloadLink: `https://documents.example/${ticker}_Holdings.xlsx`,
    },
  });
  const own = product('Hashdex Bitcoin ETF', 'DEFI', '$71000.00');
  const [before, after] = [product('Index', 'NCIQ', '$5.00'), product('Other', 'OTHR', '$6.00')];
  const wanted = { btc_price_usd: '71000', total_net_assets_usd: '7100000' };
  expect(taken('DEFI', flattened([before, own, after]))).toMatchObject(wanted);
  expect(taken('DEFI', flattened({ menu: [{ title: own.name, ticker: 'DEFI' }], after, own }))).toMatchObject(wanted);
  const borrowed = { ...own, holdings: after.holdings };
  expect(taken('DEFI', flattened([borrowed]))).toContain('that of OTHR, not of DEFI');
  const two = { ...own, more: after.holdings };
  expect(taken('DEFI', flattened([two]))).toContain('2 lists of holdings');
  const [row] = own.holdings.values;
  const halves = { ...row, shares: '50', weight: '50.00', weight_percentage: '50.00%' };
  const mixed = [halves, { ...halves, name: 'Cash', ticker: 'USD', sharesOutstanding: '80000' }];
  const differing = { ...own, holdings: { ...own.holdings, values: mixed } };
  expect(taken('DEFI', flattened([differing]))).toContain('the holdings differ in sharesOutstanding');
});

test('EZBC: the id of another product, an ISIN of another CUSIP, and a worth of another day are refused', () => {
  const document = DOCUMENTS.etf_franklin_ezbc_daily(fundOfSeed(1));
  expect(taken('EZBC', document.replace('"fundid":"39639"', '"fundid":"39640"'))).toContain('not 39639');
  const address = document.replace('https://funds.example/39639', 'https://funds.example/products/39640/x');
  expect(taken('EZBC', address)).toContain('product "39640", not of 39639');
  expect(taken('EZBC', document.replace('US35354Q1058', 'US35354Q2050'))).toContain('is not that of the CUSIP');
  const day = document.replace(/("totnetassets":"[^"]*","asofdate":)"[^"]*"/, '$1"2026-03-04"');
  expect(day).not.toBe(document);
  expect(taken('EZBC', day)).toContain('the document is of two days');
});

test('EZBC: which of several classes of shares is meant is not guessed', () => {
  const document = DOCUMENTS.etf_franklin_ezbc_daily(fundOfSeed(1));
  const two = document.replace('{"nav":', '{"nav":{"navvalue":"$1","mktpricevalue":"$1"}},{"nav":');
  expect(two).not.toBe(document);
  expect(taken('EZBC', two)).toContain('2 classes of shares, not 1');
});

test('ARKB: every row names the fund and the day', () => {
  const lines = DOCUMENTS.etf_ark_arkb_daily(fundOfSeed(1)).split('\n');
  const changed = (own: string, other: string) =>
    lines.map((line, at) => (at === 2 ? line.replace(own, other) : line)).join('\n');
  expect(taken('ARKB', changed('ARKB', 'ARKK'))).toContain('not ARKB: line 3');
  expect(taken('ARKB', changed(DAY, '2026-03-04'))).toContain('the rows are of 2026-03-05 and of 2026-03-04');
});
