/** The client: one method a historical route, typed by the dataset it asks for. */
import { DatasetRoutes } from './datasets.ts';
import type { Options } from './requests.ts';
import { Rows } from './rows.ts';
import { Transport, type TransportOptions } from './transport.ts';

export class HistoricalData extends DatasetRoutes {
  readonly #transport: Transport;

  /** @throws TypeError when an option cannot be used. Nothing is sent yet. */
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
