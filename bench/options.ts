/** The options of a benchmark: counts, choices and `--json`. A mistake gives a sentence instead of a stack trace. */
import { parseArgs } from 'node:util';

/** A mistake on the command line. The bench prints it as one sentence with the options that exist, and exits with 2. */
export class BenchUsage extends Error {}

interface OptionTable<C extends string, T extends string> {
  /** Options with a whole number: the default, and the smallest allowed value. */
  readonly counts: Readonly<Record<C, readonly [standard: number, least: number]>>;
  /** Options with one of several words; undefined when not given. */
  readonly choices?: Readonly<Record<T, readonly string[]>>;
}

export type Options<C extends string, T extends string> = { readonly json: boolean } & Readonly<Record<C, number>> &
  Readonly<Record<T, string | undefined>>;

/** @throws BenchUsage */
export function optionsOf<C extends string, T extends string = never>(
  argv: readonly string[],
  { counts, choices = {} as Record<T, readonly string[]> }: OptionTable<C, T>,
): Options<C, T> {
  const countsByName = Object.entries<readonly [number, number]>(counts);
  const choicesByName = Object.entries<readonly string[]>(choices);
  const refuse = (why: string): never => {
    const known = [
      ...countsByName.map(([name, [standard]]) => `--${name} N (${standard.toLocaleString('en-US')})`),
      ...choicesByName.map(([name, words]) => `--${name} ${words.join('|')}`),
      '--json',
    ];
    throw new BenchUsage(`${why}\nOptions: ${known.join(', ')}`);
  };
  const given = valuesOf(
    argv,
    [...countsByName, ...choicesByName].map(([name]) => name),
    refuse,
  );
  const found: Record<string, string | number | boolean | undefined> = { json: given.json === true };
  for (const [name, [standard, least]] of countsByName) {
    const text = given[name] ?? String(standard);
    if (!/^\d{1,9}$/.test(String(text)) || Number(text) < least) {
      refuse(`--${name} must be a whole number from ${least} on, got ${JSON.stringify(text)}`);
    }
    found[name] = Number(text);
  }
  for (const [name, words] of choicesByName) {
    const text = given[name] as string | undefined;
    if (text !== undefined && !words.includes(text))
      refuse(`--${name} must be one of ${words.join(', ')}, got ${JSON.stringify(text)}`);
    found[name] = text;
  }
  return found as Options<C, T>;
}

function valuesOf(
  argv: readonly string[],
  names: readonly string[],
  refuse: (why: string) => never,
): Readonly<Record<string, string | boolean | undefined>> {
  const options = Object.fromEntries(names.map((name) => [name, { type: 'string' as const }]));
  try {
    return parseArgs({ args: [...argv], options: { ...options, json: { type: 'boolean' as const } } }).values;
  } catch (error) {
    return refuse((error as Error).message.replace(/\. To specify.*$/s, ''));
  }
}
