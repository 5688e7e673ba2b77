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

/** The accounts as nats-server's configuration says them; the same in every stack, in compose and in the documentation. */
export function accountsConfiguration(passwords: Readonly<Record<NatsRole, string>>): string {
  return `accounts {
  SYS { users: [] }
  TIDEMARK {
    jetstream: enabled
    users: [
${NATS_ROLES.map((role) => userLines(NATS_ACCOUNTS[role], passwords[role])).join('\n')}
    ]
  }
}
system_account: SYS
`;
}

function userLines(account: NatsAccount, password: string): string {
  const { user, doc, publish } = account;
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
