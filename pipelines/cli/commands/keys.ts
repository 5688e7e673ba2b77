/** `keys`: makes, lists, revokes and rotates the named keys of callers. A running service notices within a second. */

import { isInstrument } from '../../../shared/config/instruments.ts';
import type { Settings } from '../../../shared/config/settings.ts';
import { DAY_MS, parseDay, parseInstant } from '../../../shared/dates.ts';
import { type Client, connect } from '../../../shared/db/connect.ts';
import { registeredInstruments } from '../../../shared/db/instruments.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { isKeyName, SCOPES, type Scope } from '../../../shared/keys/key.ts';
import { addKey, type KeyRow, type KeyTerms, listKeys, revokeKey, rotateKey } from '../../../shared/keys/store.ts';
import { DATASET_KEYS, DATASETS } from '../../../shared/registry/index.ts';
import { hasInstruments, parseInstrument, SYMBOL_RULE } from '../../../shared/registry/instruments.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { type Output, table } from '../output.ts';

const MAX_DAYS = 36_500;

const usage = (message: string) => new TidemarkError('USAGE', message);

const HEAD = { command: 'keys', ok: true };

export async function add(command: ParsedCommand): Promise<number> {
  const [name] = command.positionals;
  // Checked before any server is asked.
  const terms = termsOf(name, command.values);
  await using owner = await openOwner(command);
  const { key, text } = await addKey(owner.client, name, terms);
  return showSecret(owner, 'add', key, text, await unknownInstruments(owner, terms.datasets ?? []));
}

/** A key may be made before its instruments are read; a symbol that was mistyped looks the same. */
async function unknownInstruments({ client, settings }: Owner, datasets: readonly string[]): Promise<string[]> {
  const claimed = await registeredInstruments(client);
  return datasets.filter((name) => {
    const [key, symbol] = name.split(':', 2);
    const base = DATASETS.get(key)!;
    const symbols = claimed.filter((one) => one.base === base).flatMap(({ instrument }) => instrument ?? []);
    return symbol !== undefined && !isInstrument(settings, base, symbol, symbols);
  });
}

export async function rotate(command: ParsedCommand): Promise<number> {
  await using owner = await openOwner(command);
  const { key, text } = await rotateKey(owner.client, command.positionals[0], Number(command.values.grace ?? 0));
  return showSecret(owner, 'rotate', key, text);
}

export async function list(command: ParsedCommand): Promise<number> {
  await using owner = await openOwner(command);
  const keys = await listKeys(owner.client);
  owner.output.answer({ ...HEAD, action: 'list', keys: keys.map(shown) }, () => listText(keys));
  return EXIT.DONE;
}

export async function revoke(command: ParsedCommand): Promise<number> {
  await using owner = await openOwner(command);
  const key = await revokeKey(owner.client, command.positionals[0]);
  const answer = { ...HEAD, action: 'revoke', keys: [shown(key)] };
  owner.output.answer(answer, () => `revoked   ${key.name}, at ${iso(key.revokedAt)}`);
  return EXIT.DONE;
}

interface Owner extends AsyncDisposable {
  readonly client: Client;
  readonly output: Output;
  readonly settings: Settings;
}

/** Keys are made by the role that owns the tables. */
async function openOwner(command: ParsedCommand): Promise<Owner> {
  await using opened = new AsyncDisposableStack();
  const { databaseUrls, signal, output, settings } = opened.use(await openContext(command, 'keys'));
  const client = opened.use(await connect({ url: databaseUrls.owner, name: 'tidemark keys', signal }));
  const kept = opened.move();
  return { client, output, settings, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

function showSecret(
  { output }: Owner,
  action: 'add' | 'rotate',
  key: KeyRow,
  text: string,
  unknown: readonly string[] = [],
): number {
  const answer = {
    ...{ ...HEAD, action, secret: text, keys: [shown(key)] },
    ...(unknown.length > 0 && { unknown_instruments: unknown }),
  };
  const lines = unknown.map((name) => `\nunknown   ${name} is neither configured nor was it ever read`);
  output.answer(answer, () => `${secretText(key, text)}${lines.join('')}`);
  return EXIT.DONE;
}

type Values = ParsedCommand['values'];

/** @throws TidemarkError USAGE */
function termsOf(name: string, values: Values): KeyTerms {
  if (!isKeyName(name)) {
    throw usage(
      `${JSON.stringify(name)} cannot name a key: use 1 to 64 letters, digits, ".", "_" or "-", a letter or digit first, and neither "owner" nor "metrics"`,
    );
  }
  const scopes = listOf<Scope>(values.scopes as string, 'scopes', SCOPES);
  const given = values.datasets as string | undefined;
  const datasets = given === undefined ? undefined : datasetsOf(given);
  if (datasets && !scopes.includes('read') && !scopes.includes('export')) {
    throw usage('--datasets bounds the scopes read and export, and the key has neither');
  }
  return {
    scopes,
    datasets: datasets ?? null,
    requestsPerMinute: numberOf(values['requests-per-minute']),
    concurrentReads: numberOf(values['concurrent-reads']),
    expiresAt: expiryOf(values.expires),
  };
}

/** @throws TidemarkError USAGE */
function listOf<T extends string>(value: string, option: string, known: readonly T[]): T[] {
  const names = value.split(',');
  const unknown = names.find((one) => !(known as readonly string[]).includes(one));
  if (unknown !== undefined) {
    throw usage(`--${option}: ${JSON.stringify(unknown)} is none of ${known.join(', ')}; separate several by commas`);
  }
  return known.filter((one) => names.includes(one));
}

/** Keys of datasets, each with an instrument if it is to be that one alone. @throws TidemarkError USAGE */
function datasetsOf(value: string): string[] {
  const names = value.split(',');
  const keys = listOf(names.map((name) => name.split(':', 1)[0]).join(), 'datasets', DATASET_KEYS);
  for (const name of names.filter((one) => one.includes(':'))) {
    const [key, symbol] = [name.split(':', 1)[0], name.slice(name.indexOf(':') + 1)];
    if (!hasInstruments(DATASETS.get(key)!))
      throw usage(`--datasets: ${key} has no instruments, so leave :${symbol} out`);
    if (!parseInstrument(symbol)) throw usage(`--datasets: ${JSON.stringify(symbol)} is no instrument: ${SYMBOL_RULE}`);
  }
  return keys.flatMap((key) => [...new Set(names.filter((name) => name.split(':', 1)[0] === key))]);
}

const numberOf = (value: Values[string]): number | null => (value === undefined ? null : Number(value));

/** A day, an instant, or days from now (`90d`). @throws TidemarkError USAGE */
function expiryOf(value: string | boolean | undefined): Date | null {
  if (value === undefined) return null;
  const text = String(value);
  const days = /^([1-9]\d{0,4})d$/.exec(text)?.[1];
  const ms =
    days === undefined
      ? (parseDay(text) ?? parseInstant(text)?.ms)
      : Number(days) <= MAX_DAYS
        ? Date.now() + Number(days) * DAY_MS
        : undefined;
  if (ms === undefined) {
    throw usage(
      `--expires must be a day such as 2027-01-01 (its beginning in UTC), a time such as 2027-01-01T12:00:00Z, or days from now such as 90d, got ${JSON.stringify(text)}`,
    );
  }
  if (ms <= Date.now()) throw usage(`--expires is over: ${text}`);
  return new Date(ms);
}

const iso = (date: Date | null): string | null => date?.toISOString() ?? null;

const shown = (key: KeyRow) => ({
  id: key.id,
  name: key.name,
  state: key.state,
  scopes: key.scopes,
  datasets: key.datasets,
  requests_per_minute: key.requestsPerMinute,
  concurrent_reads: key.concurrentReads,
  created_at_utc: iso(key.createdAt),
  expires_at_utc: iso(key.expiresAt),
  rotated_at_utc: iso(key.rotatedAt),
  previous_until_utc: iso(key.previousUntil),
  revoked_at_utc: iso(key.revokedAt),
});

const datasetsText = ({ datasets }: KeyRow) => datasets?.join(', ') ?? 'all';

function secretText(key: KeyRow, text: string): string {
  const { previousUntil, rotatedAt } = key;
  const isOver = previousUntil !== null && rotatedAt !== null && previousUntil <= rotatedAt;
  const before = isOver ? 'no longer holds' : `holds until ${iso(previousUntil)}`;
  return [
    `key       ${text}`,
    'It is shown this once. Send it as X-API-Key.',
    `name      ${key.name}`,
    `scopes    ${key.scopes.join(', ')}`,
    `datasets  ${datasetsText(key)}`,
    `expires   ${iso(key.expiresAt) ?? 'never'}`,
    `limits    ${key.requestsPerMinute ?? 'any number of'} requests a minute, ${key.concurrentReads ?? 'any number of'} reads at once`,
    ...(previousUntil === null ? [] : [`before    the key before it ${before}`]),
  ].join('\n');
}

function listText(keys: readonly KeyRow[]): string {
  if (keys.length === 0) return 'There are no named keys: ./tidemark keys add makes one.';
  const rows = keys.map((key) => [
    key.name,
    key.state,
    key.scopes.join(','),
    datasetsText(key),
    key.requestsPerMinute ?? '',
    key.concurrentReads ?? '',
    iso(key.expiresAt) ?? 'never',
    key.id,
  ]);
  return table(['name', 'state', 'scopes', 'datasets', 'requests/min', 'reads', 'expires', 'id'], rows);
}
