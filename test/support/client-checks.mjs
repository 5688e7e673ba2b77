/**
 * What the client does with answers that come whole, stop coming, or break off. Runs in every Node that the client
 * supports and in a browser, beside the client as `npm run client` writes it; test/support/client-site.ts serves it.
 */
import { Exports, HistoricalData } from './index.js';

const REQUEST = { fields: ['trade_id'] };
const FILE = { name: 'f.csv', uri: '/file', day: null, row_count: 1, bytes: 8, checksum_sha256: 'a'.repeat(64) };

/** @param baseUrl of the server; the first segment of a path says how it answers. */
export async function outcomes(baseUrl) {
  const options = { apiKey: 'any', maxAttempts: 1 };
  const asking = (how, more) =>
    new HistoricalData({ ...options, ...more, baseUrl: `${baseUrl}/${how}` }).get_exchange_a_spot_trades(REQUEST);
  const looped = async (rows) => {
    const ids = [];
    for await (const { trade_id } of rows) ids.push(trade_id);
    return ids;
  };
  const closed = async ({ rows, close }) => {
    const { value } = await rows.next();
    await close();
    return [value.trade_id, (await rows.next()).done];
  };
  const ways = {
    all: async (rows) => (await rows).rows.map(({ trade_id }) => trade_id),
    loop: looped,
    close: async (rows) => closed(await rows.stream()),
    arrow: async (rows) => (await rows.arrow()).byteLength,
  };
  const found = {};
  for (const [way, read] of Object.entries(ways)) {
    found[`${way}, whole`] = await outcome(() => read(asking('whole')));
    if (way === 'close') continue;
    found[`${way}, cut`] = await outcome(() => read(asking('cut')));
    found[`${way}, silent`] = await outcome(() => read(asking('silent', { stallTimeoutMs: 50 })));
  }
  const { signal } = aborting();
  found['a loop that is aborted'] = await outcome(async () => {
    const data = new HistoricalData({ ...options, baseUrl: `${baseUrl}/silent` });
    return await looped(data.get_exchange_a_spot_trades(REQUEST, { signal }));
  });
  const download = async (how) => {
    // As many attempts as a machine needs that is busy with other things.
    const exports = new Exports({ ...options, maxAttempts: 1000, stallTimeoutMs: 50, baseUrl: `${baseUrl}/${how}` });
    const bytes = [];
    for await (const part of exports.download(FILE)) bytes.push(...part);
    return String.fromCharCode(...bytes);
  };
  found['a download that goes silent once'] = await outcome(() => download('once'));
  found['a status that is cut'] = await outcome(() =>
    new Exports({ ...options, baseUrl: `${baseUrl}/cut` }).status('x'),
  );
  return found;
}

const outcome = (work) => work().catch((error) => `${error.name}: ${error.message}`);

function aborting() {
  const controller = new AbortController();
  setTimeout(() => controller.abort(Object.assign(new Error('enough'), { name: 'Stopped' })), 50);
  return controller;
}
