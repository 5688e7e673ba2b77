/**
 * What a legal artifact stands for, told by its content: never by its path, its name or the matrix's version. The artifact
 * of the sample and a form that nobody filled in are no licence; they cover synthetic rows alone.
 */

/** Of `serving/rights/sample/sample-data-only.md`, which has held this sentence since its first release. */
const SAMPLE_SENTENCE = 'This is not a licence. It is the artifact of the sample rights matrix';

/** Begins each place of a form that is to be filled in. */
export const UNSIGNED = '[UNSIGNED:';
/** Of every form that `rights init` writes. */
export const FORM_TITLE = 'Legal sign-off for';
/** A line of a form whose place was emptied instead of filled in. */
const EMPTY_ANSWER = /^- [^:\n]+:[ \t]*$/m;

/** Both marks stand at the top of short documents; a scanned licence need not be searched to its end. */
const SEARCHED_BYTES = 1024 * 1024;

export interface ArtifactMeaning {
  /** Why it is no artifact at all. */
  readonly fault?: string;
  /** What it is instead of a licence, and covers synthetic rows only; undefined where it covers the source's own. */
  readonly syntheticOnly?: string;
}

/** `bytes`: the content, or why there is none. */
export function meaningOf(bytes: Buffer | string): ArtifactMeaning {
  if (typeof bytes === 'string') return { fault: bytes };
  if (!bytes.some((byte) => byte > 0x20)) return { fault: 'it is empty' };
  // An editor may have changed line ends, wrapped the lines anew or saved two bytes a letter: the sentences stay.
  const text = bytes.toString('latin1', 0, SEARCHED_BYTES).replaceAll('\0', '').replaceAll('\r', '');
  const words = text.replace(/\s+/g, ' ');
  if (words.includes(SAMPLE_SENTENCE)) {
    return { syntheticOnly: 'the artifact of the sample, which is no licence' };
  }
  if (words.includes(UNSIGNED) || (words.includes(FORM_TITLE) && EMPTY_ANSWER.test(text))) {
    return { syntheticOnly: 'a form of `rights init` that is not filled in' };
  }
  return {};
}
