/** Keys of series in the dictionary: the values of the series key's fields, joined. */

const SEPARATOR = '|';

export const seriesKeyOf = (values: readonly string[]): string => values.join(SEPARATOR);

/** The values back; only the last of them may hold the separator. */
export function seriesValues(key: string, fields: number): string[] {
  const parts = key.split(SEPARATOR);
  return [...parts.slice(0, fields - 1), parts.slice(fields - 1).join(SEPARATOR)];
}
