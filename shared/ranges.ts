/** Half-open ranges of integers, [from, to), and PostgreSQL's text form of them (int8range, int8multirange). */

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** Parses `{[1,5),[7,9)}`, the form to which the server normalises int8 multiranges. */
export function parseMultirange(text: string): Range[] {
  return [...text.matchAll(/\[(-?\d+),(-?\d+)\)/g)].map(([, from, to]) => ({ from: Number(from), to: Number(to) }));
}

/** The text form of sorted, disjoint ranges. */
export const multirangeText = (ranges: readonly Range[]): string =>
  `{${ranges.map(({ from, to }) => `[${from},${to})`).join(',')}}`;

/** The parts of `ranges` inside [from, to). */
export function clip(ranges: readonly Range[], from: number, to: number): Range[] {
  return ranges
    .map((range) => ({ from: Math.max(range.from, from), to: Math.min(range.to, to) }))
    .filter((range) => range.from < range.to);
}

/** The length of all ranges together. */
export const lengthOf = (ranges: readonly Range[]): number => ranges.reduce((sum, { from, to }) => sum + to - from, 0);

/** What of the gaps lies in `within`, sorted; all of it where nobody says what is expected. */
export const expectedOf = <G extends Range>(gaps: readonly G[], within: readonly Range[] | undefined): readonly G[] =>
  within === undefined
    ? gaps
    : gaps.flatMap((gap) =>
        within.flatMap(({ from, to }) => clip([gap], from, to).map((part) => ({ ...gap, ...part }))),
      );

/** The gaps between sorted, disjoint ranges. */
export function gapsBetween(ranges: readonly Range[]): Range[] {
  const gaps: Range[] = [];
  for (let i = 1; i < ranges.length; i++) gaps.push({ from: ranges[i - 1].to, to: ranges[i].from });
  return gaps;
}

/** The union of the ranges, sorted and disjoint. */
export function joined(ranges: readonly Range[]): Range[] {
  const sorted = ranges.toSorted((a, b) => a.from - b.from);
  const union: Range[] = [];
  for (const range of sorted) {
    const last = union.at(-1);
    if (last && range.from <= last.to) union[union.length - 1] = { from: last.from, to: Math.max(last.to, range.to) };
    else union.push(range);
  }
  return union;
}
