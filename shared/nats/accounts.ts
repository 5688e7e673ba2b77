/**
 * The accounts of the log, and what each may do: the least that its work needs. nats-server looks at the subjects of
 * requests only, never at what they say, so whoever may update a stream may empty it, and whoever may make a consumer
 * chooses where the server delivers. Streams are therefore made and changed by the operator's account alone.
 */
import { DATASET_KEYS } from '../registry/index.ts';
import { EXPORT_CONSUMER, EXPORT_STREAM, EXPORT_SUBJECT } from './export-queue.ts';
import { CONSUMER_NAME } from './stream.ts';

export const NATS_ROLES = ['publisher', 'projector', 'reader', 'export', 'operator'] as const;
export type NatsRole = (typeof NATS_ROLES)[number];

interface NatsAccount {
  readonly user: string;
  /** For people who read the server's configuration. */
  readonly doc: string;
  /** Subjects it may publish to; undefined: all, and it may listen to all. */
  readonly publish: readonly string[] | undefined;
}

const api = (...calls: readonly string[]) => calls.map((call) => `$JS.API.${call}`);

/** What `jetstreamManager` asks when it starts, how streams stand, and single messages. */
const LOOK = api('INFO', 'STREAM.INFO.*', 'STREAM.MSG.GET.*', `CONSUMER.INFO.*.${CONSUMER_NAME}`);

export const NATS_ACCOUNTS: Readonly<Record<NatsRole, NatsAccount>> = {
  publisher: {
    user: 'tidemark',
    doc: 'Writes events. It can neither make, change nor empty a stream.',
    publish: [...LOOK, ...api('CONSUMER.LIST.*'), ...DATASET_KEYS.map((key) => `${key}.>`)],
  },
  projector: {
    user: 'projector',
    doc: 'Reads the log through one consumer of its own name in each stream, and writes nothing.',
    publish: [
      ...LOOK,
      ...api(...['CREATE', 'DELETE', 'MSG.NEXT'].map((call) => `CONSUMER.${call}.*.${CONSUMER_NAME}`)),
      `$JS.ACK.*.${CONSUMER_NAME}.>`,
    ],
  },
  reader: {
    user: 'reader',
    doc: 'Looks at single messages and asks how streams stand: the HTTP service.',
    publish: api('STREAM.MSG.GET.*', 'DIRECT.GET.>', 'STREAM.INFO.*', `CONSUMER.INFO.*.${CONSUMER_NAME}`),
  },
  export: {
    user: 'export',
    doc: 'Puts jobs into the queue of exports and takes them out.',
    publish: [
      ...api(
        `STREAM.INFO.${EXPORT_STREAM}`,
        ...['INFO', 'MSG.NEXT'].map((call) => `CONSUMER.${call}.${EXPORT_STREAM}.${EXPORT_CONSUMER}`),
      ),
      `$JS.ACK.${EXPORT_STREAM}.${EXPORT_CONSUMER}.>`,
      `${EXPORT_SUBJECT}.*`,
    ],
  },
  operator: {
    user: 'operator',
    doc: 'Makes and changes streams and everything else: the operator.',
    publish: undefined,
  },
};

/** Answers come below this, and no other account of ours hears them. */
const inboxOf = ({ user }: NatsAccount): string => `_INBOX_${user}`;

/** The address of a server for one account; `inbox` tells the client where it may listen. */
export function accountUrl(server: string, role: NatsRole, password: string): string {
  const account = NATS_ACCOUNTS[role];
  return `nats://${account.user}:${password}@${server}?inbox=${inboxOf(account)}`;
}

/** A user of the account of that number; the service's own is 1. */
const userOf = (user: string, number: number): string => (number === 1 ? user : `${user}_${number}`);

/** The address of the same user in the account of that number. */
export function urlOfAccount(url: string, number: number): string {
  const result = new URL(url);
  result.username = userOf(result.username, number);
  return result.href;
}

/**
 * The accounts as nats-server's configuration says them; the same in every stack, in compose and in the documentation.
 * @param count several, alike but for the users' names, for tests that share a server: none sees the streams of another
 */
export function accountsConfiguration(passwords: Readonly<Record<NatsRole, string>>, count = 1): string {
  const numbers = Array.from({ length: count }, (_, index) => index + 1);
  return `accounts {
  SYS { users: [] }
${numbers.map((number) => accountLines(passwords, number)).join('\n')}
}
system_account: SYS
`;
}

const accountLines = (passwords: Readonly<Record<NatsRole, string>>, number: number): string => `  ${
  number === 1 ? 'TIDEMARK' : `TIDEMARK_${number}`
} {
    jetstream: enabled
    users: [
${NATS_ROLES.map((role) => userLines(NATS_ACCOUNTS[role], passwords[role], number)).join('\n')}
    ]
  }`;

function userLines(account: NatsAccount, password: string, number: number): string {
  const { doc, publish } = account;
  const user = userOf(account.user, number);
  const lines =
    publish === undefined
      ? [`{ user: ${user}, password: "${password}" }`]
      : [
          `{ user: ${user}, password: "${password}", permissions: {`,
          '    publish: { allow: [',
          ...publish.map((subject) => `      "${subject}"`),
          '    ] }',
          `    subscribe: { allow: "${inboxOf(account)}.>" }`,
          '} }',
        ];
  return [`# ${doc}`, ...lines].map((line) => `      ${line}`).join('\n');
}
