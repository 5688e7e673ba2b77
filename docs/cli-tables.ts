/** The derived lists of docs/cli.md: commands with the names of their options, and error codes. */
import type { Command } from 'commander';
import { COMMON, programOf } from '../pipelines/cli/commands/program.ts';
import { ERROR_CODES } from '../shared/errors.ts';

const COMMANDS = [...programOf({ stdout: process.stdout }, () => {}).commands].sort((one, other) =>
  one.name().localeCompare(other.name()),
);
/** What runs: a command, or the subcommands of a group. */
const runnable = (command: Command): readonly Command[] => (command.commands.length > 0 ? command.commands : [command]);

/** @throws Error for an unknown command. */
export function command(name: string): string {
  const found = COMMANDS.find((known) => known.name() === name);
  if (!found) throw new Error(`docs/cli.md: unknown command ${name}`);
  return runnable(found).map(described).join('\n');
}

/** A line as a manual has it; what each option does is in the command's help. */
function described(command: Command): string {
  const usage = command.createHelp().commandUsage(command).replace(' [options]', '');
  const options = command.options
    .filter((option) => !option.hidden && !COMMON.includes(option))
    .map(({ flags, mandatory }) => (mandatory ? ` ${flags}` : ` [${flags}]`));
  return `\`${usage}${options.join('')}\`\n\n${command.description()}\n`;
}

/** Codes that a script may retry. A failing command prints its own remedy, and shared/errors.ts has all codes. */
export function errorCodes(): string {
  const transient = Object.entries(ERROR_CODES).filter(([, { transient: is }]) => is);
  const codes = transient.map(([code]) => `\`${code}\``).join(', ');
  return `After these the same command may succeed later: ${codes}.\n`;
}
