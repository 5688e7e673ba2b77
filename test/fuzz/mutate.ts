/**
 * Mutations of documents: of their bytes, of their lines and cells, of their JSON. Each takes a valid or an earlier mutated
 * document and a source of chance, so that a seed names the whole run.
 */

export type Random = () => number;

/** What a document is made of, which says which mutations are worth trying. */
export type Form = 'bytes' | 'lines' | 'json' | 'text';

export interface Material {
  readonly form: Form;
  /** Other documents of the same kind, to splice with. */
  readonly others: readonly Buffer[];
  /** Words of the format. */
  readonly words: readonly string[];
}

export const below = (random: Random, count: number): number => Math.floor(random() * count);
export const oneOf = <T>(random: Random, values: readonly T[]): T => values[below(random, values.length)];

const NUMBERS = [
  ...[
    '0',
    '-0',
    '1',
    '-1',
    '00',
    '01',
    '1.',
    '.5',
    '0.0',
    '1e5',
    '1e-5',
    '1E400',
    '-1e400',
    '1e-400',
    '1e308',
    'NaN',
    'Infinity',
  ],
  ...['2147483647', '2147483648', '-2147483649', '4294967295', '4294967296', '9007199254740991', '9007199254740993'],
  ...['9223372036854775807', '9223372036854775808', '-9223372036854775809', '18446744073709551616', '999999999999999'],
  ...['1000000000000000', '0.00000001', '0.000000001', '9007199254740991', '9007199254740992', '21000000.00000001'],
  ...[
    '123456789012345678901234567890',
    `1${'0'.repeat(400)}`,
    `0.${'0'.repeat(400)}1`,
    '8.64e15',
    '8640000000000001',
    '0x10',
    '1_0',
  ],
];
const ODD_TEXTS = [
  '\0',
  '\u00e9',
  '\ufeff',
  '\u202e',
  '\ud83d\ude00',
  '\u2028',
  '\x7f',
  '\t',
  ' ',
  '"',
  "'",
  '""',
  '\\',
  '\\u0000',
  '\r',
];
const MORE_TEXTS = [
  '%00',
  '../../x',
  '<!--',
  ']]>',
  '&#0;',
  '__proto__',
  'constructor',
  'toString',
  '\\ud800',
  '2024-02-30',
];
const TEXTS = [...ODD_TEXTS, ...MORE_TEXTS, '9999-12-31', '0000-01-01', '-000001-01-01'];
const BYTES = [
  0, 1, 0x0a, 0x0d, 0x20, 0x22, 0x2c, 0x2d, 0x2e, 0x30, 0x39, 0x3a, 0x5b, 0x5c, 0x7b, 0x7f, 0x80, 0xc0, 0xef, 0xfd,
  0xfe, 0xff,
];
const WORDS_32 = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe];

type Change = (bytes: Buffer, random: Random, material: Material) => Buffer;

/** A short range of the bytes: mostly some, now and then most of them. */
function range(bytes: Buffer, random: Random): readonly [from: number, to: number] {
  const from = below(random, bytes.length + 1);
  const most = random() < 0.2 ? bytes.length : Math.min(32, bytes.length);
  return [from, Math.min(bytes.length, from + 1 + below(random, most + 1))];
}

const replaced = (bytes: Buffer, from: number, to: number, by: Uint8Array): Buffer =>
  Buffer.concat([bytes.subarray(0, from), by, bytes.subarray(to)]);

const BYTE_CHANGES: readonly Change[] = [
  (bytes, random) => {
    const copy = Buffer.from(bytes);
    if (copy.length > 0) copy[below(random, copy.length)] ^= 1 << below(random, 8);
    return copy;
  },
  (bytes, random) => {
    const copy = Buffer.from(bytes);
    if (copy.length > 0) copy[below(random, copy.length)] = random() < 0.5 ? oneOf(random, BYTES) : below(random, 256);
    return copy;
  },
  (bytes, random) => replaced(bytes, ...range(bytes, random), Buffer.alloc(0)),
  (bytes, random) => {
    const [from, to] = range(bytes, random);
    return replaced(bytes, to, to, bytes.subarray(from, to));
  },
  (bytes, random) => bytes.subarray(0, below(random, bytes.length + 1)),
  (bytes, random) => {
    const at = below(random, bytes.length + 1);
    return replaced(bytes, at, at, Buffer.alloc(1 + below(random, random() < 0.1 ? 3000 : 8), oneOf(random, BYTES)));
  },
  (bytes, random, { others }) => {
    const other = oneOf(random, others);
    return Buffer.concat([
      bytes.subarray(0, below(random, bytes.length + 1)),
      other.subarray(below(random, other.length + 1)),
    ]);
  },
  (bytes, random, { words }) => {
    const [from, to] = range(bytes, random);
    const word = oneOf(random, random() < 0.6 && words.length > 0 ? words : TEXTS);
    return replaced(bytes, from, random() < 0.5 ? from : to, Buffer.from(word));
  },
  (bytes, random) => {
    const copy = Buffer.from(bytes);
    const size = oneOf(random, [2, 4]);
    if (copy.length < size) return copy;
    const at = below(random, copy.length - size + 1);
    const value = random() < 0.5 ? oneOf(random, WORDS_32) : copy.readUIntLE(at, size) + below(random, 9) - 4;
    copy.writeUIntLE(Math.abs(value) % 2 ** (8 * size), at, size);
    return copy;
  },
];

const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** A number near another, or at a limit. */
function numberLike(text: string, random: Random): string {
  if (random() < 0.5) return oneOf(random, NUMBERS);
  const digit = below(random, text.length);
  if (random() < 0.3)
    return text.slice(0, digit) + oneOf(random, ['', '.', 'e', '-', '9', '0', ' ', ',']) + text.slice(digit + 1);
  const number = Number(text);
  return Number.isSafeInteger(number) ? String(number + oneOf(random, [-1000, -1, 1, 1000, 86_400_000])) : `-${text}`;
}

const asText = (change: (text: string, random: Random, material: Material) => string): Change => {
  // One letter a byte: what is no UTF-8 stays as it is.
  return (bytes, random, material) => Buffer.from(change(bytes.toString('latin1'), random, material), 'latin1');
};

const utf8 = (text: string) => Buffer.from(text).toString('latin1');

const TEXT_CHANGES: readonly Change[] = [
  asText((text, random) => {
    const found = [...text.matchAll(NUMBER)];
    if (found.length === 0) return text;
    const { index, 0: number } = oneOf(random, found);
    return text.slice(0, index) + numberLike(number, random) + text.slice(index + number.length);
  }),
  asText((text, random) => {
    const at = below(random, text.length + 1);
    return text.slice(0, at) + utf8(oneOf(random, TEXTS)) + text.slice(at);
  }),
  asText((text, random) => {
    const [from, to] = oneOf(random, [
      ['"', "'"],
      ["'", '"'],
      ['\n', '\r\n'],
      ['\r\n', '\n'],
      [',', ';'],
    ]);
    return text.replaceAll(from, to);
  }),
  asText((text, random) =>
    random() < 0.5 ? `\xef\xbb\xbf${text}` : random() < 0.5 ? text.toUpperCase() : text.trimEnd(),
  ),
];

/** Applies a change to the list of lines, or of the cells of one line. */
const LIST_CHANGES: readonly ((list: string[], random: Random) => string[])[] = [
  (list, random) => list.toSpliced(below(random, list.length), 1),
  (list, random) => list.toSpliced(below(random, list.length), 0, oneOf(random, list)),
  (list, random) => {
    const [a, b] = [below(random, list.length), below(random, list.length)];
    return list.with(a, list[b]).with(b, list[a]);
  },
  (list, random) => list.with(below(random, list.length), oneOf(random, ['', ' ', ...NUMBERS, ...TEXTS.map(utf8)])),
  (list, random) => list.with(below(random, list.length), oneOf(random, list)),
  (list, random) => list.toSpliced(below(random, list.length + 1), 0, ''),
  (list, random) => {
    const at = below(random, list.length);
    return list.with(at, `"${list[at]}"`);
  },
];

const LINE_CHANGES: readonly Change[] = [
  asText((text, random) => oneOf(random, LIST_CHANGES)(text.split('\n'), random).join('\n')),
  asText((text, random, { others }) => {
    const lines = text.split('\n');
    const other = oneOf(random, others).toString('latin1').split('\n');
    return lines.toSpliced(below(random, lines.length + 1), below(random, 2), oneOf(random, other)).join('\n');
  }),
  ...Array.from({ length: 3 }, () =>
    asText((text, random) => {
      const lines = text.split('\n');
      const at = below(random, lines.length);
      return lines.with(at, oneOf(random, LIST_CHANGES)(lines[at].split(','), random).join(',')).join('\n');
    }),
  ),
];

type Tree = null | boolean | number | string | Tree[] | { [name: string]: Tree };

/** The places of a tree: its parent and its key there. */
function placesOf(tree: Tree): { parent: { [key: string]: Tree }; key: string }[] {
  const places: { parent: { [key: string]: Tree }; key: string }[] = [];
  const pending: Tree[] = [tree];
  for (let node = pending.pop(); node !== undefined && places.length < 2000; node = pending.pop()) {
    if (typeof node !== 'object' || node === null) continue;
    for (const key of Object.keys(node)) {
      places.push({ parent: node as { [key: string]: Tree }, key });
      pending.push((node as { [key: string]: Tree })[key]);
    }
  }
  return places;
}

const VALUES: readonly Tree[] = [
  null,
  true,
  false,
  0,
  -1,
  1,
  0.5,
  1e21,
  2 ** 53,
  -(2 ** 63),
  '',
  ' ',
  '0',
  'x',
  [],
  {},
  [[]],
  [null],
  [{}],
];

function treeChanged(tree: Tree, random: Random): Tree {
  const places = placesOf(tree);
  if (places.length === 0) return oneOf(random, VALUES);
  const { parent, key } = oneOf(random, places);
  const value = parent[key];
  switch (below(random, 9)) {
    case 0:
      if (Array.isArray(parent)) parent.splice(Number(key), 1);
      else delete parent[key];
      break;
    case 1:
      parent[key] = structuredClone(oneOf(random, VALUES));
      break;
    case 2:
      parent[key] = oneOf(random, TEXTS);
      break;
    case 3: {
      const other = oneOf(random, places);
      parent[key] = structuredClone(other.parent[other.key]);
      break;
    }
    case 4:
      if (Array.isArray(value)) value.push(...value.slice(0, 3).map((each) => structuredClone(each)));
      else parent[`${key}${oneOf(random, ['', '_', '2'])}`] = structuredClone(value);
      break;
    case 5:
      parent[key] = random() < 0.5 ? [value] : { [key]: value };
      break;
    case 6:
      parent[key] = typeof value === 'number' ? Number(oneOf(random, NUMBERS)) : JSON.stringify(value);
      break;
    case 7:
      parent[key] = typeof value === 'string' ? numberLike(value || '0', random) : Number(value);
      break;
    default:
      parent[oneOf(random, ['__proto__x', 'constructor', key.toUpperCase(), `${key}\0`, ''])] = value;
  }
  return tree;
}

const JSON_CHANGES: readonly Change[] = [
  ...Array.from(
    { length: 3 },
    (): Change => (bytes, random) => {
      let tree: Tree;
      try {
        tree = JSON.parse(bytes.toString());
      } catch {
        return oneOf(random, TEXT_CHANGES)(bytes, random, { form: 'json', others: [bytes], words: [] });
      }
      try {
        return Buffer.from(JSON.stringify(treeChanged(tree, random)));
      } catch {
        // Nested deeper than JSON.stringify goes.
        return bytes;
      }
    },
  ),
  (bytes, random) => {
    const depth = oneOf(random, [10, 40, 2000, 20_000]);
    const [open, close] = random() < 0.5 ? ['[', ']'] : ['{"a":', '}'];
    const closing = random() < 0.8 ? close.repeat(depth) : '';
    const at = random() < 0.5 ? bytes.indexOf(':') + 1 : 0;
    return Buffer.concat([
      bytes.subarray(0, at),
      Buffer.from(open.repeat(depth)),
      bytes.subarray(at),
      Buffer.from(closing),
    ]);
  },
];

const OF_FORM: Readonly<Record<Form, readonly (readonly Change[])[]>> = {
  bytes: [BYTE_CHANGES],
  text: [BYTE_CHANGES, TEXT_CHANGES],
  lines: [BYTE_CHANGES, TEXT_CHANGES, LINE_CHANGES, LINE_CHANGES],
  json: [BYTE_CHANGES, TEXT_CHANGES, JSON_CHANGES, JSON_CHANGES],
};

/** A larger one is cut: small documents reach the same code, and more of them. */
export const MAX_DOCUMENT_BYTES = 64 * 1024;

/** The document with one to four changes, mostly one. */
export function mutated(bytes: Buffer, random: Random, material: Material): Buffer {
  let result = bytes;
  do {
    const changes = oneOf(random, OF_FORM[material.form]);
    result = oneOf(random, changes)(result, random, material);
  } while (random() < 0.35);
  return result.subarray(0, MAX_DOCUMENT_BYTES);
}
