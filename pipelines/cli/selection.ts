/** Options that say what of a feed is wanted. Which of them a feed takes, it says itself (pipelines/sources/index.ts). */
import type { OptionSpec } from './options.ts';

export const SELECTION = {
  from: {
    type: 'string',
    day: true,
    doc: 'First file day, capture or vintage; of an exchange the first there is, if not given.',
  },
  to: { type: 'string', day: true, doc: 'The last, included; of an exchange the last that is over, if not given.' },
  granularity: {
    type: 'string',
    choices: ['daily', 'monthly'],
    doc: "Which of the vendor's documents to read, daily ones if not given; a month makes the same day partitions.",
  },
  fund: { type: 'string', doc: 'Of `etf`: this fund alone, by ticker or source id; several with commas between.' },
  series: {
    type: 'string',
    doc: 'Of `macro`: this series alone, by its id at the provider or its source id; several with commas between.',
  },
  'from-height': { type: 'string', integer: true, doc: 'First block.' },
  'to-height': { type: 'string', integer: true, doc: 'The last, included.' },
} as const satisfies Record<string, OptionSpec>;
