/** The client of the historical routes, one method for each, typed by its dataset; of frames, which join datasets; of instruments, and of the conditions of days. */
import type { ConditionsRequest, DayCondition } from './conditions.ts';
import { DatasetRoutes } from './datasets.ts';
import type { FrameRequest, FrameRow } from './frames.ts';
import type { Instrument, TradesKey } from './instruments.ts';
import type { Options } from './requests.ts';
import { type FrameAnswer, Rows } from './rows.ts';
import { Transport, type TransportOptions } from './transport.ts';

export class HistoricalData extends DatasetRoutes {
  readonly #transport: Transport;

  /** Sends nothing yet. @throws TypeError for an invalid option. */
  constructor(options: TransportOptions) {
    super();
    this.#transport = new Transport(options);
  }

  /** Columns of several datasets on one grid of time. POST /v1/frame */
  frame<const Name extends string>(
    request: FrameRequest<Name>,
    options?: Options,
  ): Rows<FrameRow<Name>, FrameAnswer<FrameRow<Name>>> {
    return new Rows({ transport: this.#transport, path: '/v1/frame', body: request, signal: options?.signal });
  }

  /** Instruments that are read or ever were, as far as the key covers them. GET /v1/instruments @throws HistoricalDataError */
  async instruments(
    request: { readonly dataset?: TradesKey | undefined } = {},
    { signal }: Options = {},
  ): Promise<readonly Instrument[]> {
    const path = `/v1/instruments${request.dataset === undefined ? '' : `?dataset=${request.dataset}`}`;
    const answer = await this.#get<{ readonly instruments: readonly Instrument[] }>(path, signal);
    return answer.instruments;
  }

  /** What each day of a dataset is worth, both days included. GET /v1/conditions @throws HistoricalDataError */
  async conditions(request: ConditionsRequest, { signal }: Options = {}): Promise<readonly DayCondition[]> {
    const given = Object.entries(request).filter(([, value]) => value !== undefined);
    const path = `/v1/conditions?${new URLSearchParams(given)}`;
    const answer = await this.#get<{ readonly conditions: readonly DayCondition[] }>(path, signal);
    return answer.conditions;
  }

  #get<T>(path: string, signal: AbortSignal | undefined): Promise<T> {
    return this.#transport.json<T>({ method: 'GET', path, headers: { Accept: 'application/json' }, signal });
  }

  protected override rows<R>(path: string, body: object, options: Options | undefined): Rows<R> {
    return new Rows<R>({
      transport: this.#transport,
      path: `/v1/historical/${path}`,
      body,
      signal: options?.signal,
    });
  }
}
