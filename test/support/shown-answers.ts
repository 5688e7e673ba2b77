/** What a page shows of an answer, compared with the answer. */

interface Token {
  readonly text: string;
  readonly at: number;
  readonly kind: 'word' | 'value' | 'time' | 'rest';
}

const TOKEN = new RegExp(
  [
    String.raw`(?<rest>[\w+/=-]*\.\.\.)`,
    String.raw`(?<time>\d{4}-\d\d-\d\dT[\d:.]+Z)`,
    String.raw`(?<value>\d{4}-\d\d-\d\d(?!\d)|[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|(?=[a-f]*\d)[\da-f]{16,}|[Tt]rue|[Ff]alse|(?:(?<!\w)-)?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?!\w)`,
    String.raw`\w+|\S`,
  ].join('|'),
  'g',
);

function tokensOf(text: string): Token[] {
  return [...text.matchAll(TOKEN)].map(({ 0: token, index: at, groups }) => ({
    ...{ text: token, at },
    kind: groups?.rest !== undefined ? 'rest' : groups?.time ? 'time' : groups?.value ? 'value' : 'word',
  }));
}

/** A word that is cut, such as `24bc504b...`, is one token; a bare `...` is any number of them. */
const isGap = ({ kind, text }: Token) => kind === 'rest' && text === '...';

const fits = (shown: Token, actual: Token): boolean =>
  shown.kind === 'rest' ? true : shown.kind === actual.kind && (shown.kind !== 'word' || shown.text === actual.text);

/** Which token of the answer each token of what is shown stands for, gaps left out; or the first that stands for none. */
function paired(shown: readonly Token[], actual: readonly Token[]): Map<Token, Token> | Token {
  const pairs = new Map<Token, Token>();
  const chunks: Token[][] = [[]];
  for (const token of shown) {
    if (isGap(token)) chunks.push([]);
    else chunks.at(-1)?.push(token);
  }
  let from = 0;
  for (const [index, chunk] of chunks.entries()) {
    const isLast = index === chunks.length - 1;
    const places = isLast ? [actual.length - chunk.length] : index === 0 ? [0] : range(from, actual.length);
    let furthest = 0;
    const at = places.find((place) => {
      if (place < from) return false;
      const differs = chunk.findIndex(
        (token, offset) => !actual[place + offset] || !fits(token, actual[place + offset]),
      );
      furthest = Math.max(furthest, differs);
      return differs === -1;
    });
    if (at === undefined || (chunks.length === 1 && at !== 0)) return chunk[furthest] ?? shown[0];
    for (const [offset, token] of chunk.entries()) pairs.set(token, actual[at + offset]);
    from = at + chunk.length;
  }
  return pairs;
}

const range = (from: number, to: number) => Array.from({ length: Math.max(0, to - from) }, (_, index) => from + index);

/** As much of the actual token as is shown of it. */
const asShown = (shown: Token, actual: Token) =>
  shown.kind === 'rest' ? `${actual.text.slice(0, shown.text.length - 3)}...` : actual.text;

/** What a block prints before what is shown. */
const BEFORE = tokensOf('...');

export interface Comparison {
  /** What differs, in words; undefined when nothing does. */
  readonly fault?: string;
  /** What is shown, with the values of the answer. */
  readonly renewed: string;
}

/**
 * Compares the end of what a block prints with what a page shows of it. White space does not count, and `...` stands for anything.
 * @param valuesDiffer numbers, digests, dates and times need only be such. Times always need only be.
 */
export function compareAnswer(shown: string, answer: string, { valuesDiffer }: { valuesDiffer: boolean }): Comparison {
  const tokens = [...BEFORE, ...tokensOf(shown)];
  const pairs = paired(tokens, tokensOf(answer));
  if (!(pairs instanceof Map)) {
    const words = shown.slice(pairs.at, pairs.at + 60).split('\n')[0];
    return { fault: `the answer has no ${JSON.stringify(words)} where the page shows it`, renewed: shown };
  }
  let renewed = '';
  let end = 0;
  let fault: string | undefined;
  for (const token of tokens.slice(BEFORE.length)) {
    const actual = pairs.get(token);
    const text = actual === undefined ? token.text : asShown(token, actual);
    if (text !== token.text && token.kind !== 'time' && !valuesDiffer) {
      fault ??= `the page shows ${token.text}, and the answer has ${text}`;
    }
    renewed += shown.slice(end, token.at) + text;
    end = token.at + token.text.length;
  }
  return { fault, renewed: renewed + shown.slice(end) };
}
