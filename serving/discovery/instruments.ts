/**
 * The instruments that callers may name: those of the settings, and everything that the database ever had. They are looked
 * up when a request names one that is not known yet; a request without one costs nothing.
 */
import { z } from 'zod';
import { type DayInterval, defaultInstrument, otherInstrumentsOf } from '../../shared/config/instruments.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { DAY, DAY_MS, dayKey, parseDay } from '../../shared/dates.ts';
import { closestName, nearestNames } from '../../shared/nearest.ts';
import { clip, parseMultirange, type Range } from '../../shared/ranges.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import {
  type Instrument,
  instrumentDataset,
  parseInstrument,
  SYMBOL_RULE,
  slotNumber,
} from '../../shared/registry/instruments.ts';
import { listedRanges } from '../../shared/status/instruments.ts';
import { type FindInstrument, INSTRUMENT_DATASETS, INSTRUMENT_POINTER, instrumentOf } from '../contract/instruments.ts';
import { type ContractFault, Problem } from '../contract/problems.ts';
import type { Caller } from '../http/caller.ts';
import { contractProblem } from '../http/request.ts';
import type { Session } from '../read/snapshot/session.ts';
import { count, flag, textField } from './schemas.ts';

interface KnownInstrument {
  readonly dataset: DatasetDefinition;
  readonly symbol: string;
  readonly isDefault: boolean;
  readonly isConfigured: boolean;
  /** When it is listed, by the operator's word. */
  readonly stated: readonly DayInterval[];
}

const day = (doc: string) => z.string().regex(DAY).nullable().describe(doc);
const currency = (doc: string) => z.string().nullable().describe(`${doc}; null, where nobody states it.`);

const interval = z.strictObject({
  from: day('Its first day: as stated, otherwise the first proved one.'),
  to: day('Its last day as stated; null: nobody says that it ended.'),
  first_proved: day('First proved day in it.'),
  last_proved: day('Last proved day in it.'),
});

export const instrumentsAnswer = z.strictObject({
  instruments: z.array(
    z.strictObject({
      dataset: z.enum(INSTRUMENT_DATASETS),
      instrument: textField('The exchange’s symbol.'),
      base: currency('What is bought and sold'),
      quote: currency('What it is paid in'),
      default: flag('Whether requests mean it that name none.'),
      configured: flag('Whether it is still read.'),
      rows: count('Proved trades.'),
      intervals: z.array(interval).describe('When the exchange lists it. Outside of them no day is expected.'),
    }),
  ),
});

/** Describes the instruments that are configured or were ever proved. */
export async function readInstruments(
  session: Session,
  known: readonly KnownInstrument[],
): Promise<z.input<typeof instrumentsAnswer>['instruments']> {
  if (known.length === 0) return [];
  const numbers = known.map(({ dataset }) => dataset.number).join();
  const rows = await session.rows(
    `select c.dataset_id::text, c.proved::text, p.rows::text, p.partitions::text from coverage c, lateral (
       select count(*) as partitions, coalesce(sum(rows) filter (where state = 'proved'), 0) as rows
       from partitions p where p.dataset_id = c.dataset_id) p
     where c.dataset_id in (${numbers})`,
  );
  const found = new Map(rows.map(([number, ...facts]) => [Number(number), facts]));
  return known.flatMap(({ dataset, symbol, isDefault, isConfigured, stated }) => {
    const [proved, count, partitions] = found.get(dataset.number) ?? ['{}', '0', '0'];
    if (!isConfigured && partitions === '0') return [];
    return {
      dataset: dataset.key as DatasetKey,
      instrument: symbol,
      ...(dataset.trades?.instruments.pairOf?.(symbol) ?? { base: null, quote: null }),
      ...{ default: isDefault, configured: isConfigured, rows: Number(count) },
      intervals: intervalsOf(dataset, stated, parseMultirange(proved!)),
    };
  });
}

function intervalsOf(dataset: DatasetDefinition, stated: readonly DayInterval[], proved: readonly Range[]) {
  const offsetMs = dataset.partition.kind === 'file_day' ? dataset.partition.startOffsetMs : 0;
  const dayAt = (ms: number) => dayKey(ms - offsetMs);
  const startOf = (text: string) => parseDay(text)! + offsetMs;
  // Without a statement the one interval is that of what is proved.
  const all: readonly DayInterval[] =
    stated.length > 0 ? stated : proved.length > 0 ? [{ from: undefined, to: undefined }] : [];
  return all.map(({ from, to }) => {
    const start = from === undefined ? Number.NEGATIVE_INFINITY : startOf(from);
    const end = to === undefined ? Number.POSITIVE_INFINITY : startOf(to) + DAY_MS;
    const within = clip(proved, start, end);
    const first = within.length === 0 ? null : dayAt(within[0].from);
    const last = within.length === 0 ? null : dayAt(within[within.length - 1].to - 1);
    return { from: from ?? first, to: to ?? null, first_proved: first, last_proved: last };
  });
}

/** Names that a message offers where none is like the given one. */
const NEAREST = 3;
/** The number of a configured instrument that has none yet: no row of the catalog has it. */
const UNCLAIMED = 0;

export class Instruments {
  readonly #settings: Settings;
  readonly #load: () => Promise<readonly DatasetDefinition[]>;
  #registered: readonly DatasetDefinition[] = [];
  #loading: Promise<void> | undefined;

  constructor(settings: Settings, load: () => Promise<readonly DatasetDefinition[]>) {
    this.#settings = settings;
    this.#load = load;
  }

  /**
   * Parses a request that may name instruments. One that nothing was claimed for, as far as this process knows, is looked up
   * once more: it may have been proved a moment ago. A number that was claimed is kept for ever.
   * @throws Problem QUERY_BACKEND_ERROR
   */
  async parse<T>(caller: Pick<Caller, 'covers'>, parse: (find: FindInstrument) => T): Promise<T> {
    let isSure = true;
    const find: FindInstrument = (dataset, name) => {
      if (name === defaultInstrument(this.#settings, dataset)) return dataset;
      const claimed = this.#registered.find(({ base, instrument }) => base === dataset && instrument === name);
      if (claimed) return claimed;
      isSure = false;
      return this.of(dataset).find(({ instrument }) => instrument === name) ?? this.#unknown(caller, dataset, name);
    };
    const parsed = parse(find);
    if (isSure) return parsed;
    await this.refresh();
    return parse(find);
  }

  #unknown(caller: Pick<Caller, 'covers'>, dataset: DatasetDefinition, name: string): string {
    const rule = parseInstrument(name) === undefined ? `, ${SYMBOL_RULE}` : '';
    const shown = [dataset, ...this.of(dataset)].filter((one) => caller.covers(one));
    const names = shown.map(({ instrument }) => instrument ?? defaultInstrument(this.#settings, dataset)!);
    const meant = closestName(name, names);
    const hint =
      meant === undefined
        ? `the nearest are ${nearestNames(name, names, NEAREST).join(', ')}`
        : `did you mean ${meant}?`;
    return `must be an instrument of ${dataset.key} (GET /v1/instruments lists them)${rule}${names.length === 0 ? '' : `; ${hint}`}`;
  }

  /**
   * The dataset of a path, or its instrument that a parameter names, if the caller's key covers it.
   * @throws Problem QUERY_CONTRACT_ERROR, AUTH_DATASET_NOT_COVERED
   */
  async ofPath<D extends DatasetDefinition>(
    caller: Caller,
    dataset: D,
    name: string | undefined,
    pointer = INSTRUMENT_POINTER,
  ): Promise<D> {
    const { named, faults } = await this.parse(caller, (find) => {
      const found: ContractFault[] = [];
      return { named: instrumentOf(dataset, name, { find, pointer, faults: found }), faults: found };
    });
    if (faults.length > 0) throw contractProblem(faults);
    caller.requireDatasets([named]);
    // An instrument has the key of its dataset.
    return named as D;
  }

  /** When the instrument is listed, as far as the operator says. */
  listed(dataset: DatasetDefinition): readonly Range[] | undefined {
    return listedRanges(this.#settings, dataset);
  }

  /** What the caller's key covers of the datasets, the default of each first. @throws Problem QUERY_BACKEND_ERROR */
  async list(caller: Pick<Caller, 'covers'>, datasets: readonly DatasetDefinition[]): Promise<KnownInstrument[]> {
    await this.refresh();
    return datasets.flatMap((base) => {
      const others = new Map(otherInstrumentsOf(this.#settings, base).map((one) => [one.symbol, one.intervals]));
      const byDefault = {
        ...{ dataset: base, symbol: defaultInstrument(this.#settings, base)! },
        ...{ isDefault: true, isConfigured: true, stated: [] },
      };
      const rest = this.of(base).map((dataset) => {
        const stated = others.get(dataset.instrument!);
        const symbol: string = dataset.instrument!;
        return { dataset, symbol, isDefault: false, isConfigured: stated !== undefined, stated: stated ?? [] };
      });
      return [byDefault, ...rest].filter(({ dataset }) => caller.covers(dataset));
    });
  }

  /** The others of a dataset: those that were ever claimed, and the configured ones that have not been yet. */
  of(dataset: DatasetDefinition): DatasetDefinition[] {
    const claimed = this.#registered.filter(({ base }) => base === dataset);
    const names = new Set<string | undefined>(claimed.map(({ instrument }) => instrument));
    const configured = otherInstrumentsOf(this.#settings, dataset).filter(({ symbol }) => !names.has(symbol));
    return [...claimed, ...configured.map(({ symbol }) => unclaimed(dataset, symbol))];
  }

  /** Looks once more. @throws Problem QUERY_BACKEND_ERROR */
  async refresh(): Promise<void> {
    // A look that began before may have missed what is asked for.
    await this.#loading?.catch(() => {});
    this.#loading ??= this.#load().then(
      (registered) => {
        this.#registered = registered;
      },
      (cause) => {
        throw new Problem('QUERY_BACKEND_ERROR', 'The database does not answer. Try again later.', { cause });
      },
    );
    await this.#loading.finally(() => {
      this.#loading = undefined;
    });
  }
}

const unclaimed = (base: DatasetDefinition, symbol: Instrument): DatasetDefinition =>
  instrumentDataset(base, symbol, slotNumber(base, UNCLAIMED));
