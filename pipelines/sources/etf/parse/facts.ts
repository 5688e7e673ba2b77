/** The facts that a fund states about one day, and the metrics derived from them. */
import Big from 'big.js';
import { shown, unreadable } from './fields.ts';
import { Printed, type Sign } from './printed.ts';

/** A fund holds Bitcoin and perhaps cash; a longer list belongs to another document. */
export const MAX_HOLDINGS = 1000;

type FactKind = 'number' | 'integer' | 'text';

interface FactRule {
  readonly kind: FactKind;
  readonly unit: string | null;
  readonly required?: true;
  /** May be negative: an overdraft, a discount. Any other negative value is a parsing error. */
  readonly signed?: true;
  /** Describes the page, not the fund: it changes from fetch to fetch and creates no new record. */
  readonly passing?: true;
  /** Has no fraction. */
  readonly whole?: true;
  /** What the text looks like; another one is another field's. */
  readonly form?: RegExp;
  readonly doc: string;
}

/** Every fact that a fund's day may have. One that is not required may be null and is then a metric without a value. */
export const FACTS = {
  issuer: { kind: 'text', unit: null, required: true, doc: 'The issuer.' },
  ticker: { kind: 'text', unit: null, required: true, doc: 'The fund.' },
  as_of_date: { kind: 'text', unit: null, required: true, doc: 'As-of day of the document, `YYYY-MM-DD`.' },
  btc_units: { kind: 'number', unit: 'BTC', required: true, doc: 'Bitcoin held.' },
  btc_market_value_usd: {
    kind: 'number',
    unit: 'USD',
    required: true,
    doc: 'Its stated worth (DEFI: units x price; FBTC: the net assets).',
  },
  total_net_assets_usd: {
    kind: 'number',
    unit: 'USD',
    required: true,
    doc: 'Net assets: as stated (BITB, BRRR, DEFI, FBTC, GBTC), else the sum of listed holdings.',
  },
  holdings_row_count: {
    kind: 'integer',
    unit: 'COUNT',
    required: true,
    doc: 'Listed holdings; 1 without a list (GBTC, FBTC: Bitcoin alone).',
  },
  btc_weight_pct: { kind: 'number', unit: 'PCT', doc: 'Share of Bitcoin in the fund.' },
  cash_market_value_usd: {
    kind: 'number',
    unit: 'USD',
    signed: true,
    doc: 'The cash row of the list; negative for an overdraft, null without the row.',
  },
  shares_outstanding: { kind: 'number', unit: 'COUNT', whole: true, doc: 'Shares of the fund.' },
  nav_per_share_usd: {
    kind: 'number',
    unit: 'USD',
    doc: 'Net asset value of a share (GBTC: its field `holdingsPerShare`).',
  },
  market_price_per_share_usd: { kind: 'number', unit: 'USD', doc: 'Price of a share on the exchange.' },
  premium_discount_pct: {
    kind: 'number',
    unit: 'PCT',
    signed: true,
    doc: 'Price over net asset value; negative for a discount.',
  },
  net_assets_as_of_date: { kind: 'text', unit: null, doc: 'Day of the net assets, perhaps before `as_of_date`.' },
  total_net_assets_reported_usd: {
    kind: 'number',
    unit: 'USD',
    doc: 'Net assets as stated beside the list, rounded by the issuer.',
  },
  total_holdings_market_value_usd: {
    kind: 'number',
    unit: 'USD',
    doc: 'Sum of the list, where net assets are stated too.',
  },
  wallet_count: { kind: 'integer', unit: 'COUNT', doc: 'Active wallets.' },
  wallet_balance_total_btc: { kind: 'number', unit: 'BTC', doc: 'Balance of all listed wallets.' },
  proof_of_reserves_total_btc: { kind: 'number', unit: 'BTC', doc: 'Attested reserves.' },
  proof_of_reserves_timestamp_utc: {
    kind: 'text',
    unit: null,
    passing: true,
    doc: 'Time of attestation, as in the document.',
  },
  fund_data_updated_at_utc: {
    kind: 'text',
    unit: null,
    passing: true,
    doc: "Time of the issuer's last change, as in the document.",
  },
  btc_price_usd: { kind: 'number', unit: 'USD', doc: 'Bitcoin price behind the market value.' },
  holdings_download_url: { kind: 'text', unit: null, doc: 'Download address of the list.' },
  source_cusip: {
    kind: 'text',
    unit: null,
    form: /^(?:[0-9A-Z*@#]{9}|\D*)$/,
    doc: 'CUSIP of the fund; for HODL of the holding.',
  },
  source_isin: { kind: 'text', unit: null, form: /^[A-Z]{2}[0-9A-Z]{9}\d$/, doc: 'ISIN of the fund.' },
  source_fund_id: { kind: 'text', unit: null, doc: "The issuer's number of the fund." },
} as const satisfies Record<string, FactRule>;

export type FactName = keyof typeof FACTS;

/** `undefined`: the issuer's document lacks the fact. `null`: it has the fact without a value. */
export type Facts = { readonly [Name in FactName]?: Printed | Big | string | null };

/** A metric: one fact with its unit, in the channels of a metric row. */
export interface Metric {
  readonly name: FactName | 'observed_at_utc';
  readonly unit: string | null;
  readonly kind: 'float' | 'int' | 'string' | 'null';
  /** Plain decimal notation without insignificant zeros. */
  readonly text: string | null;
}

/**
 * The metrics of a fund's day by name: each fact, and the day itself.
 * @throws TidemarkError if a required fact is missing, or a count is not a whole number.
 */
export function metricsOf(facts: Facts): Metric[] {
  const metrics = (Object.keys(FACTS) as FactName[]).flatMap((name) => {
    const value = facts[name];
    const rule: FactRule = FACTS[name];
    if (rule.required && (value === undefined || value === null)) throw unreadable(`${name} is missing`);
    return value === undefined ? [] : [metricOf(name, rule, value)];
  });
  const observed: Metric = {
    name: 'observed_at_utc',
    unit: null,
    kind: 'string',
    text: `${facts.as_of_date}T00:00:00.000Z`,
  };
  return [...metrics, observed].sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** The unit of numbers that are printed with a sign. A figure with another one is another figure. */
const UNITS: Readonly<Record<Sign, string>> = { $: 'USD', '%': 'PCT' };

function metricOf(
  name: FactName,
  { kind, unit, signed, whole, form }: FactRule,
  stated: Printed | Big | string | null,
): Metric {
  if (stated === null) return { name, unit, kind: 'null', text: null };
  if (kind === 'text') {
    const text = String(stated);
    if (form && !form.test(text)) throw unreadable(`${name} is not in its form: ${shown(text)}`);
    return { name, unit, kind: 'string', text };
  }
  const { value, sign } = stated instanceof Printed ? stated : { value: stated };
  if (!(value instanceof Big)) throw unreadable(`${name} is not a number: ${shown(value)}`);
  if (sign !== undefined && unit !== UNITS[sign])
    throw unreadable(`${name} is printed with a ${sign}, so it is another figure: ${value.toFixed()}`);
  if (value.lt(0) && !signed) throw unreadable(`${name} is negative: ${value.toFixed()}`);
  if ((kind === 'integer' || whole) && !value.eq(value.round(0)))
    throw unreadable(`${name} is not a whole number: ${value.toFixed()}`);
  if (kind === 'number') return { name, unit, kind: 'float', text: value.toFixed() };
  if (name === 'holdings_row_count' && value.gt(MAX_HOLDINGS)) throw unreadable(`${name} is ${value.toFixed()}`);
  return { name, unit, kind: 'int', text: value.toFixed(0) };
}
