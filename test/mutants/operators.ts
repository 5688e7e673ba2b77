/** Small ways to break a program: each finds its places in a source text and says what stands there instead. */

export interface Mutation {
  readonly operator: string;
  /** Offset in the source text. */
  readonly at: number;
  readonly from: string;
  readonly to: string;
}

interface Operator {
  readonly name: string;
  /** What it looks for; only code and SQL are searched, never comments. */
  readonly pattern: RegExp;
  /** What stands there afterwards; undefined where the place is left alone. */
  readonly replace: (match: RegExpExecArray) => string | undefined;
}

const from = (table: Readonly<Record<string, string>>) => (match: RegExpExecArray) => table[match[0]];

const TURNED = { ' === ': ' !== ', ' !== ': ' === ', ' < ': ' >= ', ' > ': ' <= ', ' <= ': ' > ', ' >= ': ' < ' };
const MOVED = { ' < ': ' <= ', ' <= ': ' < ', ' > ': ' >= ', ' >= ': ' > ', ' + 1': ' + 2', ' - 1': ' - 2' };
const SWAPPED = {
  first: 'last',
  last: 'first',
  min: 'max',
  max: 'min',
  fromMs: 'toMs',
  toMs: 'fromMs',
  price: 'quantity',
  quantity: 'price',
  open_price: 'close_price',
  close_price: 'open_price',
  rows: 'frames',
};

export const OPERATORS: readonly Operator[] = [
  { name: 'comparison turned', pattern: / (?:===|!==|<=|>=|<|>) /g, replace: from(TURNED) },
  { name: 'bound moved', pattern: / (?:<=|>=|<|>) | [+-] 1\b/g, replace: from(MOVED) },
  { name: 'condition joined otherwise', pattern: / (?:&&|\|\|) /g, replace: from({ ' && ': ' || ', ' || ': ' && ' }) },
  { name: 'commit left out', pattern: /'commit'/g, replace: () => `'rollback'` },
  {
    name: 'digest ignored',
    pattern: /\bif \(([^()\n]*(?:sha256|digest|hash|Hash|crc)[^()\n]*)\)/g,
    replace: (match) => `if (false && (${match[1]}))`,
  },
  {
    name: 'field swapped',
    pattern: /(?<=\.)(?:first|last|min|max|fromMs|toMs|price|quantity|open_price|close_price|rows)\b(?!\()/g,
    replace: from(SWAPPED),
  },
  { name: 'error not thrown', pattern: /^( *)throw (?=new \w)/gm, replace: (match) => `${match[1]}void ` },
];

/** The text with comments and imports blanked, so that offsets stay. */
function codeOf(text: string): string {
  const blank = (found: string) => found.replace(/[^\n]/g, ' ');
  return text
    .replace(/\/\*[\s\S]*?\*\//g, blank)
    .replace(/^[^'"`\n]*?\/\/.*$/gm, (line) => {
      const at = line.indexOf('//');
      return line.slice(0, at) + blank(line.slice(at));
    })
    .replace(/^(?:import|export) [^;]*? from '[^']*';$/gm, blank)
    .replace(/^(?:export )?(?:interface|type) [\s\S]*?^}$/gm, blank);
}

export function mutationsOf(text: string): Mutation[] {
  const code = codeOf(text);
  return OPERATORS.flatMap(({ name, pattern, replace }) =>
    [...code.matchAll(pattern)].flatMap((match) => {
      const to = replace(match as RegExpExecArray);
      return to === undefined ? [] : [{ operator: name, at: match.index, from: match[0], to }];
    }),
  );
}

export const applied = (text: string, { at, from: replaced, to }: Mutation): string =>
  text.slice(0, at) + to + text.slice(at + replaced.length);
