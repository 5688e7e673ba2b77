/** What the accounts of the log may do, found out by asking for it in a way that changes nothing where it is allowed. */
import { headers, NoRespondersError, PermissionViolationError } from '@nats-io/transport-node';
import { connectNats, type NatsConnection } from '../../../shared/nats/connect.ts';
import { isDenied } from '../../../shared/nats/denied.ts';
import { EXPORT_SUBJECT } from '../../../shared/nats/export-queue.ts';
import { type Account, type Check, type Finding, warning } from './types.ts';

/** A stream of this name is never made, so nothing that is asked of it is done. */
const NO_STREAM = 'tidemark_doctor_asks';
const TIMEOUT_MS = 5000;

/** Rights that no account but the operator's has; the server refuses each of these requests to those who have it, too. */
const REQUESTS: readonly { readonly right: string; readonly call: string; readonly body?: object }[] = [
  { right: 'delete streams', call: `STREAM.DELETE.${NO_STREAM}` },
  { right: 'purge streams', call: `STREAM.PURGE.${NO_STREAM}` },
  { right: 'delete messages', call: `STREAM.MSG.DELETE.${NO_STREAM}`, body: { seq: 1 } },
  { right: 'change streams', call: `STREAM.UPDATE.${NO_STREAM}`, body: { name: NO_STREAM } },
  // Another name in the request than in its subject: refused by whoever reads it.
  { right: 'make streams', call: `STREAM.CREATE.${NO_STREAM}`, body: { name: 'another' } },
  {
    right: 'make consumers',
    call: `CONSUMER.CREATE.${NO_STREAM}.${NO_STREAM}`,
    body: { stream_name: NO_STREAM, config: {} },
  },
  { right: 'delete consumers', call: `CONSUMER.DELETE.${NO_STREAM}.${NO_STREAM}` },
];

export const ACCOUNT_CHECK: Check = {
  name: 'account',
  doc: 'the accounts of the log may do what their work needs and no more: none can change, empty or forge the log',
  needs: ['log'],
  async run({ accounts, datasets }) {
    const findings: Finding[] = [];
    for (const account of accounts) {
      await using connection = await connectNats(account.url, 'tidemark doctor');
      const rights = await tooMany(connection, account, datasets[0].key);
      if (rights.length === 0) continue;
      const fix = 'give it the rights that docs/operations.md lists ("Accounts of the log")';
      findings.push(warning(account.setting, `its account (${account.role}) may ${rights.join(', ')}`, fix));
    }
    return findings;
  },
};

async function tooMany(connection: NatsConnection, { role }: Account, dataset: string): Promise<string[]> {
  const rights: string[] = [];
  for (const { right, call, body } of REQUESTS) {
    if (await mayAsk(connection, `$JS.API.${call}`, body)) rights.push(right);
  }
  // Kept by no stream: the one that would is not the one that is expected.
  if (role !== 'publisher' && (await mayAsk(connection, `${dataset}.${NO_STREAM}.1.0`))) rights.push('write events');
  if (role !== 'export' && (await mayAsk(connection, `${EXPORT_SUBJECT}.${NO_STREAM}`))) rights.push('queue exports');
  const hears = (await mayHear(connection, `_INBOX_${NO_STREAM}.>`)) || (await mayHear(connection, '_INBOX.>'));
  if (hears) rights.push('hear answers that are meant for others');
  return rights;
}

async function mayAsk(connection: NatsConnection, subject: string, body?: object): Promise<boolean> {
  const expected = headers();
  expected.set('Nats-Expected-Stream', NO_STREAM);
  try {
    const options = { timeout: TIMEOUT_MS, ...(subject.startsWith('$JS.') ? {} : { headers: expected }) };
    await connection.request(subject, body && JSON.stringify(body), options);
    return true;
  } catch (error) {
    if (isDenied(error)) return false;
    if (error instanceof NoRespondersError || (error as Error).cause instanceof NoRespondersError) return true;
    throw error;
  }
}

async function mayHear(connection: NatsConnection, subject: string): Promise<boolean> {
  const told = Promise.withResolvers<boolean>();
  const callback = (error: Error | null) => {
    if (error instanceof PermissionViolationError) told.resolve(false);
  };
  const subscription = connection.subscribe(subject, { callback });
  // The server answers in order: a refusal comes before the answer to this.
  await connection.flush();
  setImmediate(() => told.resolve(true));
  const heard = await told.promise;
  subscription.unsubscribe();
  return heard;
}
