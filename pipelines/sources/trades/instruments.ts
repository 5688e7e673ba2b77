/**
 * Instruments of an exchange as one source. The source of a symbol knows nothing of the others: what it yields gets the
 * dataset and the partition keys of its instrument here.
 */
import {
  type DayInterval,
  defaultInstrument,
  isWithin,
  otherInstrumentsOf,
  otherNamed,
} from '../../../shared/config/instruments.ts';
import type { Settings } from '../../../shared/config/settings.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { assert } from '../../../shared/errors.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { dayKeyOf, dayOfKey, windowOf } from '../../../shared/registry/keys.ts';
import type { DecodedItem, FileDayRequest, FileDaySource, OpenedDocument, PublishedDocument } from '../feed-types.ts';
import type { Rechecks } from './rechecks.ts';

/** An instrument that is to be read. */
export interface ReadInstrument {
  readonly dataset: DatasetDefinition;
  readonly symbol: string;
  /** Outside of them no day is expected; none: every day is. */
  readonly intervals: readonly DayInterval[];
}

/** `--instrument all` is every one that the settings name. */
export const ALL_INSTRUMENTS = 'all';

/**
 * The instruments that an option names, the default without one.
 * @throws TidemarkError USAGE for one that the settings do not name
 */
export async function readInstruments(
  named: string | undefined,
  {
    settings,
    base,
    catalog,
  }: { readonly settings: Settings; readonly base: DatasetDefinition; readonly catalog: Catalog },
): Promise<ReadInstrument[]> {
  const byDefault = defaultInstrument(settings, base)!;
  const others = otherInstrumentsOf(settings, base);
  const names =
    named === ALL_INSTRUMENTS ? [byDefault, ...others.map(({ symbol }) => symbol)] : (named?.split(',') ?? [byDefault]);
  const chosen: ReadInstrument[] = [];
  for (const name of new Set(names)) {
    const symbol = otherNamed(settings, base, name);
    const intervals = others.find((one) => one.symbol === symbol)?.intervals ?? [];
    const dataset = symbol === undefined ? base : await catalog.instrument(base, symbol);
    chosen.push({ dataset, symbol: symbol ?? byDefault, intervals });
  }
  return chosen;
}

/** Instruments whose documents come from one source: one each, or several of a document that holds them all. */
export interface InstrumentGroup {
  readonly instruments: readonly [ReadInstrument, ...ReadInstrument[]];
  readonly source: FileDaySource;
  readonly rechecks: Rechecks;
  /** Whether the source's documents hold several instruments: it is then asked for the partitions of all that are read. */
  readonly isJoint: boolean;
}

/** A request with that of the group's own source. */
interface GroupRequest extends FileDayRequest {
  readonly group: InstrumentGroup;
  readonly inner: FileDayRequest;
}

/** The documents of a group that cover the days, both included, without days that are outside the instruments' intervals. */
export function requestsOf(
  group: InstrumentGroup,
  days: { readonly from: string; readonly to: string },
  granularity: FileDayRequest['granularity'],
): FileDayRequest[] {
  return group.source.plan(days.from, days.to, granularity).flatMap((inner): GroupRequest[] => {
    const partitions = group.instruments.flatMap(({ dataset, intervals }) =>
      inner.partitions
        .filter(({ key }) => isWithin(intervals, key))
        .map((window) => (dataset.base ? { ...window, dataset, key: dayKeyOf(dataset, window.key) } : window)),
    );
    return partitions.length > 0 ? [{ ...inner, partitions, group, inner }] : [];
  });
}

/** Any number of groups as one source, for requests of `requestsOf`. @param model of the same exchange */
export function instrumentsSource(base: DatasetDefinition, model: FileDaySource): FileDaySource {
  const asked = (request: FileDayRequest): GroupRequest => {
    assert('group' in request, 'a request of a trade feed knows its instruments');
    return request as GroupRequest;
  };
  const ask = <T>(request: FileDayRequest, what: (source: FileDaySource, inner: FileDayRequest) => Promise<T>) => {
    const { group, inner } = asked(request);
    return group.rechecks.note(request.period, what(group.source, group.isJoint ? request : inner));
  };
  const named = (request: FileDayRequest, document: OpenedDocument) =>
    namedDocument(document, asked(request).group.instruments);
  return {
    datasets: [base],
    granularities: model.granularities,
    plan: model.plan,
    publishedSha256: (request) => ask(request, (source, inner) => source.publishedSha256(inner)),
    openUnlessKnown:
      model.openUnlessKnown &&
      ((request, known) =>
        ask(request, async (source, inner): Promise<PublishedDocument> => {
          const found = await source.openUnlessKnown!(inner, known);
          return found.kind === 'known' ? found : { kind: 'other', document: named(request, found.document) };
        })),
    open: (request) => ask(request, async (source, inner) => named(request, await source.open(inner))),
  };
}

/** The document with the datasets and partition keys of its instruments. */
function namedDocument(document: OpenedDocument, instruments: InstrumentGroup['instruments']): OpenedDocument {
  const named = (item: DecodedItem): DecodedItem => {
    const of = item.dataset ?? instruments[0].dataset;
    if (!of.base) return item;
    const partition = { ...item.partition, key: dayKeyOf(of, item.partition.key) };
    if (item.kind === 'events') return { ...item, dataset: of, partition };
    const { intervals } = instruments.find(({ dataset }) => dataset === of)!;
    return { ...item, dataset: of, partition, facts: { ...item.facts, ...listedAgain(of, intervals, partition.key) } };
  };
  return {
    ...document,
    async *decode(options) {
      for await (const item of document.decode(options)) yield named(item);
    },
    [Symbol.asyncDispose]: () => document[Symbol.asyncDispose](),
  };
}

/** Of a day of any interval but the first. */
function listedAgain(dataset: DatasetDefinition, intervals: readonly DayInterval[], key: string) {
  const from = intervals.slice(1).find((one) => isWithin([one], dayOfKey(key)))?.from;
  return from === undefined ? {} : { listed_from_ms: windowOf(dataset, dayKeyOf(dataset, from)).fromMs };
}
