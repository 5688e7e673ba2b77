/** What an entry of the table of settings holds, and the schemas of its values: each reads the text of a setting. */
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { parseDay } from '../../dates.ts';
import { type Instrument, instrumentTag, parseInstrument, SYMBOL_RULE } from '../../instrument-names.ts';

export interface Setting {
  /** Its description says in words what the setting takes. */
  readonly schema: z.ZodType<unknown, string>;
  /** Default as text. Without one the setting may be unset, unless `LoadOptions.required` names it. */
  readonly default?: string;
  readonly secret?: boolean;
  readonly group: string;
  readonly doc: string;
}

export const MIB = 1024 * 1024;

const grouped = (value: number) => value.toLocaleString('en-US');

export function whole(min: number, max: number, unit?: string) {
  const bounds = `must be between ${min} and ${max}`;
  return z
    .string()
    .regex(/^-?\d{1,16}$/, `must be a whole number${unit ? ` of ${unit}` : ''}`)
    .transform(Number)
    .pipe(z.number().min(min, bounds).max(max, bounds))
    .describe(`${grouped(min)} to ${grouped(max)}${unit ? ` ${unit}` : ''}`);
}

export const boolean = z
  .stringbool({
    truthy: ['true', '1', 'yes', 'on'],
    falsy: ['false', '0', 'no', 'off'],
    error: 'must be true or false',
  })
  .describe('true or false');

export const choice = <const C extends string>(...choices: readonly C[]) =>
  z.enum(choices, `must be one of ${choices.join(', ')}`).describe(choices.join(', '));

const notBlank = z.string().regex(/\S/, 'must not be blank');

export const text = notBlank.describe('string');

export const symbol = notBlank
  .refine((text) => parseInstrument(text) !== undefined, `must be a symbol: ${SYMBOL_RULE}`)
  .describe('string');

/** A relative one begins at the folder of `.env`. */
export const path = notBlank.describe('path');

/** @param schemes with their colon */
export const url = (...schemes: readonly string[]) =>
  z
    .string()
    .transform((text, context) => {
      const fault = urlFault(text, schemes);
      if (fault === undefined) return new URL(text);
      context.addIssue(fault);
      return z.NEVER;
    })
    .describe(`URL, ${schemes.map((scheme) => `${scheme}//`).join(' or ')}`);

function urlFault(text: string, schemes: readonly string[]): string | undefined {
  if (!URL.canParse(text)) {
    // A path, where a folder will do. What has an @ may hold a password, and no message shows it.
    const isFolder = schemes.includes('file:') && text.startsWith('/') && !text.includes('@');
    return `must be a URL${isFolder ? `, such as ${pathToFileURL(text).href}` : ''}`;
  }
  const { protocol, host, username, password } = new URL(text);
  if (protocol === 'file:' && host !== '') return 'must have three slashes before the path, as in file:///folder';
  if (!schemes.includes(protocol)) return `must start with ${schemes.join(' or ')}`;
  // A shell or a Compose file puts nothing in the place of a variable that is not set.
  const [, user] = /^[^:/]+:\/\/([^/?#@:]+):@/.exec(text) ?? [];
  if (user !== undefined) {
    return `has no password between \`${user}:\` and \`@\`; set the variable that it is made of`;
  }
  // Those who connect decode user name and password: `50%` would end them.
  if ([username, password].every(isDecodable)) return undefined;
  return 'must percent-encode special characters of the user name and the password: % is %25';
}

function isDecodable(encoded: string): boolean {
  try {
    decodeURIComponent(encoded);
    return true;
  } catch {
    return false;
  }
}

export const origins = z
  .string()
  .transform((text): readonly string[] =>
    text
      .split(',')
      .map((part) => part.trim())
      .filter(Boolean),
  )
  .refine(
    (parts) => parts.every((part) => part === '*' || isOrigin(part)),
    'must be origins such as https://app.example.org, or *',
  )
  .describe('list of origins');

/** An origin as browsers send it: scheme, host and port, in lower case, with nothing after them. */
function isOrigin(text: string): boolean {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  return /^https?:$/.test(url?.protocol ?? '') && url?.origin === text && !text.includes('*');
}

/** Days, both included; undefined: without a bound that anybody stated. */
export interface DayInterval {
  readonly from: string | undefined;
  readonly to: string | undefined;
}

export interface OtherInstrument {
  readonly symbol: Instrument;
  /** In the order of time; none: whenever the exchange lists it. */
  readonly intervals: readonly DayInterval[];
}

const MAX_OTHERS = 64;
const INTERVAL = /^(\d{4}-\d{2}-\d{2})?\.\.(\d{4}-\d{2}-\d{2})?$/;

/** Symbols, each with its interval if the operator knows one; a symbol with several is named several times. */
export const otherInstruments = z
  .string()
  .transform((text, context): readonly OtherInstrument[] => {
    const found = new Map<string, { symbol: Instrument; intervals: DayInterval[] }>();
    const refuse = (message: string) => {
      context.addIssue(message);
      return z.NEVER;
    };
    for (const item of text.split(',').map((part) => part.trim())) {
      const [name, days, ...rest] = item.split(':');
      const symbol = parseInstrument(name);
      if (symbol === undefined) return refuse(`${JSON.stringify(name)} is no symbol: ${SYMBOL_RULE}`);
      const interval = days === undefined ? undefined : intervalOf(days);
      if (rest.length > 0 || (days !== undefined && interval === undefined)) {
        return refuse(`the interval of ${symbol} must be FROM..TO, two days of which one may be left out`);
      }
      const known = found.get(symbol);
      const before = known?.intervals.at(-1);
      if (known && !(interval?.from && before?.to && before.to < interval.from)) {
        return refuse(`${symbol} stands twice, which needs intervals that follow one another`);
      }
      const intervals = [...(known?.intervals ?? []), ...(interval ? [interval] : [])];
      found.set(symbol, { symbol, intervals });
    }
    if (found.size > MAX_OTHERS) return refuse(`must name at most ${MAX_OTHERS} symbols, names ${found.size}`);
    const tags = new Map<number, string>();
    for (const { symbol } of found.values()) {
      const other = tags.get(instrumentTag(symbol));
      if (other !== undefined) return refuse(`events of ${symbol} and ${other} would have the same ids: leave one out`);
      tags.set(instrumentTag(symbol), symbol);
    }
    return [...found.values()];
  })
  .describe('list of SYMBOL or SYMBOL:FROM..TO');

function intervalOf(text: string): DayInterval | undefined {
  const [whole, from, to] = INTERVAL.exec(text) ?? [];
  if (whole === undefined || (from ?? to) === undefined) return undefined;
  if ([from, to].some((day) => day !== undefined && parseDay(day) === undefined)) return undefined;
  return from !== undefined && to !== undefined && from > to ? undefined : { from, to };
}
