/** Which instrument of the dataset a partition of the log is of: its key says so. */
import type { ClientBase } from 'pg';
import { parseDay } from '../../shared/dates.ts';
import { claimInstrument } from '../../shared/db/instruments.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { hasInstruments, parseInstrument } from '../../shared/registry/instruments.ts';
import { dayOfKey, instrumentOfKey } from '../../shared/registry/keys.ts';

export class Instruments {
  readonly #client: ClientBase;
  readonly #base: DatasetDefinition;
  readonly #known = new Map<string, DatasetDefinition>();

  constructor(client: ClientBase, base: DatasetDefinition) {
    this.#client = client;
    this.#base = base;
  }

  /** A database that is made again from its log gives numbers anew. A key that is none is the default's, which refuses it. */
  async of(partition: string): Promise<DatasetDefinition> {
    const named = hasInstruments(this.#base) ? instrumentOfKey(partition) : undefined;
    if (named === undefined) return this.#base;
    const known = this.#known.get(named);
    if (known) return known;
    const symbol = parseInstrument(named);
    if (symbol === undefined || parseDay(dayOfKey(partition)) === undefined) return this.#base;
    const dataset = await claimInstrument(this.#client, this.#base, symbol);
    this.#known.set(symbol, dataset);
    return dataset;
  }
}
