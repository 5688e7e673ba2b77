/** Two requests: the page names its build, and the build's data document holds the fund. */
import Big from 'big.js';
import { compareStated } from '../parse/checks.ts';
import { MAX_HOLDINGS } from '../parse/facts.ts';
import { isBitcoin, onlyBitcoin, shown, sum, unreadable } from '../parse/fields.ts';
import { JsonPath, oneDay, parseJson, refuseForeign, refuseOther } from '../parse/tables.ts';
import type { Issuer } from './issuer.ts';

const BUILD = /"buildId":"([A-Za-z0-9_-]+)"/;

export const bitwiseBitb: Issuer = {
  sourceId: 'etf_bitwise_bitb_daily',
  issuer: 'bitwise',
  ticker: 'BITB',
  document: {
    path: '/',
    by: 'http',
    extension: 'json',
    next(page) {
      refuseForeign(page);
      const build = BUILD.exec(page)?.[1];
      if (build === undefined) throw unreadable('the page has no buildId');
      return `/_next/data/${build}/index.json`;
    },
  },
  parse(document) {
    const props = new JsonPath(parseJson(document), '').at('pageProps');
    const data = props.at('fundData', 'data');
    const details = data.at('fundDetails');
    const basket = data.at('holdings', 'basket').list(MAX_HOLDINGS);
    const bitcoin = onlyBitcoin(basket, (row) => isBitcoin(row.at('companyName').text()));
    const wallets = data.at('wallets', 'walletBalances').list(MAX_WALLETS);
    const reserves = props.at('proofOfReservesSnapshotData');
    refuseOther('BITB', props, props.at('fundData'), data, details, data.at('holdings'));
    const reserved = reserves.at('fundName');
    if (reserved.exists && reserved.text() !== null && reserved.text() !== 'BITB')
      throw unreadable(`the reserves are those of ${shown(reserved.value)}, not of BITB`);
    const [netAssets, count] = [details.at('netAssets').number(), details.at('numHoldings').number()];
    const holdings = basket.map((row) => ({ at: row.path, value: row.at('marketValue').number() }));
    compareStated({ holdings, count, netAssets });
    const active = wallets.filter((wallet) => wallet.at('active').value === true);
    return {
      as_of_date: oneDay(details.at('asOfDate'), data.at('holdings', 'asOfDate')),
      btc_units: bitcoin.at('shares').number(),
      btc_market_value_usd: bitcoin.at('marketValue').number(),
      total_net_assets_usd: netAssets,
      holdings_row_count: count,
      shares_outstanding: details.at('sharesOutstanding').number(),
      total_holdings_market_value_usd: sum(
        holdings.map(({ value }) => value),
        'marketValue',
      ),
      wallet_count: new Big(active.length),
      wallet_balance_total_btc: sum(
        wallets.map((wallet) => wallet.at('balance').number()),
        'balance',
      ),
      proof_of_reserves_total_btc: reserves.at('totalReserve').number(),
      proof_of_reserves_timestamp_utc: reserves.at('timestamp').text(),
      fund_data_updated_at_utc: data.at('updatedAt').text(),
    };
  },
};

const MAX_WALLETS = 10_000;
