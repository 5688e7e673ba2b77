/** The derived lists of docs/cli.md: commands with their options, and error codes. */
import { type CommandSpec, commandHelp, usageLine } from '../pipelines/cli/options.ts';
import * as specs from '../pipelines/cli/specs.ts';
import { ERROR_CODES } from '../shared/errors.ts';

/** By name: Node sorts a module's exports, vitest does not. */
const SPECS: readonly CommandSpec[] = Object.values<CommandSpec>(specs).sort((one, other) =>
  one.name.localeCompare(other.name),
);

/** Options as the command's own help shows them: two spaces, the option, two or more spaces, what it does. */
const optionLines = (spec: CommandSpec): string[] =>
  [...commandHelp(spec).matchAll(/^ {2}(--\S+(?: \S+)?) {2,}(.+)$/gm)].map(
    ([, option, what]) => `- \`${option}\`: ${what}\n`,
  );

/** Lines that several commands have -> the commands that have them. */
const SHARED: ReadonlyMap<string, readonly string[]> = new Map(
  [...new Set(SPECS.flatMap(optionLines))]
    .map((line) => [line, SPECS.filter((spec) => optionLines(spec).includes(line)).map(({ name }) => name)] as const)
    .filter(([, names]) => names.length > 1),
);

/** Options of several commands, each once. The page introduces those of every command. */
export function sharedOptions(): string {
  const some = [...SHARED].filter(([, names]) => names.length < SPECS.length);
  const groups = Map.groupBy(some, ([, names]) => names.map((name) => `\`${name}\``).join(', '));
  return [...groups]
    .sort(([, [[, one]]], [, [[, other]]]) => other.length - one.length)
    .map(([names, lines]) => `${names}:\n\n${lines.map(([line]) => line).join('')}`)
    .join('\n');
}

/** @throws Error for an unknown command. */
export function command(name: string): string {
  const spec = SPECS.find((known) => known.name === name);
  if (!spec) throw new Error(`docs/cli.md: unknown command ${name}`);
  const own = optionLines(spec).filter((line) => !SHARED.has(line));
  const optional = Object.values(spec.options).some(({ required }) => !required);
  const required = Object.fromEntries(Object.entries(spec.options).filter(([, option]) => option.required));
  const usage = `${usageLine({ ...spec, options: required })}${optional ? ' [options]' : ''}`;
  return `\`${usage}\`\n\n${spec.doc}\n${own.length > 0 ? `\n${own.join('')}` : ''}`;
}

/** Codes that a script may retry. A failing command prints its own remedy, and shared/errors.ts has all codes. */
export function errorCodes(): string {
  const transient = Object.entries(ERROR_CODES).filter(([, { transient: is }]) => is);
  const codes = transient.map(([code]) => `\`${code}\``).join(', ');
  return `After these the same command may succeed later: ${codes}.\n`;
}
