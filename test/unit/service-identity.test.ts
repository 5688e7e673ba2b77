/** No command sends the key before the service has shown that it is the one of the state folder. */
import { mkdtempDisposableSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { provenService, sha256Of } from '../../pipelines/cli/running.ts';
import { answerTo, CHALLENGE_HEADER, IDENTITY_HEADER, newIdentity } from '../../shared/service-identity.ts';
import { processRef } from '../../shared/stack/processes.ts';
import { runCommand } from '../support/command.ts';

const IDENTITY = newIdentity();
const KEY = 'a'.repeat(48);

/** Something that listens where the service did, and a state folder that names it. */
async function place(answer: (request: IncomingMessage, response: ServerResponse) => void) {
  const seen: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    seen.push(request);
    answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const folder = mkdtempDisposableSync(join(tmpdir(), 'tidemark-identity-'));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const record = { process: processRef(process.pid), url, keySha256: sha256Of(KEY), identity: IDENTITY };
  writeFileSync(join(folder.path, 'up.json'), JSON.stringify(record));
  return {
    url,
    folder: folder.path,
    seen,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      folder.remove();
    },
  };
}
const proving = (identity: string) => (request: IncomingMessage, response: ServerResponse) => {
  const challenge = request.headers[CHALLENGE_HEADER.toLowerCase()] as string;
  response.setHeader(IDENTITY_HEADER, answerTo(identity, challenge) ?? '').end('{"status":"ok"}');
};

test('the service of the folder proves itself, each time with another answer', async () => {
  await using there = await place(proving(IDENTITY));
  for (let round = 0; round < 2; round++) expect((await provenService(there.folder)).url).toBe(there.url);
  const challenges = there.seen.map(({ headers }) => headers[CHALLENGE_HEADER.toLowerCase()]);
  expect(new Set(challenges).size).toBe(2);
  expect(challenges.every((text) => /^[0-9a-f]{64}$/.test(String(text)))).toBe(true);
});

test.each<[string, Parameters<typeof place>[0]]>([
  ['proves nothing', (_, response) => void response.end('{"status":"ok"}')],
  ['is the service of another folder', proving(newIdentity())],
  [
    'sends the challenge back',
    ({ headers }, response) =>
      void response.setHeader(IDENTITY_HEADER, headers[CHALLENGE_HEADER.toLowerCase()]!).end('{}'),
  ],
  ['sends elsewhere', (_, response) => void response.writeHead(307, { Location: 'http://127.0.0.1:9/' }).end()],
])('the key does not leave for what %s', async (_, answer) => {
  await using there = await place(answer);
  await expect(provenService(there.folder)).rejects.toMatchObject({ code: 'SERVICE_UNREACHABLE' });
  const env = { SVC_STATE_DIR: there.folder, SVC_INTERNAL_API_KEY: KEY };
  const { exit, json } = await runCommand(['env'], env);
  expect([exit, json.error.code]).toEqual([1, 'SERVICE_UNREACHABLE']);
  for (const { headers, url } of there.seen) {
    expect(url).toBe('/healthz');
    expect(JSON.stringify(headers)).not.toContain(KEY);
  }
});

test('a challenge is 64 hexadecimal digits: nothing else is answered', () => {
  for (const text of [undefined, '', 'a'.repeat(63), 'g'.repeat(64), `${'a'.repeat(64)}\n`]) {
    expect(answerTo(IDENTITY, text)).toBeUndefined();
  }
  expect(answerTo(IDENTITY, 'a'.repeat(64))).toMatch(/^[0-9a-f]{64}$/);
});
