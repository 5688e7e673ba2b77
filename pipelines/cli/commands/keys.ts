/** `keys`: makes, lists, revokes and rotates the named keys of callers. A running service notices within a second. */

import { DAY_MS, parseDay, parseInstant } from '../../../shared/dates.ts';
import { connect } from '../../../shared/db/connect.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { isKeyName, SCOPES, type Scope } from '../../../shared/keys/key.ts';
import { addKey, type KeyRow, type KeyTerms, listKeys, revokeKey, rotateKey } from '../../../shared/keys/store.ts';
import { DATASET_KEYS, type DatasetKey } from '../../../shared/registry/index.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { table } from '../output.ts';

/** The options of each action; any other would be ignored, and its sender would mistake the key. */
const OPTIONS = {
  add: ['scopes', 'datasets', 'expires', 'requests-per-minute', 'concurrent-reads'],
  list: [],
  revoke: [],
  rotate: ['grace'],
} as const satisfies Record<string, readonly string[]>;
type Action = keyof typeof OPTIONS;

const MAX_REQUESTS = 1_000_000;
const MAX_READS = 10_000;
/** A year. */
const MAX_GRACE_S = 366 * 86_400;
const MAX_DAYS = 36_500;

const usage = (message: string) => new TidemarkError('USAGE', message);

export async function runKeys(command: ParsedCommand): Promise<number> {
  const [given, name] = command.positionals;
  if (!Object.hasOwn(OPTIONS, given)) throw usage(`keys takes ${Object.keys(OPTIONS).join(', ')}, not ${given}`);
  const action = given as Action;
  const all = Object.values(OPTIONS).flat();
  const stray = all.find(
    (option) => command.values[option] !== undefined && !(OPTIONS[action] as readonly string[]).includes(option),
  );
  if (stray !== undefined) throw usage(`keys ${action} takes no --${stray}`);
  if (action === 'list' && name !== undefined) throw usage('keys list takes no name');
  if (action !== 'list' && name === undefined) throw usage(`keys ${action} needs the name of a key`);
  // The terms are checked before any server is asked.
  const terms = action === 'add' ? termsOf(name, command.values) : undefined;
  const graceSeconds = numberOf(command.values, 'grace', MAX_GRACE_S) ?? 0;

  await using context = await openContext(command, 'keys');
  await using client = await connect({
    url: context.databaseUrls.owner,
    name: 'tidemark keys',
    signal: context.signal,
  });
  const { output } = context;
  const head = { command: 'keys', ok: true, action };
  switch (action) {
    case 'list': {
      const keys = await listKeys(client);
      output.answer({ ...head, keys: keys.map(shown) }, () => listText(keys));
      break;
    }
    case 'revoke': {
      const key = await revokeKey(client, name);
      output.answer({ ...head, keys: [shown(key)] }, () => `revoked   ${key.name}, at ${iso(key.revokedAt)}`);
      break;
    }
    default: {
      const { key, text } = terms ? await addKey(client, name, terms) : await rotateKey(client, name, graceSeconds);
      output.answer({ ...head, secret: text, keys: [shown(key)] }, () => secretText(key, text));
    }
  }
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
  const scopes = listOf<Scope>(values, 'scopes', SCOPES);
  if (!scopes) throw usage(`--scopes is missing: name one or more of ${SCOPES.join(', ')}`);
  const datasets = listOf<DatasetKey>(values, 'datasets', DATASET_KEYS);
  if (datasets && !scopes.includes('read') && !scopes.includes('export')) {
    throw usage('--datasets bounds the scopes read and export, and the key has neither');
  }
  return {
    scopes,
    datasets: datasets ?? null,
    requestsPerMinute: numberOf(values, 'requests-per-minute', MAX_REQUESTS) ?? null,
    concurrentReads: numberOf(values, 'concurrent-reads', MAX_READS) ?? null,
    expiresAt: expiryOf(values.expires),
  };
}

/** @throws TidemarkError USAGE */
function listOf<T extends string>(values: Values, option: string, known: readonly T[]): T[] | undefined {
  const value = values[option];
  if (value === undefined) return undefined;
  const names = String(value).split(',');
  const unknown = names.find((one) => !(known as readonly string[]).includes(one));
  if (unknown !== undefined) {
    throw usage(`--${option}: ${JSON.stringify(unknown)} is none of ${known.join(', ')}; separate several by commas`);
  }
  return known.filter((one) => names.includes(one));
}

/** @throws TidemarkError USAGE */
function numberOf(values: Values, option: string, max: number): number | undefined {
  const value = values[option];
  if (value === undefined) return undefined;
  if (Number(value) > max) throw usage(`--${option} must be at most ${max}, got ${JSON.stringify(value)}`);
  return Number(value);
}

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
