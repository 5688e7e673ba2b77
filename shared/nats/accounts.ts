/**
 * The accounts of the log and their permissions: the least that each needs. nats-server checks the subjects of requests
 * only, never their content. An account that may update a stream may therefore empty it, and one that may create a consumer
 * chooses where the server delivers. So only the operator's account creates and changes streams.
 */
import { DATASET_KEYS } from '../registry/index.ts';
import { CHANGES_STREAM, CONSUMER_NAME } from './stream.ts';

const NATS_ROLES = ['publisher', 'projector', 'reader', 'operator'] as const;
export type NatsRole = (typeof NATS_ROLES)[number];

interface NatsAccount {
  readonly user: string;
  /** Description in the server's configuration. */
  readonly doc: string;
  /** Subjects to which it may publish; undefined for all, and then it may also subscribe to all. */
  readonly publish: readonly string[] | undefined;
}

const api = (...calls: readonly string[]) => calls.map((call) => `$JS.API.${call}`);

/** Requests that read: those of `jetstreamManager` at its start, the state of streams and consumers, single messages. */
const READ = api('INFO', 'STREAM.INFO.*', 'STREAM.MSG.GET.*', `CONSUMER.INFO.*.${CONSUMER_NAME}`);

const NATS_ACCOUNTS: Readonly<Record<NatsRole, NatsAccount>> = {
  publisher: {
    user: 'tidemark',
    doc: 'Writes events. It can neither create, change nor empty a stream.',
    publish: [...READ, ...api('CONSUMER.LIST.*'), ...DATASET_KEYS.map((key) => `${key}.>`)],
  },
  projector: {
    user: 'projector',
    doc: 'Reads the log through one consumer of its own name in each stream, and writes the stream of changes.',
    publish: [
      ...READ,
      ...api(...['CREATE', 'DELETE', 'MSG.NEXT'].map((call) => `CONSUMER.${call}.*.${CONSUMER_NAME}`)),
      `$JS.ACK.*.${CONSUMER_NAME}.>`,
      `${CHANGES_STREAM}.>`,
    ],
  },
  reader: {
    user: 'reader',
    doc: 'Reads single messages and the state of streams: the HTTP service.',
    publish: api('STREAM.MSG.GET.*', 'DIRECT.GET.>', 'STREAM.INFO.*', `CONSUMER.INFO.*.${CONSUMER_NAME}`),
  },
  operator: {
    user: 'operator',
    doc: 'May do everything, such as create and change streams: the operator.',
    publish: undefined,
  },
};

/** The prefix of the subjects on which an account receives answers; no other account may subscribe to them. */
const inboxOf = ({ user }: NatsAccount): string => `_INBOX_${user}`;

/** The URL of a server for one account; `inbox` is the prefix to which the account may subscribe. */
export function accountUrl(server: string, role: NatsRole, password: string): string {
  const account = NATS_ACCOUNTS[role];
  return `nats://${account.user}:${password}@${server}?inbox=${inboxOf(account)}`;
}

/** The name of a user in the account of that number; the service's own account is number 1. */
const userOf = (user: string, number: number): string => (number === 1 ? user : `${user}_${number}`);

/** The URL of the same user in the account of that number. */
export function urlOfAccount(url: string, number: number): string {
  const result = new URL(url);
  result.username = userOf(result.username, number);
  return result.href;
}

/**
 * The accounts as configuration of nats-server, for the embedded stack, compose and the documentation.
 * @param count several accounts that differ in their users' names, for tests that share a server; none sees the streams of
 *   another.
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
