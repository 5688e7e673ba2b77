/** PostgreSQL's int8range and int8multirange text, as pairs of numbers: [from, to). */

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** `{[1,5),[7,9)}` -> pairs. The server normalises int8 ranges to this form. */
export function parseMultirange(text: string): Range[] {
  return [...text.matchAll(/\[(-?\d+),(-?\d+)\)/g)].map(([, from, to]) => ({ from: Number(from), to: Number(to) }));
}

/** The parts of `ranges` inside [from, to). */
export function clip(ranges: readonly Range[], from: number, to: number): Range[] {
  return ranges
    .map((range) => ({ from: Math.max(range.from, from), to: Math.min(range.to, to) }))
    .filter((range) => range.from < range.to);
}

/** The holes between the first and the last of sorted, disjoint ranges. */
export function gapsBetween(ranges: readonly Range[]): Range[] {
  const gaps: Range[] = [];
  for (let i = 1; i < ranges.length; i++) gaps.push({ from: ranges[i - 1].to, to: ranges[i].from });
  return gaps;
}

/** What is in any of the ranges, sorted and disjoint. */
export function joined(ranges: readonly Range[]): Range[] {
  const sorted = ranges.toSorted((a, b) => a.from - b.from);
  const runs: Range[] = [];
  for (const range of sorted) {
    const last = runs.at(-1);
    if (last && range.from <= last.to) runs[runs.length - 1] = { from: last.from, to: Math.max(last.to, range.to) };
    else runs.push(range);
  }
  return runs;
}
