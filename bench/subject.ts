/** What a benchmark is: one file that compares the product with what one would use instead, in one run. */
import { parseArgs } from 'node:util';
import type { Lab } from './lab.ts';

/** A number is the default of a count; words are a choice, the first of them the default. */
export type OptionTable = Readonly<Record<string, number | readonly [string, ...string[]]>>;

type Values<Table extends OptionTable> = {
  readonly [Name in keyof Table]: Table[Name] extends number ? number : string;
};

interface SubjectOf<Table extends OptionTable> {
  readonly name: string;
  /** What is measured beside what. */
  readonly compares: string;
  readonly options: Table;
  readonly rounds: number;
  /** The options with which it ends within seconds; its figures mean nothing then. */
  readonly smallest: string;
  run(lab: Lab, options: Values<Table>): Promise<void>;
}

export type Subject = Omit<SubjectOf<OptionTable>, 'run'> & {
  run(lab: Lab, options: Readonly<Record<string, number | string>>): Promise<void>;
};

export const subject = <const Table extends OptionTable>(definition: SubjectOf<Table>): Subject =>
  definition as unknown as Subject;

/** A mistake on the command line. */
export class BenchUsage extends Error {}

export interface Chosen {
  readonly options: Readonly<Record<string, number | string>>;
  readonly rounds: number;
  readonly json: boolean;
}

/** @throws BenchUsage */
export function chosenOptions({ options, rounds }: Subject, argv: readonly string[]): Chosen {
  const table: OptionTable = { ...options, rounds };
  const refuse = (why: string): never => {
    throw new BenchUsage(`${why}\nOptions: ${[...Object.entries(table).map(described), '--json'].join(', ')}`);
  };
  const given = valuesOf(argv, Object.keys(table), refuse);
  const chosen = Object.entries(table).map(([name, standard]) => {
    const text = given[name];
    if (typeof standard !== 'number') {
      if (text !== undefined && !standard.includes(text))
        refuse(`--${name} must be one of ${standard.join(', ')}, got ${JSON.stringify(text)}`);
      return [name, text ?? standard[0]];
    }
    if (text !== undefined && !/^[1-9]\d{0,8}$/.test(text))
      refuse(`--${name} must be a whole number from 1 on, got ${JSON.stringify(text)}`);
    return [name, Number(text ?? standard)];
  });
  const values = Object.fromEntries(chosen);
  return { options: values, rounds: values.rounds, json: given.json !== undefined };
}

const described = ([name, standard]: [string, OptionTable[string]]) =>
  typeof standard === 'number'
    ? `--${name} N (${standard.toLocaleString('en-US')})`
    : `--${name} ${standard.join('|')}`;

function valuesOf(
  argv: readonly string[],
  names: readonly string[],
  refuse: (why: string) => never,
): Readonly<Record<string, string | undefined>> {
  const options = Object.fromEntries(names.map((name) => [name, { type: 'string' as const }]));
  try {
    const { json, ...values } = parseArgs({
      args: [...argv],
      options: { ...options, json: { type: 'boolean' as const } },
    }).values as Record<string, string | undefined> & { json?: boolean };
    return { ...values, ...(json && { json: 'yes' }) };
  } catch (error) {
    return refuse((error as Error).message.replace(/\. To specify.*$/s, ''));
  }
}
