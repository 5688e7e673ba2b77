/** The operators of a filter, as the contract describes them, for a cell that is not null. */

/** @param read what a value of the filter is, to be compared with the cell. */
export function compares<T extends bigint | number | string>(
  cell: T,
  op: string,
  value: unknown,
  read: (value: unknown) => T,
): boolean {
  if (value === null) return op === 'ne';
  switch (op) {
    case 'eq':
      return cell === read(value);
    case 'ne':
      return cell !== read(value);
    case 'gt':
      return cell > read(value);
    case 'gte':
      return cell >= read(value);
    case 'lt':
      return cell < read(value);
    case 'lte':
      return cell <= read(value);
    case 'in':
      return (value as unknown[]).some((one) => cell === read(one));
    default:
      return !(value as unknown[]).some((one) => cell === read(one));
  }
}
