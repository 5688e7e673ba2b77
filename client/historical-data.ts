/** The client of the historical routes: one method for each route, typed by its dataset. */
import { DatasetRoutes } from './datasets.ts';
import type { Options } from './requests.ts';
import { Rows } from './rows.ts';
import { Transport, type TransportOptions } from './transport.ts';

export class HistoricalData extends DatasetRoutes {
  readonly #transport: Transport;

  /** Sends nothing yet. @throws TypeError for an invalid option. */
  constructor(options: TransportOptions) {
    super();
    this.#transport = new Transport(options);
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
