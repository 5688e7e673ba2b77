/** The audit log: what is written is proved, and whatever is done to it behind its back is found. */
import { execFileSync } from 'node:child_process';
import {
  appendFile,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ExportAudit } from '../../serving/exports/audit.ts';
import type { AuditHead, AuditRecord } from '../../shared/audit/records.ts';
import { verifyAudit } from '../../shared/audit/verify.ts';
import { AuditWriter, pruneAudit } from '../../shared/audit/writer.ts';
import { createLogger } from '../../shared/logger.ts';
import { NO_MOUNT } from '../support/given.ts';
import { eventually } from '../support/serving.ts';

let base: string;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'tidemark-audit-'));
});
afterAll(() => rm(base, { recursive: true, force: true }));

let folders = 0;
const newFolder = () => join(base, String(folders++));

const event = (number: number) => ({ event: 'export_download', export_id: null, payload: { number, text: 'é"\n' } });

interface Written {
  readonly directory: string;
  readonly heads: AuditHead[];
}

/** Chains of so many records, in segments of a few. */
async function written(counts: readonly number[], maxSegmentBytes = 900): Promise<Written> {
  const directory = newFolder();
  const heads = new Map<string, AuditHead>();
  for (const count of counts) {
    await using writer = new AuditWriter({
      directory,
      role: 'test',
      maxSegmentBytes,
      onHead: (head) => heads.set(head.chain, head),
    });
    for (let number = 0; number < count; number++) await writer.append(event(number));
  }
  return { directory, heads: [...heads.values()] };
}

async function files(directory: string): Promise<string[]> {
  const names = await readdir(directory, { recursive: true });
  return names
    .filter((name) => name.endsWith('.jsonl'))
    .sort()
    .map((name) => join(directory, name));
}

const faults = async (directory: string, heads: readonly AuditHead[] = []) => [
  ...new Set((await verifyAudit(directory, heads)).findings.map(({ fault }) => fault)),
];

test('records of several writers, one by one and together, are one unbroken chain each', async () => {
  const directory = newFolder();
  await using one = new AuditWriter({ directory, role: 'one' });
  await using other = new AuditWriter({ directory, role: 'other', maxSegmentBytes: 2000 });
  const records = await Promise.all(
    Array.from({ length: 60 }, (_, number) => (number % 2 ? one : other).append(event(number))),
  );
  expect(new Set(records.map(({ chain }) => chain)).size).toBe(2);
  expect(records.map(({ payload }) => payload.number)).toEqual(Array.from({ length: 60 }, (_, number) => number));
  const report = await verifyAudit(directory);
  expect(report).toMatchObject({ chains: 2, records: 62, findings: [] });
  expect(report.segments).toBe(2);
  for (let number = 0; number < 20; number++) await other.append(event(number));
  const later = await verifyAudit(directory);
  expect(later.findings).toEqual([]);
  expect(later.segments).toBeGreaterThan(3);
});

test('nothing is there: nothing is wrong; an empty folder knows what it lost', async () => {
  expect((await verifyAudit(newFolder())).findings).toEqual([]);
  const head = { chain: 'c', sequence: 3, hash: 'a'.repeat(64) };
  expect(await faults(newFolder(), [head])).toEqual(['CHAIN_MISSING']);
});

describe('broken behind its back', () => {
  test('one byte, anywhere, is found, and the line is named', async () => {
    const { directory, heads } = await written([6, 4]);
    const paths = await files(directory);
    await fc.assert(
      fc.asyncProperty(fc.nat(), fc.nat(), fc.integer({ min: 1, max: 255 }), async (which, place, difference) => {
        const path = paths[which % paths.length];
        const bytes = await readFile(path);
        const at = place % bytes.length;
        const changed = Buffer.from(bytes);
        changed[at] ^= difference;
        await writeFile(path, changed);
        const { findings } = await verifyAudit(directory, heads);
        await writeFile(path, bytes);
        expect(findings).not.toEqual([]);
        const line = bytes.subarray(0, at).filter((byte) => byte === 0x0a).length + 1;
        expect(
          findings.map((finding) => [join(directory, finding.chain, finding.segment ?? ''), finding.line]),
        ).toContainEqual([path, line]);
      }),
      { numRuns: 60 },
    );
    expect(await faults(directory, heads)).toEqual([]);
  });

  test('a record that was altered is no witness of other chains: a finding about none was told', async () => {
    const { directory, heads } = await written([2, 2], 1e6);
    const [, path] = await files(directory);
    const lines = (await readFile(path, 'utf8')).split('\n').slice(0, -1);
    const put = (first: string) => writeFile(path, `${lines.with(0, first).join('\n')}\n`);
    expect(lines[0]).toContain('"witnessed":[{"chain":');
    // Its keys are in their order still: as a line it is as one is written.
    const altered = lines[0].replace('"witnessed":[{"chain":', '"witnessed":[{"chaim":');
    await put(altered);
    expect((await verifyAudit(directory, heads)).findings).toMatchObject([{ fault: 'HASH_MISMATCH', line: 1 }]);
    const { canonical, hashOf } = await import('../../shared/audit/records.ts');
    const forged = JSON.parse(altered) as AuditRecord;
    await put(canonical({ ...forged, hash: hashOf(forged) } as never));
    const { findings } = await verifyAudit(directory, heads);
    expect(new Set(findings.map(({ chain }) => chain))).toEqual(new Set([heads[1].chain]));
    expect(findings[0]).toMatchObject({ fault: 'LINK_BROKEN', line: 2 });
  });

  test('a record changed with a hash made anew, taken out, put in twice', async () => {
    const { directory, heads } = await written([5], 1e6);
    const [path] = await files(directory);
    const lines = (await readFile(path, 'utf8')).split('\n').slice(0, -1);
    const put = (list: readonly string[]) => writeFile(path, `${list.join('\n')}\n`);
    const { canonical, hashOf } = await import('../../shared/audit/records.ts');
    const forged = { ...(JSON.parse(lines[2]) as AuditRecord), event: 'other' };
    await put(lines.with(2, canonical({ ...forged, hash: hashOf(forged) } as never)));
    expect(await faults(directory, heads)).toEqual(['LINK_BROKEN']);
    await put(lines.toSpliced(2, 1));
    expect(await faults(directory, heads)).toEqual(['LINK_BROKEN']);
    // The message names the record that is there, and the last one before it.
    expect((await verifyAudit(directory, heads)).findings[0].message).toMatch(/record 4\b.*\b2\b/);
    await put(lines.toSpliced(2, 0, lines[2]));
    expect(await faults(directory, heads)).toEqual(['LINK_BROKEN']);
    await put(lines.slice(1));
    expect(await faults(directory, heads)).toEqual(['BEGINNING_MISSING']);
    await put(lines.slice(0, -1));
    expect(await faults(directory)).toEqual([]);
    expect(await faults(directory, heads)).toEqual(['END_MISSING']);
  });

  test('the end of a chain, or a whole chain, is missed by the next one', async () => {
    const { directory, heads } = await written([5, 1], 1e6);
    const first = join(directory, heads[0].chain, '000001.jsonl');
    const bytes = await readFile(first);
    const lastLine = bytes.subarray(0, -1).lastIndexOf('\n') + 1;
    await truncate(first, lastLine);
    expect(await faults(directory)).toEqual(['END_MISSING']);
    await writeFile(first, bytes);
    await rename(join(first, '..'), join(base, `away-${folders++}`));
    expect(await faults(directory)).toEqual(['CHAIN_MISSING']);
  });

  test('while it is being written: recording goes on in a new chain, and what is lost is found', async () => {
    const directory = newFolder();
    const heads = new Map<string, AuditHead>();
    await using writer = new AuditWriter({ directory, role: 'test', onHead: (head) => heads.set(head.chain, head) });
    await writer.append(event(1));
    const [path] = await files(directory);
    await truncate(path, 10);
    await writer.append(event(2));
    await rm((await files(directory)).find((one) => one !== path)!);
    await writer.append(event(3));
    expect(heads.size).toBe(3);
    const { findings } = await verifyAudit(directory, [...heads.values()]);
    expect(findings.map(({ fault, chain }) => `${fault} ${chain}`).sort()).toEqual(
      [...heads.keys()]
        .flatMap((chain, index) =>
          index === 0
            ? [`CHAIN_MISSING ${chain}`, `LINE_UNFINISHED ${chain}`]
            : index === 1
              ? [`CHAIN_MISSING ${chain}`]
              : [],
        )
        .sort(),
    );
  });
});

test('half a line that a power cut left is a fault until a later start has seen it, and then as it saw it', async () => {
  const { directory } = await written([3], 1e6);
  const [path] = await files(directory);
  await appendFile(path, '{"chain":"half');
  expect(await faults(directory)).toEqual(['LINE_UNFINISHED']);
  await using writer = new AuditWriter({ directory, role: 'test' });
  await writer.append(event(1));
  expect(await faults(directory)).toEqual([]);
  await appendFile(path, 'x');
  expect(await faults(directory)).toEqual(['LINE_UNFINISHED']);
});

test('a clock that is set back breaks nothing', async () => {
  const directory = newFolder();
  let now = Date.parse('2024-05-02T00:00:00Z');
  for (let start = 0; start < 3; start++) {
    await using writer = new AuditWriter({ directory, role: 'test', now: () => now });
    for (let number = 0; number < 3; number++) {
      now -= 3_600_000;
      await writer.append(event(number));
    }
  }
  expect(await verifyAudit(directory)).toMatchObject({ records: 12, findings: [] });
});

test('a folder that cannot be written is a fault of the append, and no longer when it can', async () => {
  const directory = newFolder();
  await writeFile(directory, 'a file');
  await using writer = new AuditWriter({ directory, role: 'test' });
  await expect(writer.append(event(1))).rejects.toThrow();
  await rm(directory);
  await writer.append(event(2));
  expect(await verifyAudit(directory)).toMatchObject({ records: 2, findings: [] });
});

test('a full disk is a fault of the append; what was recorded stays whole, and recording goes on when there is room', async (context) => {
  const directory = newFolder();
  await mkdir(directory);
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', directory], { stdio: 'ignore' });
  } catch {
    return context.skip(NO_MOUNT);
  }
  try {
    await using writer = new AuditWriter({ directory, role: 'test' });
    const big = { event: 'export_download', export_id: null, payload: { text: 'x'.repeat(3000) } };
    let recorded = 0;
    const full = (async () => {
      for (;;) {
        await writer.append(big);
        recorded++;
      }
    })();
    await expect(full).rejects.toMatchObject({ code: 'ENOSPC' });
    expect(recorded).toBeGreaterThan(5);
    expect(await verifyAudit(directory)).toMatchObject({ records: recorded + 1, findings: [] });
    await writeFile(join(directory, 'filler'), '').catch(() => {});
    execFileSync('mount', ['-o', 'remount,size=256k', directory]);
    await writer.append(big);
    expect(await verifyAudit(directory)).toMatchObject({ chains: 1, records: recorded + 2, findings: [] });
  } finally {
    execFileSync('umount', ['-l', directory]);
  }
});

// A full disk took them from the audit log, and the log of the process had their event alone: not from what, nor to what.
test('records that cannot be written are in the log of the process, with their facts', async () => {
  const directory = newFolder();
  await writeFile(directory, 'a file where the folder belongs');
  const lines: string[] = [];
  const log = createLogger('error', 'test', { write: (line) => void lines.push(line) });
  await using audit = new ExportAudit({ directory, role: 'serving', log, keepHead: async () => {} });
  await audit.note('export_transition', 'an-export', { from: 'running', to: 'succeeded' });
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { event: 'export_transition', exportId: 'an-export', payload: { from: 'running', to: 'succeeded' } },
  ]);
});

describe('refusals that anybody can cause do not fill it', () => {
  const auditIn = (directory: string, refusedRunMs?: number) =>
    new ExportAudit({
      directory,
      role: 'serving',
      log: createLogger('silent', 'test'),
      keepHead: async () => {},
      refusedRunMs,
    });
  const factsFrom = (client_address: string, request_id = 'r') => ({ client_address, request_id, action: 'POST /v1' });

  /** Its records but for the one that opened the chain; what is written verifies. */
  async function recordsIn(directory: string): Promise<AuditRecord[]> {
    expect((await verifyAudit(directory)).findings).toEqual([]);
    const texts = await Promise.all((await files(directory)).map((path) => readFile(path, 'utf8')));
    const lines = texts.join('').split('\n').slice(0, -1);
    return lines.map((line) => JSON.parse(line) as AuditRecord).filter((record) => record.event !== 'chain_opened');
  }

  test('a thousand wrong keys from one address are the first and their number', async () => {
    const directory = newFolder();
    {
      await using audit = auditIn(directory);
      for (let sent = 1; sent <= 1000; sent++) await audit.refusedKey(factsFrom('192.0.2.1', `r${sent}`));
      expect((await recordsIn(directory)).length).toBe(1);
    }
    const [first, run, ...more] = await recordsIn(directory);
    expect(more).toEqual([]);
    expect(first).toMatchObject({ event: 'export_access_refused', payload: factsFrom('192.0.2.1', 'r1') });
    expect(run).toMatchObject({
      event: 'export_access_refused',
      payload: { client_address: '192.0.2.1', count: 1000, first_request_id: 'r1', last_request_id: 'r1000' },
    });
    expect(String(run.payload.first_at) <= String(run.payload.last_at)).toBe(true);
  });

  const countsIn = (records: readonly AuditRecord[]) =>
    records.filter(({ payload }) => typeof payload.count === 'number').map(({ payload }) => payload);

  test('ten thousand networks are 1,024 that are named and one number of the others', async () => {
    const directory = newFolder();
    {
      await using audit = auditIn(directory);
      const sent = Array.from({ length: 20_000 }, (_, n) => factsFrom(`2001:db8:0:${(n % 10_000).toString(16)}::1`));
      await Promise.all(sent.map((facts) => audit.refusedKey(facts)));
    }
    const records = await recordsIn(directory);
    const counted = countsIn(records);
    expect(records.length).toBe(2 * (1024 + 1));
    expect(counted.reduce((sum, { count }) => sum + Number(count), 0)).toBe(20_000);
    expect(counted.filter((payload) => payload.client_address === null)).toMatchObject([
      { count: 2 * (10_000 - 1024) },
    ]);
  });

  test('a few decoys hid the address of everybody after them', async () => {
    const directory = newFolder();
    {
      await using audit = auditIn(directory);
      for (let decoy = 1; decoy <= 100; decoy++) await audit.refusedKey(factsFrom(`192.0.2.${decoy}`));
      for (let sent = 0; sent < 3; sent++) await audit.refusedKey(factsFrom('198.51.100.7'));
    }
    expect(countsIn(await recordsIn(directory))).toMatchObject([{ client_address: '198.51.100.7', count: 3 }]);
  });

  test('the addresses of one IPv6 network are one; those that stand for IPv4 are their own', async () => {
    const directory = newFolder();
    {
      await using audit = auditIn(directory);
      for (let sent = 0; sent < 2000; sent++) await audit.refusedKey(factsFrom(`2001:db8::${sent.toString(16)}`));
      for (const address of ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::7', 'fe80::1%eth0', 'fe80::2%eth0', '::1', '::1']) {
        await audit.refusedKey(factsFrom(address));
      }
      for (const last of [1, 1, 2]) await audit.refusedKey(factsFrom(`::ffff:192.0.2.${last}`));
    }
    const counted = countsIn(await recordsIn(directory));
    expect(counted.map(({ client_address, count }) => [client_address, count])).toEqual([
      ['2001:db8:0:0::/64', 2000],
      ['2001:db8:1:2::/64', 2],
      ['fe80:0:0:0::/64', 2],
      ['::1', 2],
      ['::ffff:192.0.2.1', 2],
    ]);
  });

  test('contract faults are counted alike, by code; what was understood is recorded one by one', async () => {
    const directory = newFolder();
    const codes = ['EXPORT_CONTRACT_ERROR', 'EXPORT_AUTH_TOKEN_UNSUPPORTED', 'EXPORT_RIGHTS_INGEST_ONLY'] as const;
    {
      await using audit = auditIn(directory);
      for (let sent = 0; sent < 50; sent++)
        for (const code of codes) await audit.rejected(code, factsFrom('192.0.2.1'));
    }
    const records = await recordsIn(directory);
    const countsOf = (code: string) =>
      records.filter(({ payload }) => payload.code === code).map(({ payload }) => payload.count ?? 'one');
    expect(countsOf('EXPORT_CONTRACT_ERROR')).toEqual(['one', 50]);
    expect(countsOf('EXPORT_AUTH_TOKEN_UNSUPPORTED')).toEqual(['one', 50]);
    expect(countsOf('EXPORT_RIGHTS_INGEST_ONLY')).toEqual(Array(50).fill('one'));
  });

  test('their number is on record when their time is over, and they begin anew', async () => {
    const directory = newFolder();
    await using audit = auditIn(directory, 50);
    await Promise.all([1, 2, 3].map(() => audit.refusedKey(factsFrom('192.0.2.1'))));
    const linesIn = async () => (await readFile((await files(directory))[0], 'utf8')).split('\n').length - 1;
    await eventually(async () => (await linesIn()) === 3, 'the number is on record');
    expect((await recordsIn(directory))[1].payload.count).toBe(3);
    await audit.refusedKey(factsFrom('192.0.2.1'));
    expect((await recordsIn(directory))[2].payload).toEqual(factsFrom('192.0.2.1'));
  });
});

describe('prune', () => {
  const DAY_MS = 86_400_000;
  const at = Date.parse('2024-01-01T00:00:00Z');

  async function aged(): Promise<{ readonly directory: string; readonly heads: AuditHead[]; readonly old: string[] }> {
    const directory = newFolder();
    const heads = new Map<string, AuditHead>();
    let now = at;
    await using writer = new AuditWriter({
      directory,
      role: 'test',
      now: () => now,
      maxSegmentBytes: 500,
      onHead: (head) => heads.set(head.chain, head),
    });
    for (let number = 0; number < 14; number++) {
      now = at + number * 100 * DAY_MS;
      await writer.append(event(number));
    }
    const old = await files(directory);
    for (const path of old) {
      const newest = Math.max(
        ...(await readFile(path, 'utf8'))
          .trim()
          .split('\n')
          .map((line) => Date.parse(JSON.parse(line).occurred_at)),
      );
      await utimes(path, newest / 1000, newest / 1000);
    }
    return { directory, heads: [...heads.values()], old };
  }

  test('deletes whole segments older than the floor, and what is left still proves itself', async () => {
    const { directory, heads, old } = await aged();
    const now = () => at + 1400 * DAY_MS;
    const would = await pruneAudit(directory, 365, { now, dryRun: true });
    expect(await files(directory)).toEqual(old);
    const pruned = await pruneAudit(directory, 365, { now });
    expect(pruned).toEqual(would);
    expect(pruned[0].segments).toBeGreaterThan(0);
    const left = (await files(directory)).filter((path) => old.includes(path));
    expect(left).toEqual(old.slice(pruned[0].segments));
    for (const path of old.slice(0, pruned[0].segments)) expect(left).not.toContain(path);
    // Every record that is younger is still there.
    const kept = (await Promise.all(left.map((path) => readFile(path, 'utf8')))).join('').trim().split('\n');
    const numbers = kept.map((line) => JSON.parse(line).payload.number);
    for (let number = 11; number < 14; number++) expect(numbers).toContain(number);
    expect(await faults(directory, heads)).toEqual([]);
    // The same by hand is missed.
    await rm(left[0]);
    expect(await faults(directory, heads)).toEqual(['BEGINNING_MISSING']);
  });

  test('deletes nothing that was touched since, nor anything younger', async () => {
    const { directory, old } = await aged();
    expect(await pruneAudit(directory, 365, { now: () => at + 300 * DAY_MS })).toEqual([]);
    for (const path of old) await utimes(path, (at + 799 * DAY_MS) / 1000, (at + 799 * DAY_MS) / 1000);
    expect(await pruneAudit(directory, 365, { now: () => at + 800 * DAY_MS })).toEqual([]);
    expect(await files(directory)).toEqual(old);
  });

  test('a later prune deletes the record of an earlier one, and what that one deleted is still explained', async () => {
    const { directory, heads, old } = await aged();
    const prune = async (days: number, touched?: string) => {
      for (const path of await files(directory)) {
        const last = (await readFile(path, 'utf8')).trim().split('\n').at(-1)!;
        const time = path === touched ? at + days * DAY_MS : Date.parse(JSON.parse(last).occurred_at);
        await utimes(path, time / 1000, time / 1000);
      }
      const pruned = await pruneAudit(directory, 365, { now: () => at + days * DAY_MS });
      expect(await faults(directory, heads), `after ${days} days`).toEqual([]);
      return pruned.map(({ chain }) => chain);
    };
    const [chain] = await prune(600);
    const left = (await files(directory)).find((path) => old.includes(path));
    // The chain without its beginning stays; then it goes as a whole, and at last every record of that is deleted too.
    expect(await prune(1000, left)).not.toContain(chain);
    expect(await prune(2000)).toContain(chain);
    await prune(3000);
    expect(await prune(4000)).not.toContain(chain);
  });

  test.each([
    ['no JSON', (line: string) => line.slice(1)],
    ['another deletion', (line: string) => line.replace('"segments":', '"segments":1')],
  ])('a record of an earlier prune that is %s now explains nothing, and stops no later prune', async (_, alter) => {
    const { directory, heads } = await aged();
    await pruneAudit(directory, 365, { now: () => at + 2000 * DAY_MS });
    const [path] = await files(directory);
    const [opened, pruned] = (await readFile(path, 'utf8')).trim().split('\n');
    await writeFile(path, [opened, alter(pruned), opened, ''].join('\n'));
    expect(await pruneAudit(directory, 365, { now: () => at + 3000 * DAY_MS })).toHaveLength(1);
    expect(await faults(directory, heads)).toEqual(['CHAIN_MISSING']);
  });
});

test('a pipe in the place of a segment is a finding, and neither verify, prune nor a new writer waits for it', async () => {
  const { directory, heads } = await written([12]);
  const path = (await files(directory)).at(-1)!;
  await rm(path);
  execFileSync('mkfifo', [path]);
  expect(await faults(directory, heads)).toContain('UNREADABLE');
  expect(await pruneAudit(directory, 365)).toEqual([]);
  await using writer = new AuditWriter({ directory, role: 'later' });
  await writer.append(event(1));
});
