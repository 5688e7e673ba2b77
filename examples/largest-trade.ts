/** Finds the largest trade of the last proved day, and the line of the vendor's file that it is. */
import { HistoricalData, ServiceError } from '../client/index.ts';

const { TIDEMARK_URL: baseUrl = 'http://127.0.0.1:8080', TIDEMARK_KEY: apiKey = '' } = process.env;
const DATASET = 'exchange_a_spot_trades';

interface Dataset {
  readonly key: string;
  readonly rights: { readonly refused_with: string | null };
  readonly availability: {
    readonly rows: number;
    readonly proved_from_utc: string | null;
    readonly proved_through_utc: string | null;
  };
}

interface LineageAnswer {
  readonly document: { readonly name: string; readonly sha256: string };
  readonly payload_raw: { readonly utf8: string };
}

/** A route that the client has no method for. */
async function get<Answer>(path: string): Promise<Answer> {
  const response = await fetch(baseUrl + path, { headers: { 'X-API-Key': apiKey } });
  if (response.ok) return (await response.json()) as Answer;
  const { code, detail } = (await response.json()) as { code: string; detail: string };
  throw new Error(`${code}: ${detail}`);
}

/** The end of what is proved is exclusive: the last day is the one a millisecond before it. */
const lastDay = (end: string) => new Date(Date.parse(end) - 1).toISOString().slice(0, 10);

try {
  // Which datasets there are, and what is proved of them.
  const { datasets } = await get<{ datasets: Dataset[] }>('/v1/datasets');
  const days = new Map<string, string>();
  for (const { key, rights, availability } of datasets) {
    const { rows, proved_from_utc: from, proved_through_utc: through } = availability;
    if (rights.refused_with !== null) {
      console.log(`${key}: refused with ${rights.refused_with}`);
      continue;
    }
    if (from !== null && through !== null) days.set(key, lastDay(through));
    console.log(
      `${key}: ${rows > 0 ? `${rows} rows from ${from?.slice(0, 10)} to ${days.get(key)}` : 'nothing proved'}`,
    );
  }
  const day = days.get(DATASET);
  if (day === undefined) throw new Error(`no proved rows of ${DATASET} are served`);

  // The day's rows, one by one as they arrive: memory stays flat, and a broken answer throws.
  const data = new HistoricalData({ baseUrl, apiKey });
  const fields = ['trade_id', 'price', 'quantity'] as const;
  let rows = 0;
  let largest = { trade_id: 0, price: 0, quantity: 0 };
  for await (const trade of data.get_exchange_a_spot_trades({ start_date: day, end_date: day, fields })) {
    rows++;
    if (trade.quantity > largest.quantity) largest = trade;
  }
  console.log(`${day}: ${rows} trades; the largest, ${largest.trade_id}, is ${largest.quantity} at ${largest.price}`);

  // From the row to its event: the bytes that the vendor published.
  const event = await get<LineageAnswer>(`/v1/lineage/${DATASET}/${largest.trade_id}`);
  console.log(`${event.document.name}, sha256 ${event.document.sha256}, has the line\n${event.payload_raw.utf8}`);
} catch (error) {
  // `problem` holds all that the service said.
  console.error(error instanceof ServiceError ? error.message : String(error));
  process.exitCode = 1;
}
