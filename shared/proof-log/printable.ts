/** Text of others, as it may be shown: a control character would move the cursor, or begin a line of its own. */

const escaped = (found: string) => `\\u{${found.codePointAt(0)!.toString(16)}}`;

/** A line with words of others. */
export const printable = (line: string): string => line.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, escaped);

/** Lines, whose ends stay as they are. */
export const printableLines = (text: string): string =>
  text.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (found) => (found === '\n' ? found : escaped(found)));

/** JSON that shows as what it says: JSON itself escapes the control characters of ASCII only. */
export const printableJson = (json: string): string =>
  json.replaceAll(/[\u007f-\u009f\p{Cf}\u2028\u2029]/gu, (found) =>
    Array.from({ length: found.length }, (_, at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, '0')}`).join(
      '',
    ),
  );
