/** What somebody who mistyped a name probably meant. */

/** Longer texts are no slips of the pen. */
const MAX_LENGTH = 200;

/** How many letters are to be added, left out, changed or swapped with their neighbour to make one text of the other. */
export function distance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const line = [row];
    for (let column = 1; column <= b.length; column++) {
      const changed = last[column - 1] + (a[row - 1] === b[column - 1] ? 0 : 1);
      line[column] = Math.min(last[column] + 1, line[column - 1] + 1, changed);
      const isSwapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1];
      if (isSwapped) line[column] = Math.min(line[column], before[column - 2] + 1);
    }
    before = last;
    last = line;
  }
  return last[b.length];
}

/** The name that is most like it, if one is: a letter in three may differ. */
export function nearest(text: string, names: readonly string[]): string | undefined {
  if (text.length > MAX_LENGTH) return undefined;
  const lower = text.toLowerCase();
  let best: string | undefined;
  let least = Math.floor(text.length / 3) + 0.5;
  for (const name of names) {
    const far = distance(lower, name.toLowerCase());
    if (far < least) {
      best = name;
      least = far;
    }
  }
  return best;
}
