/** The command line: `COMMANDS` as commander's commands, and every setting as a flag of each. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command, CommanderError, Option } from 'commander';
import { SETTINGS, type SettingName } from '../../../shared/config/settings.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { closestName } from '../../../shared/nearest.ts';
import { EXIT, type Io, PROJECT_ROOT } from '../io.ts';
import { flag, type ParsedCommand } from '../options.ts';
import { COMMANDS, type CommandGroup, type RunnableCommand } from './index.ts';

/** A command with what was typed for it. */
export interface Chosen {
  readonly runnable: RunnableCommand;
  readonly command: Command;
}

/** The flag of `SVC_HTTP_PORT` is `--http-port`. */
export const flagOf = (name: SettingName): string => name.slice('SVC_'.length).toLowerCase().replaceAll('_', '-');

const SETTING_NAMES = Object.keys(SETTINGS) as SettingName[];

/** Options of every command. */
export const COMMON: readonly Option[] = [
  flag('json', 'Answer as one JSON object on standard output (docs/cli.md lists its fields).'),
  flag('no-progress', 'Show no progress line, even on a terminal.'),
];

class SettingFlag extends Option {
  readonly setting: SettingName;

  constructor(setting: SettingName) {
    super(`--${flagOf(setting)} <value>`);
    this.setting = setting;
    this.hideHelp();
  }
}

/** An option of the command's own goes before a setting of the same name. */
function addSettings(command: Command): void {
  const own = new Set(command.options.map((option) => option.name()));
  for (const name of SETTING_NAMES) if (!own.has(flagOf(name))) command.addOption(new SettingFlag(name));
}

/** @param choose receives the command that was called, after its grammar was checked */
export function programOf(io: Pick<Io, 'stdout'>, choose: (chosen: Chosen) => void): Command {
  const { version } = JSON.parse(readFileSync(join(PROJECT_ROOT, 'package.json'), 'utf8')) as { version: string };
  const program = new Command('./tidemark')
    .usage('<command> [options]')
    .version(`tidemark ${version}`, '-V, --version', 'Show the release.')
    .helpOption('-h, --help', 'Show this help.')
    .helpCommand(false)
    .exitOverride()
    // Faults are thrown and reported as those of the commands are.
    .configureOutput({
      writeOut: (text) => io.stdout.write(text),
      writeErr: (text) => io.stdout.write(text),
      outputError: () => {},
      getOutHelpWidth: () => io.stdout.columns ?? LINE,
    })
    .configureHelp({
      subcommandTerm: (command) => command.name(),
      subcommandDescription: (command) => command.description().split('. ')[0].replace(/\.$/, ''),
      optionDescription: (option) => `${option.description}${option.mandatory ? ' Required.' : ''}${choicesOf(option)}`,
    })
    .addHelpText('after', '\n`./tidemark help <command>` has the details.')
    .addHelpText(
      'afterAll',
      '\nEvery setting of .env.example is a flag of every command: SVC_HTTP_PORT is --http-port.',
    );
  const add = (parent: Command, runnable: RunnableCommand, isDefault = false) => {
    const command = parent.command(runnable.grammar, { isDefault }).description(runnable.doc);
    for (const option of [...(runnable.options ?? []), ...COMMON]) command.addOption(option);
    command.action(() => choose({ runnable, command }));
  };
  const addGroup = (group: CommandGroup) => {
    const parent = withSettings(program.command(group.grammar).description(group.doc).helpCommand(false));
    for (const [at, one] of group.subcommands.entries()) add(parent, one, at === 0 && group.firstIsDefault);
  };
  for (const [name, commands] of Object.entries(COMMANDS)) {
    program.commandsGroup(`${name}:`);
    for (const one of commands) 'subcommands' in one ? addGroup(one) : add(program, one);
  }
  return withSettings(program);
}

/** Longest line of help off a terminal. */
const LINE = 100;

const choicesOf = ({ argChoices }: Option) => (argChoices ? ` One of ${argChoices.join(', ')}.` : '');

/** Adds the settings to the one subcommand that is called: thousands of options would be made for nothing. */
const withSettings = (parent: Command): Command =>
  parent.hook('preSubcommand', (_, command) => {
    if (command.commands.length === 0) addSettings(command);
  });

/**
 * @returns what is to be run, or the exit code where that was to show help or version
 * @throws TidemarkError USAGE; its message names the fault.
 */
export function parse(argv: readonly string[], io: Io): { runnable: RunnableCommand; parsed: ParsedCommand } | number {
  let chosen: Chosen | undefined;
  const program = programOf(io, (one) => {
    chosen = one;
  });
  const args = argv[0] === 'help' ? [...argv.slice(1), '--help'] : argv;
  const isKnown = args[0]?.startsWith('-') || program.commands.some((command) => command.name() === args[0]);
  try {
    // Of an unknown command commander would show the help of all.
    program.parse(isKnown ? args : args.slice(0, 1), { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    // The help of a command that was called without what it needs.
    if (error.code === 'commander.help') return EXIT.USAGE;
    if (error.exitCode === 0) return EXIT.DONE;
    throw usage(error, program, args);
  }
  assert(chosen, 'a command that was parsed is one of the table');
  return { runnable: chosen.runnable, parsed: parsedOf(chosen, io) };
}

function usage({ message }: CommanderError, program: Command, args: readonly string[]): TidemarkError {
  const fault = message.replace(/^error: /, '');
  const [, unknown] = /^unknown option '--([^=']+)/.exec(fault) ?? [];
  const meant = unknown && !fault.includes('Did you mean') && closestName(unknown, SETTING_NAMES.map(flagOf));
  const hint = meant ? `\n(Did you mean --${meant}?)` : '';
  const command = calledBy(program, args);
  const use = command === program ? '' : `\nUsage: ${command.createHelp().commandUsage(command)}`;
  return new TidemarkError('USAGE', `${fault}${hint}${use}`);
}

/** The innermost command that the arguments name. */
function calledBy(parent: Command, [name, ...rest]: readonly string[]): Command {
  const command = parent.commands.find((one) => one.name() === name);
  return command ? calledBy(command, rest) : parent;
}

function parsedOf({ command }: Chosen, io: Io): ParsedCommand {
  const values: Record<string, string | boolean | undefined> = {};
  const settings: Partial<Record<SettingName, string>> = {};
  for (const option of command.options) {
    const value = command.getOptionValue(option.attributeName());
    if (!(option instanceof SettingFlag)) values[option.name()] = value;
    else if (value !== undefined) settings[option.setting] = value;
  }
  return {
    line: lineOf(command, values),
    positionals: command.args,
    values,
    settings,
    json: values.json === true,
    progress: command.getOptionValue('progress') !== false,
    io,
  };
}

function lineOf(command: Command, values: ParsedCommand['values']): string {
  const options = command.options
    .filter((option) => !(option instanceof SettingFlag) && !COMMON.includes(option))
    .flatMap((option) => {
      const value = values[option.name()];
      if (value === undefined) return [];
      const shown = /\s/.test(String(value)) ? JSON.stringify(value) : value;
      return value === true ? [`${option.long}`] : [`${option.long} ${shown}`];
    });
  return [pathOf(command), ...command.args, ...options].join(' ');
}

/** `./tidemark`, the command, and its subcommand. */
export const pathOf = (command: Command): string =>
  command.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name();
