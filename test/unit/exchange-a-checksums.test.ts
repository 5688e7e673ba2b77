/** Exchange A's checksum files: the forms that tools write, other lines beside the document's, and what is refused why. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { documentFor, parseChecksum } from '../../pipelines/sources/exchange_a/source.ts';
import { TidemarkError } from '../../shared/errors.ts';

const document = documentFor(new URL('https://vendor.test/'), 'BTCUSDT', '2025-01-09');
const NAME = document.name;
const OTHER = 'BTCUSDT-trades-2025-01-08.zip';
const read = (text: string) => parseChecksum(text, document);
const refused = (text: string) => {
  try {
    read(text);
  } catch (error) {
    if (error instanceof TidemarkError) return error;
    throw error;
  }
  throw new Error('it was read');
};

const hexOf = (digits: number) =>
  fc
    .tuple(fc.array(fc.constantFrom(...'0123456789abcdef'), { minLength: digits, maxLength: digits }), fc.boolean())
    .map(([all, isUpper]) => (isUpper ? all.join('').toUpperCase() : all.join('')));
const sha256 = hexOf(64);
const folder = fc.constantFrom('', './', '././', 'spot/daily/trades/BTCUSDT/', '/srv/out/', '../', 'C:\\out\\');
type Form = (digest: string, path: string) => string;
const FORMS: readonly Form[] = [
  (digest, path) => `${digest}  ${path}`,
  (digest, path) => `${digest} *${path}`,
  (digest, path) => `${digest} ${path}`,
  (digest, path) => `${digest}\t${path}`,
  (digest, path) => `SHA256 (${path}) = ${digest}`,
  (digest, path) => `SHA256(${path})= ${digest}`,
  (digest, path) => `SHA2-256(${path})= ${digest}`,
];
const form = fc.constantFrom(...FORMS);
/** Lines that say nothing of the document's sha256. */
const besides = fc.oneof(
  fc.tuple(form, sha256, folder).map(([write, digest, path]) => write(digest, `${path}${OTHER}`)),
  fc.tuple(hexOf(32), folder).map(([digest, path]) => `${digest}  ${path}${NAME}`),
  fc.tuple(hexOf(128), folder).map(([digest, path]) => `SHA512 (${path}${NAME}) = ${digest}`),
  hexOf(64).map((digest) => `SHA512/256 (${NAME}) = ${digest}`),
  sha256,
  fc.constantFrom('', '  ', '# sha256', '-----BEGIN PGP SIGNED MESSAGE-----', '<html>'),
);
const dress = fc.record({
  end: fc.constantFrom('\n', '\r\n', '\r'),
  bom: fc.constantFrom('', '\uFEFF'),
  last: fc.boolean(),
});
const fileOf = (lines: readonly string[], { end, bom, last }: { end: string; bom: string; last: boolean }) =>
  `${bom}${lines.join(end)}${last ? end : ''}`;

test('property: the sha256 is read in every form, with any path, among any other lines', () => {
  fc.assert(
    fc.property(
      form,
      sha256,
      folder,
      fc.array(besides, { maxLength: 5 }),
      fc.nat(),
      dress,
      (write, digest, path, others, at, worn) => {
        const lines = others.toSpliced(at % (others.length + 1), 0, write(digest, `${path}${NAME}`));
        expect(read(fileOf(lines, worn))).toBe(digest.toLowerCase());
      },
    ),
  );
});

test('property: without a line of the document nothing is read, and the refusal holds nothing of the text', () => {
  const others = fc
    .array(besides, { minLength: 2, maxLength: 5 })
    .filter((lines) => lines.filter((line) => line.trim()).length > 1);
  fc.assert(
    fc.property(others, dress, (lines, worn) => {
      const { code, message } = refused(fileOf(lines, worn));
      expect(['SOURCE_DOCUMENT_INVALID', 'SOURCE_CHECKSUM_MISMATCH']).toContain(code);
      for (const line of lines) if (line.trim().length > 5) expect(message).not.toContain(line.trim());
    }),
  );
});

describe('a checksum file', () => {
  const [A, B] = ['a'.repeat(64), 'b'.repeat(64)];

  test('of one digest alone is read; a digest that names no file says nothing among others', () => {
    expect(read(A)).toBe(A);
    expect(read(`\uFEFF${A}\r\n\r\n`)).toBe(A);
    expect(read(`${B}\n${A}  ${NAME}\n`)).toBe(A);
    expect(refused(`${A}\n${B}\n`).message).toContain('of 2 lines, none of which names it');
  });

  test('that names the document in folders too means the one beside it', () => {
    expect(read(`${A}  old/${NAME}\n${B}  ./${NAME}\n`)).toBe(B);
    expect(read(`${A}  ${NAME}\n${A.toUpperCase()}  ./${NAME}\n`)).toBe(A);
  });

  test.each([
    ['two digests of it', `${A}  ${NAME}\n${B}  ${NAME}\n`, 'SOURCE_CHECKSUM_MISMATCH', 'states 2 sha256 of it'],
    ['it in two folders', `${A}  x/${NAME}\n${B}  y/${NAME}\n`, 'SOURCE_CHECKSUM_MISMATCH', 'states 2 sha256 of it'],
    ['another day', `${A}  ./${OTHER}\n`, 'SOURCE_CHECKSUM_MISMATCH', `for ${OTHER}`],
    ['another day in BSD form', `SHA256 (${OTHER}) = ${A}`, 'SOURCE_CHECKSUM_MISMATCH', `for ${OTHER}`],
    ['a file of any name', `${A}  secret.txt`, 'SOURCE_CHECKSUM_MISMATCH', 'for another document'],
    [
      'other files',
      `${A}  other.zip\n${B}  third.zip`,
      'SOURCE_CHECKSUM_MISMATCH',
      'of 2 lines, none of which names it',
    ],
    [
      'an MD5',
      `MD5 (${NAME}) = ${A.slice(32)}`,
      'SOURCE_DOCUMENT_INVALID',
      'a digest of 32 digits of it, which is no sha256',
    ],
    ['a SHA512', `${A}${B}  ${NAME}`, 'SOURCE_DOCUMENT_INVALID', 'a digest of 128 digits of it, which is no sha256'],
    ['a bare MD5', A.slice(32), 'SOURCE_DOCUMENT_INVALID', 'a digest of 32 digits of it, which is no sha256'],
    ['a page', '<html>maintenance</html>', 'SOURCE_DOCUMENT_INVALID', 'holds no sha256 (24 characters)'],
    ['nothing', '', 'SOURCE_DOCUMENT_INVALID', 'holds no sha256 (0 characters)'],
    ['a form of its own', `{"sha256":"${'a'.repeat(64)}"}`, 'SOURCE_DOCUMENT_INVALID', 'in a form that is not known'],
  ])('of %s is refused with that reason', (_, text, code, why) => {
    const fault = refused(text);
    expect(fault.code).toBe(code);
    expect(fault.message).toContain(why);
    expect(fault.message).not.toContain('secret');
    expect(fault.details.document).toBe(NAME);
  });
});
