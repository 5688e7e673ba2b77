/** Bodies over HTTP/1.0: whole with their length, or not at all. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { gunzipSync, zstdDecompressSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { BufferPool, CODINGS, type Coding, MAX_GATHERED_BYTES, ResponseBody } from '../../serving/render/response.ts';

const PIECE = 256 * 1024;
const EIGHT_MIB = 8 * 1024 * 1024;
/** Random bytes, which no coding shortens. */
const NOISE = randomBytes(EIGHT_MIB);
const NOISE_PIECES = Array.from({ length: EIGHT_MIB / PIECE }, (_, n) => NOISE.subarray(n * PIECE, (n + 1) * PIECE));
const DECODERS: Readonly<Record<string, (body: Buffer) => Buffer>> = { gzip: gunzipSync, zstd: zstdDecompressSync };

interface Sent {
  /** The body, piece after piece. */
  readonly pieces: readonly Buffer[];
  readonly last: Buffer;
  readonly version?: '1.0' | '1.1';
  readonly proved?: boolean;
  readonly coding?: Coding;
}

/** What a client gets of a body, and how often the body was found to be too large. */
async function sent({ pieces, last, version = '1.0', proved = true, coding }: Sent) {
  const buffers = new BufferPool();
  let tooLarge = 0;
  let wasGathered = false;
  const server = createServer(async (_, response) => {
    const onTooLarge = () => {
      tooLarge++;
      response.writeHead(505, { 'Content-Length': '0' }).end();
    };
    const options = { headers: () => ({}), buffers, stallTimeoutMs: 60_000, coding, proved, onTooLarge };
    const body = new ResponseBody(response, options);
    const gone = once(response, 'close');
    let room: PromiseWithResolvers<void> | undefined;
    body.flow = {
      pause: () => {
        room = Promise.withResolvers();
      },
      resume: () => room?.resolve(),
    };
    for (const piece of pieces) {
      const bytes = body.buffer();
      piece.copy(bytes);
      body.write(bytes.subarray(0, piece.length));
      await Promise.race([room?.promise, gone]);
    }
    await body.end(last, 7);
    wasGathered = body.wasGathered;
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.write(`GET / HTTP/${version}\r\nHost: a\r\nConnection: close\r\n\r\n`);
  const whole = await buffer(socket);
  server.close();
  const end = whole.indexOf('\r\n\r\n');
  return { head: whole.subarray(0, end).toString(), body: whole.subarray(end + 4), tooLarge, wasGathered };
}

test('8 MiB are sent with their length, row count and digest; they are the bytes that were written', async () => {
  expect(MAX_GATHERED_BYTES).toBe(EIGHT_MIB);
  const answer = await sent({ pieces: NOISE_PIECES, last: Buffer.alloc(0) });
  expect(answer.head).toMatch(/^HTTP\/1\.1 200 /);
  expect(answer.head).toContain(`Content-Length: ${EIGHT_MIB}`);
  expect(answer.head).toContain('X-Svc-Row-Count: 7');
  const digest = createHash('sha256').update(NOISE).digest('hex');
  expect(answer.head).toContain(`X-Svc-Sha256: ${digest}`);
  expect(answer.body.equals(NOISE)).toBe(true);
  expect([answer.tooLarge, answer.wasGathered]).toEqual([0, true]);
});

test.each<[string, Coding | undefined]>([
  ['no coding', undefined],
  ...CODINGS.map((coding): [string, Coding] => [coding.name, coding]),
])('one byte more is reported once, and nothing of it is sent: %s', async (_, coding) => {
  const answer = await sent({ pieces: NOISE_PIECES, last: Buffer.from('x'), coding });
  expect(answer.head).toMatch(/^HTTP\/1\.1 505 /);
  expect([answer.body.length, answer.tooLarge]).toEqual([0, 1]);
});

test.each(CODINGS)('what counts is the length as it is sent: $name', async (coding) => {
  const pieces = Array.from({ length: 64 }, () => Buffer.alloc(PIECE, 'tidemark '));
  const answer = await sent({ pieces, last: Buffer.from('the end'), coding });
  expect(answer.head).toContain(`Content-Length: ${answer.body.length}`);
  const plain = Buffer.concat([...pieces, Buffer.from('the end')]);
  expect(DECODERS[coding.name](answer.body).equals(plain)).toBe(true);
});

test('over HTTP/1.1, and where the form shows its end, bodies of any length are sent as they come', async () => {
  const long = { pieces: NOISE_PIECES, last: Buffer.from('x') };
  for (const more of [{ version: '1.1' }, { proved: false }] as const) {
    const answer = await sent({ ...long, ...more });
    expect(answer.head).toMatch(/^HTTP\/1\.1 200 /);
    expect(answer.head).not.toContain('Content-Length');
    expect(answer.body.length).toBeGreaterThan(EIGHT_MIB);
    expect(answer.wasGathered).toBe(false);
  }
});
