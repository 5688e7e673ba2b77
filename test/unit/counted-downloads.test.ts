/** Downloads in the audit log: one record a key, file and hour, however often the key asks. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ExportAudit } from '../../serving/exports/audit.ts';
import type { AuditRecord } from '../../shared/audit/records.ts';
import { verifyAudit } from '../../shared/audit/verify.ts';
import { createLogger } from '../../shared/logger.ts';

async function downloadsIn(directory: string): Promise<AuditRecord[]> {
  expect((await verifyAudit(directory)).findings).toEqual([]);
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.jsonl'));
  const texts = await Promise.all(names.sort().map((name) => readFile(join(directory, name), 'utf8')));
  const records = texts.flatMap((text) => text.trim().split('\n')).map((line) => JSON.parse(line) as AuditRecord);
  return records.filter(({ event }) => event === 'export_download');
}

test('a thousand downloads of a file by a key were a thousand records', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'tidemark-downloads-'));
  let now = Date.parse('2024-05-01T10:59:00Z');
  const log = createLogger('silent', 'test');
  {
    await using audit = new ExportAudit({ directory, role: 'serving', log, now: () => now, keepHead: async () => {} });
    const from = (apiKey: string, file: string, requestId: string, clientAddress = '192.0.2.1') =>
      audit.downloaded({ exportId: 'an-export', file, bytes: 1000, apiKey, clientAddress, requestId });
    for (let sent = 1; sent <= 1000; sent++) from('desk', 'rows.csv', `r${sent}`, `192.0.2.${sent % 2}`);
    from('desk', 'manifest.json', 'm');
    from('other', 'rows.csv', 'o');
    now += 60_000;
    from('desk', 'rows.csv', 'later');
  }
  const records = await downloadsIn(directory);
  expect(
    records.map(({ export_id, payload: { api_key, file, hour, count, bytes } }) => [
      ...[export_id, api_key, file, hour, count, bytes],
    ]),
  ).toEqual([
    ['an-export', 'desk', 'rows.csv', '2024-05-01T10:00:00.000Z', 1000, 1_000_000],
    ['an-export', 'desk', 'manifest.json', '2024-05-01T10:00:00.000Z', 1, 1000],
    ['an-export', 'other', 'rows.csv', '2024-05-01T10:00:00.000Z', 1, 1000],
    ['an-export', 'desk', 'rows.csv', '2024-05-01T11:00:00.000Z', 1, 1000],
  ]);
  expect(records[0].payload).toMatchObject({
    first_at: '2024-05-01T10:59:00.000Z',
    first_request_id: 'r1',
    last_request_id: 'r1000',
    client_addresses: ['192.0.2.1', '192.0.2.0'],
  });
  await rm(directory, { recursive: true });
});
