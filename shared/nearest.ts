/** What a misspelt name was meant to be: of a setting, a command, an option, a route or a key of a request. */

/** A longer name is no misspelling and gets no hint. */
const MAX_NAME_LENGTH = 200;

/** The number of letters to add, remove, change or swap with the next one to turn one text into the other. */
export function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const changed = last[column - 1] + (a[row - 1] === b[column - 1] ? 0 : 1);
      current[column] = Math.min(last[column] + 1, current[column - 1] + 1, changed);
      const isSwapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1];
      if (isSwapped) current[column] = Math.min(current[column], before[column - 2] + 1);
    }
    before = last;
    last = current;
  }
  return last[b.length];
}

/** The most similar names, the nearest first. */
export function nearestNames(text: string, names: readonly string[], count: number): string[] {
  const given = text.slice(0, MAX_NAME_LENGTH).toLowerCase();
  const distances = names.map((name) => ({ name, far: editDistance(given, name.toLowerCase()) }));
  return distances
    .sort((a, b) => a.far - b.far)
    .slice(0, count)
    .map(({ name }) => name);
}

/** A shorter beginning of a name says too little. */
const MIN_BEGINNING = 3;

/** The only name that begins with the text, else the most similar one, if at most one letter in three differs. */
export function closestName(text: string, names: readonly string[]): string | undefined {
  if (text.length > MAX_NAME_LENGTH) return undefined;
  const lower = text.toLowerCase();
  const begun = names.filter((name) => lower.length >= MIN_BEGINNING && name.toLowerCase().startsWith(lower));
  if (begun.length === 1) return begun[0];
  let best: string | undefined;
  let least = Math.floor(text.length / 3) + 0.5;
  for (const name of names) {
    const far = editDistance(lower, name.toLowerCase());
    if (far < least) {
      best = name;
      least = far;
    }
  }
  return best;
}
