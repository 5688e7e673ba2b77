/** The request headers that the service heeds, once: the OpenAPI document and preflights are made from this table. */

export interface RequestHeader {
  readonly doc: string;
  /** A value that does not match is refused as a fault of the contract. Without a pattern: ignored, or as documented. */
  readonly pattern?: RegExp;
}

export const REQUEST_HEADERS = {
  'X-Request-Id': {
    doc: 'Names the request in the answer and in logs: 1 to 128 letters, digits, `.`, `_`, `-`. Any other value is replaced by one that the service makes.',
  },
  'X-Backend-Token': {
    doc: 'The caller’s own password of the read-only database role: for datasets whose rights are `BYOK Required`.',
  },
  'Accept-Encoding': { doc: 'Content codings that the client can read: `zstd`, `gzip`.' },
  'Idempotency-Key': {
    doc: 'Names this submit: 1 to 255 printable ASCII characters, without a space at either end. The same key with the same body is the same export; with another body it is refused.',
    pattern: /^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/,
  },
  Range: {
    doc: 'One range of bytes, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-512`. Several ranges, and what is no range, get the whole file.',
  },
  'If-Range': { doc: 'The `ETag` that `Range` goes on from. Of another file the whole is sent.' },
  'If-Match': { doc: 'The `ETag`s of the files that will do, or `*`. Any other file is refused with 412.' },
  'If-None-Match': { doc: 'The `ETag`s of the files that the client has already. One of them is answered with 304.' },
  'If-Modified-Since': {
    doc: 'A file that has not changed since is answered with 304. Not asked beside `If-None-Match`.',
  },
  'If-Unmodified-Since': { doc: 'A file that changed since is refused with 412. Not asked beside `If-Match`.' },
} as const satisfies Record<string, RequestHeader>;

export type RequestHeaderName = keyof typeof REQUEST_HEADERS;
