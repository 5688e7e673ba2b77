/** The derived lists of docs/cli.md: commands with their options, and error codes. */
import type { Command } from 'commander';
import { COMMON, pathOf, programOf } from '../pipelines/cli/commands/program.ts';
import { ERROR_CODES } from '../shared/errors.ts';

const COMMANDS = [...programOf({ stdout: process.stdout }, () => {}).commands].sort((one, other) =>
  one.name().localeCompare(other.name()),
);
/** What runs: a command, or the subcommands of a group. */
const runnable = (command: Command): readonly Command[] => (command.commands.length > 0 ? command.commands : [command]);
const ALL: readonly Command[] = COMMANDS.flatMap(runnable);

/** As the command's own help shows them. */
function optionLines(command: Command): string[] {
  const help = command.createHelp();
  return command.options
    .filter((option) => !option.hidden && !COMMON.includes(option))
    .map((option) => `- \`${option.flags}\`: ${help.optionDescription(option)}\n`);
}

/** Lines that several commands have -> the commands that have them. */
const SHARED: ReadonlyMap<string, readonly string[]> = new Map(
  [...new Set(ALL.flatMap(optionLines))]
    .map((line) => [line, ALL.filter((one) => optionLines(one).includes(line)).map(nameOf)] as const)
    .filter(([, names]) => names.length > 1),
);

/** `backfill`, `keys add`. */
function nameOf(command: Command): string {
  return pathOf(command).replace(/^\S+ /, '');
}

/** Options of several commands, each once. The page introduces those of every command. */
export function sharedOptions(): string {
  const groups = Map.groupBy(SHARED, ([, names]) => names.map((name) => `\`${name}\``).join(', '));
  return [...groups]
    .sort(([, [[, one]]], [, [[, other]]]) => other.length - one.length)
    .map(([names, lines]) => `${names}:\n\n${lines.map(([line]) => line).join('')}`)
    .join('\n');
}

/** @throws Error for an unknown command. */
export function command(name: string): string {
  const found = COMMANDS.find((known) => known.name() === name);
  if (!found) throw new Error(`docs/cli.md: unknown command ${name}`);
  return runnable(found).map(described).join('\n');
}

function described(command: Command): string {
  const own = optionLines(command).filter((line) => !SHARED.has(line));
  const usage = command.createHelp().commandUsage(command);
  return `\`${usage}\`\n\n${command.description()}\n${own.length > 0 ? `\n${own.join('')}` : ''}`;
}

/** Codes that a script may retry. A failing command prints its own remedy, and shared/errors.ts has all codes. */
export function errorCodes(): string {
  const transient = Object.entries(ERROR_CODES).filter(([, { transient: is }]) => is);
  const codes = transient.map(([code]) => `\`${code}\``).join(', ');
  return `After these the same command may succeed later: ${codes}.\n`;
}
