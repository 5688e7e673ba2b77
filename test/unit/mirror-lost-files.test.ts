/** Files that a source has lost or altered, or a mirror its own: everything else is had all the same. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { filesIn, sha256Of } from '../support/lake-folder.ts';
import { asked, copy, FIRST, faultOf, rowsOf, SECOND, server, THIRD, useLake } from '../support/mirrored-lake.ts';

useLake();

const idOf = (place: number) => `00000000-0000-4000-8000-00000000000${place}`;
const [NEW, LOST, OLD] = [3, 2, 1].map(idOf);
const rows = Buffer.from('a,b\n1,2\n');
const digest = sha256Of(rows);
const problem = (code: string) => JSON.stringify({ code, detail: 'the file' });

type Fault = { readonly status: number; readonly body: string };

/** Three exports of one file, newest first, of which the second has a fault. */
function serveExports(faultOfLost: (path: string) => Fault | undefined) {
  const files = [{ name: 'rows.csv', bytes: rows.length, checksum_sha256: digest }];
  const list = JSON.stringify({
    exports: [NEW, LOST, OLD].map((id) => ({ export_id: id, artifact: { files } })),
    next_cursor: null,
  });
  const manifest = JSON.stringify({ files: [{ name: 'rows.csv', bytes: rows.length, sha256: digest }], signed: null });
  server.faultOf = ({ path }) => {
    const body = path.endsWith('/manifest') ? manifest : path.includes('/artifact/') ? rows.toString() : list;
    return (path.includes(LOST) && faultOfLost(path)) || { status: 200, body };
  };
}
const ofExports = () => faultOf({ from: `${server.url}v1/raw/export` });
const both = [NEW, OLD].flatMap((id) => [`exports/${id}/manifest.json`, `exports/${id}/rows.csv`]).sort();

test.each<[string, string, (path: string) => Fault | undefined]>([
  [
    'lost',
    'missing',
    (path) =>
      path.includes('/artifact/') ? { status: 503, body: problem('EXPORT_ARTIFACT_METADATA_ERROR') } : undefined,
  ],
  ['gone', 'missing', (path) => (path.includes('/artifact/') ? { status: 404, body: 'no such file' } : undefined)],
  ['altered', 'altered', (path) => (path.includes('/artifact/') ? { status: 200, body: 'x,y\n1,2\n' } : undefined)],
  ['of another manifest', 'manifest', (path) => (path.endsWith('/manifest') ? { status: 200, body: '{}' } : undefined)],
])('an export whose file is %s kept a mirror from all exports before it', async (_, kind, lost) => {
  serveExports(lost);
  expect((await ofExports())?.[0]).toBe(kind);
  expect(filesIn(copy).filter((path) => path.startsWith('exports/'))).toEqual(both);
  expect(server.seen.filter(({ path }) => path.includes(`${LOST}/artifact`)).length).toBeLessThan(3);
});

test('a file that a lake refuses kept a mirror from the files after it', async () => {
  server.faultOf = ({ path }) =>
    path === rowsOf(FIRST) ? { status: 503, body: problem('LAKE_FILE_ALTERED') } : undefined;
  expect(await faultOf({ attempts: 2 })).toEqual(['missing', expect.stringContaining('LAKE_FILE_ALTERED: the file')]);
  expect(asked(rowsOf(FIRST))).toHaveLength(2);
  for (const place of [SECOND, THIRD]) expect(filesIn(copy)).toContain(rowsOf(place));
  expect(filesIn(copy)).not.toContain('_manifest.json');
});

test('a manifest of an export that was damaged in the mirror was never had again', async () => {
  serveExports(() => undefined);
  expect(await ofExports()).toBeUndefined();
  const manifest = join(copy, 'exports', NEW, 'manifest.json');
  const whole = readFileSync(manifest);
  writeFileSync(manifest, whole.subarray(0, 10));
  expect(await ofExports()).toBeUndefined();
  expect(readFileSync(manifest)).toEqual(whole);
});
