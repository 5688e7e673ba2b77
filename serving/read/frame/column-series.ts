/** The series of a column: of a dataset with many series it has one, which its filters name. */
import { assert } from '../../../shared/errors.ts';
import { closestName } from '../../../shared/nearest.ts';
import type { Filter } from '../../contract/filters.ts';
import type { FrameColumn } from '../../contract/frame.ts';
import { Problem } from '../../contract/problems.ts';
import { text } from '../../db/pg-messages.ts';
import type { Series, Snapshot } from '../snapshot/session.ts';

const MAX_NAMED_SERIES = 5;

/** A column of a dataset with many series must have one of them. */
export function checkSeries(
  column: FrameColumn,
  at: number,
  snapshot: Snapshot,
  admitted: readonly (readonly string[])[],
): void {
  if (admitted.length === 1 || snapshot.series.length === 0) return;
  const { seriesKey, fields } = column.dataset.aligned;
  const described = (key: readonly string[]) =>
    seriesKey
      .map((name, index) => ({ name, value: key[index] }))
      .filter(({ name }) => fields.find((field) => field.name === name)?.dtype !== 'json') // takes no filter
      .map(({ name, value }) => `${name} ${value}`)
      .join(', ');
  const pointer = `/columns/${at}/filter`;
  const fault = (message: string) =>
    new Problem('QUERY_CONTRACT_ERROR', `${pointer} ${message}.`, {
      errors: [{ pointer, message }],
    });
  if (admitted.length > 1) {
    const some = admitted.slice(0, MAX_NAMED_SERIES).map(described).join('; ');
    const more = admitted.length > MAX_NAMED_SERIES ? `; and ${admitted.length - MAX_NAMED_SERIES} more` : '';
    throw fault(`must name one series of ${column.dataset.key}, and admits ${admitted.length}: ${some}${more}`);
  }
  const hints = column.filters.flatMap(({ field, equals }) => {
    const index = seriesKey.indexOf(field.name);
    const known = [...new Set(snapshot.series.map(({ key }) => key[index]))];
    return (equals ?? []).flatMap((value) => {
      if (index < 0 || known.includes(value)) return [];
      const meant = closestName(value, known);
      return [
        meant === undefined ? `no ${field.name} is ${value}` : `no ${field.name} is ${value} (did you mean ${meant}?)`,
      ];
    });
  });
  const why = hints.length > 0 ? `: ${hints.join('; ')}` : '';
  throw fault(`names no proved series of ${column.dataset.key}${why}`);
}

/**
 * The filters of a column, and one on the source of its series. Coverage and warnings go by source, and a filter on another
 * field may name the series, too.
 */
export function filtersOfSeries({ dataset, filters }: FrameColumn, [series]: readonly Series[]): readonly Filter[] {
  const { seriesKey, fields } = dataset.aligned;
  const field = fields.find(({ name }) => name === 'source_id');
  const source = series?.key[seriesKey.indexOf('source_id')];
  if (source === undefined) return filters;
  assert(field !== undefined, `rows of ${dataset.key} name their source`);
  const clause = { field: field.name, op: 'eq', value: source } as const;
  const test: Filter['test'] = (params) => `(${field.sql}) = ${params.add(text(source))}`;
  return [...filters, { field, clause, equals: [source], test }];
}
