/**
 * Who calls: the owner with the configured key, a scraper with SVC_METRICS_KEY, or a caller with a named key. The named keys
 * are kept in memory and loaded again when they are asked for and older than a second, so that a change in the database is
 * effective within a second in every process, and the owner's key never needs the database.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { coversInstrument } from '../../shared/instrument-names.ts';
import { keyDigest, keyIdOf, OWNER, SCOPES, SCRAPER, type Scope } from '../../shared/keys/key.ts';
import type { KeyRecord, KeyTerms } from '../../shared/keys/store.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { Problem } from '../contract/problems.ts';

/** Node decodes header bytes as latin1; keys and passwords are UTF-8. */
const headerBytes = (value: string): Buffer => Buffer.from(value, 'latin1');

/** The caller's own storage credential, if the request has one. */
export function backendToken(request: IncomingMessage): string | undefined {
  const token = request.headers['x-backend-token'];
  return typeof token === 'string' ? headerBytes(token).toString() : undefined;
}

const NO_TERMS: KeyTerms = {
  scopes: [],
  datasets: null,
  requestsPerMinute: null,
  concurrentReads: null,
  expiresAt: null,
};

/** What tells whether a key covers an instrument: the dataset's key and the symbol. */
export type Coverable = Pick<DatasetDefinition, 'key'> & Partial<Pick<DatasetDefinition, 'trades' | 'instrument'>>;
/** The symbol of a dataset or its instrument, of the default too; undefined for a dataset without instruments. */
export type SymbolOf = (dataset: Coverable) => string | undefined;
/** Where nobody says which the default is, a key that is limited to instruments does not cover it. */
const SYMBOL_UNKNOWN: SymbolOf = ({ trades, instrument }) => trades && (instrument ?? '');

export class Caller {
  /** Of routes that need no key, and of requests whose key is missing or wrong. */
  static readonly ANONYMOUS = new Caller(null, NO_TERMS);
  static readonly OWNER = new Caller(OWNER, { ...NO_TERMS, scopes: SCOPES });
  static readonly SCRAPER = new Caller(SCRAPER, { ...NO_TERMS, scopes: ['metrics'] });

  /** Name of the key; null: none. */
  readonly name: string | null;
  readonly terms: KeyTerms;
  readonly #symbolOf: SymbolOf;

  constructor(name: string | null, terms: KeyTerms, symbolOf = SYMBOL_UNKNOWN) {
    this.name = name;
    this.terms = terms;
    this.#symbolOf = symbolOf;
  }

  get isOwner(): boolean {
    return this.name === OWNER;
  }

  /** Whether the key is one of the named ones. */
  get isNamed(): boolean {
    return this.name !== null && this.name !== OWNER && this.name !== SCRAPER;
  }

  /** @throws Problem AUTH_SCOPE_MISSING */
  requireScope(scope: Scope): void {
    if (this.terms.scopes.includes(scope)) return;
    throw new Problem(
      'AUTH_SCOPE_MISSING',
      `This path needs the scope ${scope}, and the key ${this.name} has ${this.terms.scopes.join(', ')}. Ask the operator for another key.`,
    );
  }

  /** Of a dataset with instruments, whether it covers this one: the default where the definition names none. */
  covers(dataset: Coverable): boolean {
    return coversInstrument(this.terms.datasets, dataset.key, this.#symbolOf(dataset));
  }

  /** Whether it covers the dataset, or any of its instruments. */
  coversAny(key: string): boolean {
    return coversInstrument(this.terms.datasets, key);
  }

  /** @throws Problem AUTH_DATASET_NOT_COVERED where it covers neither the dataset nor any of its instruments. */
  requireAny(dataset: Coverable): void {
    if (!this.coversAny(dataset.key)) this.requireDatasets([dataset]);
  }

  /** @throws Problem AUTH_DATASET_NOT_COVERED for the first that the key does not cover. */
  requireDatasets(datasets: Iterable<Coverable>): void {
    for (const dataset of datasets) {
      if (this.covers(dataset)) continue;
      const isPartly = this.coversAny(dataset.key);
      const what = isPartly ? `${this.#symbolOf(dataset)} of ${dataset.key}` : dataset.key;
      throw new Problem(
        'AUTH_DATASET_NOT_COVERED',
        `The key ${this.name} does not cover ${what}. GET /v1/${isPartly ? 'instruments' : 'datasets'} lists what it covers.`,
      );
    }
  }
}

/** A caller, and why its key, which it proved to have, no longer holds. */
interface Identified {
  readonly caller: Caller;
  readonly refusal?: Problem;
}

/** Named keys that were loaded longer ago are loaded again before they decide. */
const MAX_AGE_MS = 800;
/** Time from one load to the next, so that requests with wrong keys cannot keep the database busy. */
const LOAD_INTERVAL_MS = 50;
/** Compared with where there is no such key, so that the time taken tells nobody whether there is. */
const NO_DIGEST = randomBytes(32);

interface CallersOptions {
  /** The configured key, and during a rotation the previous one. */
  readonly owner: readonly (string | undefined)[];
  readonly scraper: string | undefined;
  readonly load: () => Promise<readonly KeyRecord[]>;
  readonly symbolOf?: SymbolOf;
  /** A clock that only moves forward, ms. */
  readonly now?: () => number;
}

export class Callers {
  readonly #owner: readonly Buffer[];
  readonly #scraper: readonly Buffer[];
  readonly #load: CallersOptions['load'];
  readonly #symbolOf: SymbolOf | undefined;
  readonly #now: () => number;
  #byId: ReadonlyMap<string, KeyRecord> = new Map();
  /** When the load began that `#byId` is from. */
  #loadedAt = Number.NEGATIVE_INFINITY;
  #loading: Promise<void> | undefined;

  constructor({ owner, scraper, load, symbolOf, now = () => performance.now() }: CallersOptions) {
    // A blank key would admit every caller that sends none.
    const digests = (keys: readonly (string | undefined)[]) =>
      keys.filter((key) => key !== undefined && key !== '').map((key) => sha256(Buffer.from(key!)));
    this.#owner = digests(owner);
    this.#scraper = digests([scraper]);
    this.#load = load;
    this.#symbolOf = symbolOf;
    this.#now = now;
  }

  /**
   * Compares keys in constant time, so that the time taken does not reveal how much of one is right. For the scope `metrics`
   * it also accepts SVC_METRICS_KEY, and `Authorization: Bearer` for callers that can send no header of their own.
   * @throws Problem AUTH_INVALID_API_KEY, AUTH_KEYS_UNAVAILABLE
   */
  async identify({ headers }: IncomingMessage, scope: Scope): Promise<Identified> {
    const bearer = scope === 'metrics' ? /^Bearer (.+)$/i.exec(headers.authorization ?? '')?.[1] : undefined;
    const given = headers['x-api-key'] ?? bearer;
    const bytes = headerBytes(typeof given === 'string' ? given : '');
    const given256 = sha256(bytes);
    if (isAny(this.#owner, given256)) return { caller: Caller.OWNER };
    if (scope === 'metrics' && isAny(this.#scraper, given256)) return { caller: Caller.SCRAPER };
    if (typeof given !== 'string') throw new Problem('AUTH_INVALID_API_KEY', 'Send a key in the X-API-Key header.');
    const id = keyIdOf(bytes.toString());
    if (id === undefined) throw wrongKey();
    const offered = keyDigest(bytes);
    const askedAt = this.#now();
    // The key may have been made after the last load. Every wrong key waits for the next one, whether its id is known or not.
    const found =
      identified((await this.#keys(askedAt - MAX_AGE_MS)).get(id), offered, this.#symbolOf) ??
      identified((await this.#keys(askedAt)).get(id), offered, this.#symbolOf);
    if (!found) throw wrongKey();
    return found;
  }

  /** The keys as they are stored since then, or later. */
  async #keys(since: number): Promise<ReadonlyMap<string, KeyRecord>> {
    // A load that others began may be too old as well; the next one is not.
    while (this.#loadedAt < since) {
      this.#loading ??= this.#reload().finally(() => {
        this.#loading = undefined;
      });
      try {
        await this.#loading;
      } catch (cause) {
        throw new Problem('AUTH_KEYS_UNAVAILABLE', 'The service cannot look up the key now. Try again later.', {
          cause,
        });
      }
    }
    return this.#byId;
  }

  async #reload(): Promise<void> {
    const waitMs = this.#loadedAt + LOAD_INTERVAL_MS - this.#now();
    if (waitMs > 0) await delay(waitMs);
    const at = this.#now();
    const records = await this.#load();
    this.#byId = new Map(records.map((record) => [record.id, record]));
    this.#loadedAt = at;
  }
}

/** How often the keys of answers in progress are looked at; with the age of what is kept it stays below a second. */
const WATCH_MS = 150;

interface WatchedKey {
  /** Any request with the key. */
  readonly request: IncomingMessage;
  readonly scope: Scope;
  readonly onEnds: Set<(refusal: Problem) => void>;
}

/** Watches the keys of answers in progress: one look at each key, however many answers and event streams it has. */
export class KeyWatch {
  readonly #callers: Callers;
  readonly #watched = new Map<string, WatchedKey>();
  #timer: NodeJS.Timeout | undefined;

  constructor(callers: Callers) {
    this.#callers = callers;
  }

  /**
   * Calls `onEnd` once the key is revoked, replaced or over: a long answer would otherwise outlast it by hours.
   * @returns a function that ends the watch, to be called when the answer is over.
   */
  watch(request: IncomingMessage, scope: Scope, onEnd: (refusal: Problem) => void): () => void {
    const { headers } = request;
    const key = `${scope} ${headers['x-api-key'] ?? ''} ${headers.authorization ?? ''}`;
    const watched = this.#watched.get(key) ?? { request, scope, onEnds: new Set() };
    this.#watched.set(key, watched);
    watched.onEnds.add(onEnd);
    this.#timer ??= setInterval(() => void this.#look(), WATCH_MS).unref();
    return () => {
      watched.onEnds.delete(onEnd);
      if (watched.onEnds.size === 0 && this.#watched.get(key) === watched) this.#watched.delete(key);
      if (this.#watched.size > 0) return;
      clearInterval(this.#timer);
      this.#timer = undefined;
    };
  }

  async #look(): Promise<void> {
    for (const { request, scope, onEnds } of [...this.#watched.values()]) {
      const found = await this.#callers.identify(request, scope).catch((refusal: Problem) => ({ refusal }));
      // A database that does not answer says nothing about the key.
      if (!found.refusal || found.refusal.code === 'AUTH_KEYS_UNAVAILABLE') continue;
      for (const onEnd of [...onEnds]) onEnd(found.refusal);
    }
  }
}

/** Of the configured keys and what is compared with them: texts of one length, which are stored nowhere. */
const sha256 = (bytes: Buffer): Buffer => createHash('sha256').update(bytes).digest();

function isAny(digests: readonly Buffer[], offered: Buffer): boolean {
  let found = false;
  for (const digest of digests) found = timingSafeEqual(digest, offered) || found;
  return found;
}

/** The same words for unknown, malformed and wrong keys. */
const wrongKey = () =>
  new Problem('AUTH_INVALID_API_KEY', 'The key is wrong. Send a key of the service in the X-API-Key header.');

/** Undefined where the offered text is not that of the key, or there is no such key. */
function identified(
  record: KeyRecord | undefined,
  offered: Buffer,
  symbolOf: SymbolOf | undefined,
): Identified | undefined {
  const isCurrent = timingSafeEqual(record?.digest ?? NO_DIGEST, offered);
  const isPrevious = timingSafeEqual(record?.previousDigest ?? NO_DIGEST, offered);
  if (!record || !(isCurrent || isPrevious)) return undefined;
  const caller = new Caller(record.name, record, symbolOf);
  const { name, state, revokedAt, expiresAt } = record;
  if (state === 'revoked') {
    const detail = `The key ${name} was revoked at ${revokedAt!.toISOString()}. Ask the operator for another key.`;
    return { caller, refusal: new Problem('AUTH_KEY_REVOKED', detail) };
  }
  if (state === 'expired') {
    const detail = `The key ${name} expired at ${expiresAt!.toISOString()}. Ask the operator for another key.`;
    return { caller, refusal: new Problem('AUTH_KEY_EXPIRED', detail) };
  }
  if (!isCurrent && !record.previousHolds) {
    const detail = `The key ${name} was replaced at ${record.rotatedAt!.toISOString()}. Send the key that replaced it.`;
    return { caller, refusal: new Problem('AUTH_KEY_REVOKED', detail) };
  }
  return { caller };
}
