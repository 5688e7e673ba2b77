/** Trades of one exchange on the market that all of them share. */
import { assert } from '../../shared/errors.ts';
import { activityAt, MarketPrice } from './market.ts';

const HOUR_MS = 3_600_000;

export interface TradesOrder {
  readonly rows: number;
  /** Whole hours, epoch ms; `toMs` is exclusive. */
  readonly fromMs: number;
  readonly toMs: number;
  /** Uniform in [0, 1); each exchange and day has its own. */
  readonly random: () => number;
  /** Ticks of the price in one quote unit. */
  readonly ticks: number;
  /** The price at `fromMs`, from which the whole path is scaled. Default: the market's. */
  readonly startPrice?: number;
}

/** The chance of one more fill of a taker order, and the mean number of fills that follows from it. */
const MORE_FILLS = 0.5;
const MEAN_FILLS = 1 / (1 - MORE_FILLS);
const MAX_FILLS = 64;
/**
 * An exchange's own price strays from the market's: each order keeps this share of the distance and adds at most this much to
 * it, which makes half a basis point of standard deviation.
 */
const KEPT = 0.9;
const STRAYING = 0.00004;

/**
 * Taker orders of one exchange in the order of time, each filled by one or several trades. `next` puts the next trade into the
 * fields: an object for each of millions of trades would take longer than the trade.
 */
export class MarketTrades {
  /** Milliseconds after `fromMs`, with a fraction; never decreasing, and below the length of the window. */
  offsetMs = 0;
  /** In ticks, at least 1. */
  price = 1;
  /** In hundred-thousandths of the base unit, at least 1. */
  size = 1;
  /** Whether the taker bought. */
  buy = true;
  readonly #order: TradesOrder;
  readonly #market = new MarketPrice();
  /** Ticks in one of the market's quote units. */
  readonly #scale: number;
  /** The share of all orders that have arrived before each hour of the window. */
  readonly #shares: Float64Array;
  #hour = 0;
  /** The share of all orders that have arrived. */
  #position = 0;
  #distance = 0;
  #left: number;
  #fills = 0;

  constructor(order: TradesOrder) {
    const { rows, fromMs, startPrice } = order;
    assert(Number.isSafeInteger(rows) && rows >= 0, 'rows must be a whole number');
    this.#order = order;
    this.#left = rows;
    this.#shares = sharesOf(order);
    this.#scale = order.ticks * (startPrice === undefined ? 1 : startPrice / this.#market.at(fromMs));
  }

  next(): void {
    if (this.#fills === 0) this.#takerOrder();
    // A later fill of an order may meet the next level of the book.
    else if (this.#order.random() < 0.2) this.price = this.buy ? this.price + 1 : Math.max(1, this.price - 1);
    this.size = drawSize(this.#order.random);
    this.#fills--;
    this.#left--;
  }

  #takerOrder(): void {
    const { random, fromMs, toMs } = this.#order;
    // The next remaining order is an order statistic of as many uniform points, so times come sorted without a sort.
    const ordersLeft = Math.max(1, this.#left / MEAN_FILLS);
    this.#position += (1 - this.#position) * (1 - (1 - random()) ** (1 / ordersLeft));
    this.offsetMs = Math.min(toMs - fromMs - 0.001, this.#arrival());
    if (random() < 0.35) this.buy = !this.buy;
    this.#distance = KEPT * this.#distance + STRAYING * (2 * random() - 1);
    const bid = Math.floor(this.#market.at(fromMs + this.offsetMs) * (1 + this.#distance) * this.#scale);
    this.price = Math.max(1, this.buy ? bid + 1 : bid);
    this.#fills = 1;
    while (this.#fills < MAX_FILLS && random() < MORE_FILLS) this.#fills++;
  }

  /** When the share of the orders has arrived that `#position` says. It is monotone, so times never go backwards. */
  #arrival(): number {
    const shares = this.#shares;
    while (this.#hour < shares.length - 2 && shares[this.#hour + 1] <= this.#position) this.#hour++;
    const [before, after] = [shares[this.#hour], shares[this.#hour + 1]];
    return (this.#hour + (this.#position - before) / (after - before)) * HOUR_MS;
  }
}

/** Yields the trades; the object is the same each time. */
export function* marketTrades(order: TradesOrder): Generator<MarketTrades> {
  const trades = new MarketTrades(order);
  for (let index = 0; index < order.rows; index++) {
    trades.next();
    yield trades;
  }
}

/** The market's activity by the hour, on this exchange and day a little more or less. */
function sharesOf({ fromMs, toMs, random }: TradesOrder): Float64Array {
  const hours = (toMs - fromMs) / HOUR_MS;
  assert(Number.isInteger(hours) && hours > 0, 'the window must be whole hours');
  const shares = new Float64Array(hours + 1);
  for (let hour = 0; hour < hours; hour++) {
    shares[hour + 1] = shares[hour] + activityAt(fromMs + hour * HOUR_MS) * (0.8 + 0.4 * random());
  }
  return shares.map((share) => share / shares[hours]);
}

/** 20 base units. */
const MAX_SIZE = 2_000_000;
const ROUND_LOTS = [100, 100, 200, 500, 1000, 1000, 2000, 5000, 10_000, 50_000];

/** Mostly very small, sometimes round lots, rarely very large: the distribution of real order books. */
function drawSize(random: () => number): number {
  const u = random();
  if (u < 0.12) return ROUND_LOTS[Math.floor((u / 0.12) * ROUND_LOTS.length)];
  const tail = 1 / (u * u) - 1;
  return Math.min(MAX_SIZE, 5 + Math.floor(900 * random() * (0.05 + tail)));
}
