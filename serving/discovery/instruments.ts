/**
 * The instruments that callers may name: those of the settings, and everything that the database ever had. They are read again
 * when a request names one and the last look is older than a second; a request without one costs nothing.
 */
import { defaultInstrument, otherInstrumentsOf } from '../../shared/config/instruments.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { closestName } from '../../shared/nearest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { type Instrument, instrumentDataset, slotNumber } from '../../shared/registry/instruments.ts';
import { type FindInstrument, instrumentOf } from '../contract/instruments.ts';
import { type ContractFault, Problem } from '../contract/problems.ts';
import type { Caller } from '../http/caller.ts';
import { contractProblem } from '../http/request.ts';

const MAX_AGE_MS = 1000;
/** The number of a configured instrument that has none yet: no row of the catalog has it. */
const UNCLAIMED = 0;

export class Instruments {
  readonly #settings: Settings;
  readonly #load: () => Promise<readonly DatasetDefinition[]>;
  #registered: readonly DatasetDefinition[] | undefined;
  #loadedAt = Number.NEGATIVE_INFINITY;
  #loading: Promise<void> | undefined;

  constructor(settings: Settings, load: () => Promise<readonly DatasetDefinition[]>) {
    this.#settings = settings;
    this.#load = load;
  }

  /** Finds the instruments by name, as they are now. @throws Problem QUERY_BACKEND_ERROR where they were never read */
  async finder(caller: Pick<Caller, 'covers'>): Promise<FindInstrument> {
    if (performance.now() - this.#loadedAt > MAX_AGE_MS) await this.#refresh();
    return (dataset, name) => {
      const all = this.#of(dataset);
      const found = all.find(({ instrument }) => instrument === name);
      const byDefault = defaultInstrument(this.#settings, dataset)!;
      if (name === byDefault) return dataset;
      if (found) return found;
      const shown = all.filter((one) => caller.covers(one)).map(({ instrument }) => instrument!);
      const nearest = closestName(name, [...(caller.covers(dataset) ? [byDefault] : []), ...shown]);
      return `must be an instrument of ${dataset.key} (GET /v1/instruments lists them)${
        nearest === undefined ? '' : `; did you mean ${nearest}?`
      }`;
    };
  }

  /**
   * The dataset of a path, or its instrument that a parameter names, if the caller's key covers it.
   * @throws Problem QUERY_CONTRACT_ERROR, AUTH_DATASET_NOT_COVERED
   */
  async ofPath<D extends DatasetDefinition>(caller: Caller, dataset: D, name: string | undefined): Promise<D> {
    const faults: ContractFault[] = [];
    const find = name === undefined ? undefined : await this.finder(caller);
    // An instrument has the key of its dataset.
    const named = (find ? instrumentOf(dataset, name, { find, pointer: '?instrument', faults }) : dataset) as D;
    if (faults.length > 0) throw contractProblem(faults);
    caller.requireDatasets([named]);
    return named;
  }

  /** The others of a dataset: those that were ever claimed, and the configured ones that have not been yet. */
  #of(dataset: DatasetDefinition): DatasetDefinition[] {
    const claimed = this.#registered!.filter(({ base }) => base === dataset);
    const names = new Set<string | undefined>(claimed.map(({ instrument }) => instrument));
    const configured = otherInstrumentsOf(this.#settings, dataset).filter(({ symbol }) => !names.has(symbol));
    return [...claimed, ...configured.map(({ symbol }) => unclaimed(dataset, symbol))];
  }

  async #refresh(): Promise<void> {
    this.#loading ??= this.#read().finally(() => {
      this.#loading = undefined;
    });
    await this.#loading;
  }

  async #read(): Promise<void> {
    const at = performance.now();
    try {
      this.#registered = await this.#load();
      this.#loadedAt = at;
    } catch (cause) {
      // Those that were read before still have their numbers; the read itself meets the database that does not answer.
      if (this.#registered) return;
      throw new Problem('QUERY_BACKEND_ERROR', 'The database does not answer. Try again later.', { cause });
    }
  }
}

export const unclaimed = (base: DatasetDefinition, symbol: Instrument): DatasetDefinition =>
  instrumentDataset(base, symbol, slotNumber(base, UNCLAIMED));
