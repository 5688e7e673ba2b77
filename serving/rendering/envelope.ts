/** The members of an answer beside its rows, for bodies that hold rows alone: in headers, and in Arrow's metadata. */

export type Envelope = Readonly<Record<string, unknown>>;

/**
 * For a body that carries it along. Without freshness, which is another one every second: the same rows of the same
 * window are the same bytes.
 */
export function envelopeMetadata(envelope: Envelope): [name: string, text: string][] {
  return Object.entries(envelope)
    .filter(([name]) => name !== 'freshness')
    .map(([name, value]) => [name, textOf(value)]);
}

/** `view_id` is `X-Svc-View-Id`. */
export function envelopeHeaders(envelope: Envelope): Record<string, string> {
  return Object.fromEntries(
    Object.entries(envelope).map(([name, value]) => [
      headerName(name),
      name === 'warnings' ? shortened(value) : ascii(textOf(value)),
    ]),
  );
}

/** `row_count` -> `X-Svc-Row-Count` */
export const headerName = (name: string): string =>
  `X-Svc-${name.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => `-${letter.toUpperCase()}`).slice(1)}`;

/** Clients take 16 KiB of headers and common proxies less; the schema of the widest dataset takes one. */
const MAX_WARNINGS_BYTES = 4096;

/** Warnings that name a hundred gaps do not fit a header: their details are left out, and that is said. */
function shortened(warnings: unknown): string {
  const list = warnings as readonly { readonly code: string; readonly message: string }[];
  const shorter = [
    list,
    list.map(({ code, message }) => ({ code, message, details: { omitted: true } })),
    list.map(({ code }) => ({ code })),
  ].map((some) => ascii(JSON.stringify(some)));
  return shorter.find((text) => text.length <= MAX_WARNINGS_BYTES) ?? shorter[shorter.length - 1];
}

/** Texts as they are, everything else as JSON. */
const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

/** Header values are ASCII; JSON can say every other character in it. */
const ascii = (text: string): string =>
  text.replaceAll(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
