/** Every command's words: positionals, options, help. What they do is in commands/. */
import type { CommandSpec, OptionSpec } from './options.ts';

const FILE_DAYS = {
  from: { type: 'string', day: true, required: true, doc: 'First file day.' },
  to: { type: 'string', day: true, required: true, doc: 'Last file day, included.' },
  granularity: {
    type: 'string',
    choices: ['daily', 'monthly'],
    default: 'daily',
    doc: "Which of the vendor's documents to read; a month makes the same day partitions.",
  },
} as const satisfies Record<string, OptionSpec>;

const OPTIONAL_DAYS = {
  from: { type: 'string', day: true, doc: 'First day; default the first there is.' },
  to: { type: 'string', day: true, doc: 'Last day, included; default the last there is.' },
} as const satisfies Record<string, OptionSpec>;

export const up: CommandSpec = {
  name: 'up',
  positionals: [],
  options: {},
  doc: 'Starts the database, the log, the projectors and the HTTP service, and stops them again on Ctrl-C or SIGTERM.',
};

export const migrate: CommandSpec = {
  name: 'migrate',
  positionals: [],
  options: {},
  doc: 'Brings the database to the current schema. Safe to run at any time; every other command does it too.',
};

export const backfill: CommandSpec = {
  name: 'backfill',
  positionals: ['dataset'],
  options: FILE_DAYS,
  doc: 'Fetches the documents of the days given, publishes them to the log and waits for their proof. Proved days are compared with the vendor and left as they are.',
};

export const reingest: CommandSpec = {
  name: 'reingest',
  positionals: ['dataset'],
  options: { ...FILE_DAYS, reason: { type: 'string', required: true, doc: 'Why; kept in the ledger.' } },
  doc: 'Replaces proved or quarantined days by what the vendor publishes now, as a new revision. Readers see the old rows until the new ones are proved.',
};

export const replay: CommandSpec = {
  name: 'replay',
  positionals: ['dataset'],
  options: OPTIONAL_DAYS,
  doc: 'Builds proved and quarantined days again from the log and compares. Days whose served rows differ are replaced, in one transaction each; the others are left alone.',
};

export const verify: CommandSpec = {
  name: 'verify',
  positionals: ['dataset'],
  options: {
    ...OPTIONAL_DAYS,
    deep: { type: 'boolean', doc: "Also compare every stored row's bytes with the log." },
  },
  doc: 'Counts stored rows again and compares them with their manifests. A day that no longer matches is quarantined at once.',
};

export const status: CommandSpec = {
  name: 'status',
  positionals: ['dataset?'],
  options: {},
  doc: 'Shows what is proved, what is missing or quarantined and why, how far the projector is behind the log.',
};

export const event: CommandSpec = {
  name: 'event',
  positionals: ['dataset', 'offset'],
  options: { partition: { type: 'string', doc: 'Which partition, where several hold the offset.' } },
  doc: "Shows one event's vendor bytes and their sha256, read back from the log, and the document they came from.",
};
