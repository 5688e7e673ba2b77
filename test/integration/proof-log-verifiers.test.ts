/**
 * Two verifiers that share no code: `./tidemark check` and the Python client's. What somebody alters who may also sign, both refuse,
 * and what neither can see, both accept.
 */
import { readFileSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { checkpointText, generateSigner, parseSigner, type Signer } from '../../shared/proof-log/note.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { keyPathOf } from '../../shared/proof-log/signers.ts';
import { run } from '../../shared/stack/processes.ts';
import { type Json, ROOT } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { sha256Of } from '../support/lake-folder.ts';
import { DATASET, documentPath, type System } from '../support/pipeline.ts';
import { createLogged, type LoggedSystem, logFolderOf, sequence } from '../support/proof-log.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { SMALL_DAYS, writeDays } from '../support/three-days.ts';
import { clientPython } from '../support/tools.ts';

type Verdict = 'accepted' | 'refused';

interface Case {
  readonly name: string;
  readonly expected: Verdict;
  /** What is checked; the options are those of both. */
  readonly subject: string;
  readonly log?: string;
  readonly second?: string;
  readonly document?: string;
}

const python = await clientPython();
const DAY = SMALL_DAYS[0].day;
const FOURTH = '2024-03-04';
let logged: LoggedSystem;
let cases: Case[];
let signer: Signer;
let work: string;
let lake: string;

/** Reads cases from a file, and prints what Python's verifier says of each. */
const PROGRAM = `
import json, sys
import tidemark_client as tm
for case in json.load(open(sys.argv[1])):
    try:
        report = tm.check(case['subject'], sys.argv[2], log=case.get('log'), second=case.get('second'), document=case.get('document'))
        told = 'accepted' if report.ok else 'refused'
        why = '; '.join(report.faults)
    except (tm.TidemarkError, ValueError) as error:
        told, why = 'refused', str(error)
    print(json.dumps([case['name'], told, why]))
`;

beforeAll(async () => {
  if (python.missing !== undefined) return;
  logged = await createLogged();
  const { system, exports } = logged;
  signer = parseSigner(await readFile(keyPathOf(logFolderOf(system.env)), 'utf8'));
  work = join(system.env.dir, 'verifiers');
  await mkdir(work);
  const whole = await logged.download();
  const lineage = JSON.parse((await exports.get(`/v1/lineage/${DATASET}/1`)).text);
  cases = [
    ...(await exportCases(whole)),
    ...(await lineageCases(lineage, join(system.vendor, documentPath(DAY)))),
    ...(await logCases(logFolderOf(system.env))),
    ...(await tlogProofCases(lineage, logFolderOf(system.env))),
    ...(await lakeCases(system)),
  ];
});
afterAll(() => logged?.[Symbol.asyncDispose]());

const folderOf = (name: string) => join(work, name.replaceAll(/[^a-z\d]+/gi, '-'));
/** Puts a value, or what a function makes of the one there, at a place of an object. */
const put =
  (place: string, value: string | number | boolean | null | ((value: Json, whole: Json) => unknown)) =>
  (whole: Json): void => {
    const names = place.split('.');
    const last = names.pop()!;
    const holder = names.reduce((part, name) => part[name], whole);
    holder[last] = typeof value === 'function' ? value(holder[last], whole) : value;
  };
const clone = <T>(value: T): T => JSON.parse(JSON.stringify(value));

/** Changes manifest, file or both of an export. `by`: whose key signs the manifest anew; null: nobody's. */
async function exportCases(whole: string): Promise<Case[]> {
  const manifest: Json = JSON.parse(await readFile(join(whole, 'manifest.json'), 'utf8'));
  const [{ name: file }] = manifest.files;
  const csv = await readFile(join(whole, file), 'utf8');
  const stranger = generateSigner(signer.verifier.name);
  const made: Case[] = [];
  const add = async (
    name: string,
    expected: Verdict,
    change: { readonly csv?: string; readonly facts?: (facts: Json) => void; readonly by?: Signer | null },
  ) => {
    const folder = folderOf(`export ${name}`);
    await cp(whole, folder, { recursive: true });
    if (change.csv !== undefined) await writeFile(join(folder, file), change.csv);
    const { signed, ...unsigned } = clone(manifest);
    if (change.csv !== undefined && change.by !== null) {
      Object.assign(unsigned.files[0], {
        bytes: Buffer.byteLength(change.csv),
        sha256: sha256Of(Buffer.from(change.csv)),
      });
    }
    change.facts?.(unsigned);
    const written = change.by ? signManifest(unsigned, change.by) : { ...unsigned, signed };
    await writeFile(join(folder, 'manifest.json'), manifestBytes(written));
    made.push({ name: `export: ${name}`, expected, subject: folder });
  };
  const lines = csv.trimEnd().split('\n');
  const changed = [...lines.slice(0, 100), lines[100].replace(/,(\d+)\.(\d)/, ',$1.$21'), ...lines.slice(101), ''].join(
    '\n',
  );
  expect(changed).not.toBe(csv);
  const without = [...lines.slice(0, 100), ...lines.slice(101), ''].join('\n');
  const swapped = [...lines.slice(0, 100), lines[101], lines[100], ...lines.slice(102), ''].join('\n');
  const twice = [...lines.slice(0, 101), lines[100], ...lines.slice(101), ''].join('\n');
  const rows = (count: number) => (facts: Json) => {
    facts.row_count += count;
  };
  await add('as it is', 'accepted', { by: null });
  await add('signed anew without a change', 'accepted', { by: signer });
  await add('a cell is changed', 'refused', { csv: changed, by: null });
  await add('a cell and the file’s digest are changed', 'refused', { csv: changed });
  await add('a cell is changed, signed by the stolen key', 'refused', { csv: changed, by: signer });
  await add('a row is taken out, signed by the stolen key', 'refused', { csv: without, facts: rows(-1), by: signer });
  await add('a row stands twice, signed by the stolen key', 'refused', { csv: twice, facts: rows(1), by: signer });
  await add('two rows are exchanged, signed by the stolen key', 'accepted', { csv: swapped, by: signer });
  await add('another count of rows, signed', 'refused', { facts: rows(1), by: signer });
  await add('signed by a stranger', 'refused', { by: stranger });
  await add('not signed', 'refused', { facts: put('note', 1) });
  await add('the file is missing', 'refused', { by: null });
  await rm(join(made.at(-1)!.subject, file));
  await add('the file is cut', 'refused', { csv: csv.slice(0, -20), by: null });
  const signedChange = (name: string, expected: Verdict, facts: (facts: Json) => void) =>
    add(`${name}, signed by the stolen key`, expected, { facts, by: signer });
  const leaf = (facts: Json) => facts.proof_log.leaves[0];
  const other = (facts: Json) => facts.proof_log.leaves[1];
  await signedChange('rows_hash of the proof', 'refused', put('proof.listed.0.rows_hash', '1'));
  await signedChange('events_sha256 of the proof', 'refused', put('proof.listed.0.events_sha256', 'ab'.repeat(32)));
  await signedChange('the document of the proof', 'refused', put('proof.listed.0.document_sha256', 'ab'.repeat(32)));
  await signedChange('the revision of the proof', 'refused', put('proof.listed.0.revision', 2));
  await signedChange(
    'the rows of the proof',
    'refused',
    put('proof.listed.0.rows', (value) => Number(value) + 1),
  );
  await signedChange('the partition of the proof', 'refused', put('proof.listed.0.partition', '2020-01-01'));
  await signedChange(
    'synthetic',
    'refused',
    put('synthetic', (value) => !value),
  );
  await signedChange(
    'the index of a leaf',
    'refused',
    put('proof_log.leaves.0.leaf_index', (value) => Number(value) + 1),
  );
  await signedChange('an index that is none', 'refused', put('proof_log.leaves.0.leaf_index', -1));
  await signedChange(
    'the leaf of another partition',
    'refused',
    put('proof_log.leaves.0.leaf', (_, facts) => facts.proof_log.leaves[1].leaf),
  );
  await signedChange('leaf and place of another partition', 'refused', (f) => {
    Object.assign(leaf(f), { ...other(f), partition: leaf(f).partition });
  });
  await signedChange(
    'a leaf with a space',
    'refused',
    put('proof_log.leaves.0.leaf', (value) => String(value).replace(',', ', ')),
  );
  await signedChange('a proof without its last hash', 'refused', (f) => void leaf(f).inclusion.pop());
  await signedChange('a proof with one hash more', 'refused', (f) => void leaf(f).inclusion.push(leaf(f).inclusion[0]));
  await signedChange('a proof in another order', 'refused', (f) => void leaf(f).inclusion.reverse());
  await signedChange('a hash of a proof cut', 'refused', put('proof_log.leaves.0.inclusion.0', 'AAAA'));
  await signedChange('a leaf left out', 'refused', (f) => void f.proof_log.leaves.shift());
  await signedChange(
    'a leaf without its index',
    'accepted',
    (f) => void Object.assign(leaf(f), { leaf_index: null, inclusion: null }),
  );
  await signedChange('the salt of a leaf', 'refused', put('proof_log.leaves.0.salt', 'ab'.repeat(32)));
  await signedChange('a leaf without its salt', 'refused', put('proof_log.leaves.0.salt', null));
  await signedChange(
    'no checkpoint',
    'accepted',
    (f) => void Object.assign(f.proof_log, { checkpoint: null, leaves: [] }),
  );
  await signedChange('another size of the checkpoint', 'refused', (f) => {
    f.proof_log.checkpoint = f.proof_log.checkpoint.replace(/\n\d+\n/, '\n9\n');
  });
  await signedChange('another instrument', 'refused', put('instrument', 'ETHUSDT'));
  await signedChange('a window of an unknown kind', 'refused', put('window.kind', 'other'));
  await signedChange(
    'a filter that was not',
    'accepted',
    (f) => void f.filters.push({ field: 'price', op: 'gt', value: 0 }),
  );
  await signedChange('columns exchanged in the schema', 'refused', (f) => void f.schema.reverse());
  return made;
}

async function lineageCases(answer: Json, document: string): Promise<Case[]> {
  const made: Case[] = [];
  const add = async (name: string, expected: Verdict, change: (answer: Json) => void, file?: string) => {
    const path = `${folderOf(`lineage ${name}`)}.json`;
    const copy = clone(answer);
    change(copy);
    await writeFile(path, JSON.stringify(copy));
    made.push({ name: `lineage: ${name}`, expected, subject: path, ...(file !== undefined && { document: file }) });
  };
  await add('as it is', 'accepted', () => {});
  await add('with the vendor’s file', 'accepted', () => {}, document);
  const wrong = join(work, 'wrong.zip');
  await writeFile(wrong, Buffer.concat([await readFile(document), Buffer.of(0)]));
  await add('with another file', 'refused', () => {}, wrong);
  await add('another offset, which only the answer says', 'accepted', put('offset', '2'));
  const event = Buffer.from(answer.payload_raw.base64, 'base64');
  const altered = Buffer.from(event);
  altered[3] ^= 1;
  await add('the event’s bytes', 'refused', put('payload_raw.base64', altered.toString('base64')));
  await add(
    'the event and its digest, with the vendor’s file',
    'refused',
    (a) => {
      Object.assign(a.payload_raw, { base64: altered.toString('base64'), utf8: altered.toString() });
      a.payload_sha256_raw = sha256Of(altered);
    },
    document,
  );
  await add(
    'the event’s text',
    'refused',
    put('payload_raw.utf8', (value) => `${value}1`),
  );
  await add(
    'the event’s length',
    'refused',
    put('payload_raw.bytes', (value) => Number(value) + 1),
  );
  await add('the dataset', 'refused', put('dataset', 'exchange_b_spot_trades'));
  await add('the partition', 'refused', put('partition', '2020-01-01'));
  await add(
    'synthetic',
    'refused',
    put('synthetic', (value) => !value),
  );
  await add('the document’s digest', 'refused', put('document.sha256', 'ab'.repeat(32)));
  await add('the document’s name', 'refused', put('document.name', 'another.zip'));
  await add(
    'the revision',
    'refused',
    put('proof.revision', (value) => Number(value) + 1),
  );
  for (const side of ['expected', 'recount']) {
    for (const fact of ['rows', 'first_offset', 'last_offset', 'rows_hash']) {
      await add(`${fact} of ${side}`, 'refused', put(`proof.${side}.${fact}`, fact === 'rows' ? 1 : '7'));
    }
  }
  await add('events_sha256', 'refused', put('proof.expected.events_sha256', 'ab'.repeat(32)));
  await add(
    'the leaf',
    'refused',
    put('proof_log.leaf', (value) => String(value).replace('"rows":8000', '"rows":8001')),
  );
  await add(
    'the leaf’s index',
    'refused',
    put('proof_log.leaf_index', (value) => Number(value) + 1),
  );
  await add('the leaf’s proof', 'refused', (a) => void a.proof_log.inclusion.reverse());
  await add('a leaf that is pending', 'accepted', (a) => {
    Object.assign(a.proof_log, { state: 'pending', leaf_index: null, inclusion: null });
  });
  await add('the leaf’s salt', 'refused', put('proof_log.salt', 'ab'.repeat(32)));
  await add('no salt', 'refused', put('proof_log.salt', null));
  await add('no checkpoint', 'accepted', put('checkpoint', null));
  await add('a checkpoint of a stranger', 'refused', (a) => {
    const stranger = generateSigner(signer.verifier.name);
    a.checkpoint = stranger.sign(`${a.checkpoint.split('\n').slice(0, 3).join('\n')}\n`);
  });
  return made;
}

async function logCases(log: string): Promise<Case[]> {
  const made: Case[] = [];
  const note = await readFile(join(log, 'checkpoint'), 'utf8');
  const [origin, size, root] = note.split('\n');
  const head = { origin, size: Number(size), root: Buffer.from(root, 'base64') };
  const write = async (name: string, text: string) => {
    const path = `${folderOf(`checkpoint ${name}`)}.note`;
    await writeFile(path, text);
    return path;
  };
  const add = async (name: string, expected: Verdict, text: string) => {
    const second = join(log, 'checkpoint');
    made.push({ name: `checkpoint: ${name}`, expected, subject: await write(name, text), second, log });
  };
  const flipped = Buffer.from(head.root);
  flipped[0] ^= 1;
  await add('the last one', 'accepted', note);
  await add('another size', 'refused', note.replace(`\n${size}\n`, '\n2\n'));
  await add('another root for the size', 'refused', signer.sign(checkpointText({ ...head, root: flipped })));
  await add('an earlier one that is forged', 'refused', signer.sign(checkpointText({ ...head, size: head.size - 1 })));
  await add('a larger tree than the log has', 'refused', signer.sign(checkpointText({ ...head, size: head.size + 1 })));
  await add(
    'a line of a stranger beside it',
    'accepted',
    note + generateSigner('witness').sign('x\n').split('\n')[2].concat('\n'),
  );
  await add('a stranger’s', 'refused', generateSigner('log').sign(checkpointText(head)));
  await add('without its last line feed', 'refused', note.slice(0, -1));
  const leaves = await folderSource(log)(`tile/0/000.p/${size}`);
  for (const [name, path] of [
    ['as it is', undefined],
    ['a tile', `tile/0/000.p/${size}`],
    ['the leaves', `tile/entries/000.p/${size}`],
  ] as const) {
    const folder = folderOf(`log ${name}`);
    await cp(log, folder, { recursive: true });
    if (path !== undefined) {
      const bytes = await readFile(join(folder, path));
      bytes[bytes.length - 5] ^= 1;
      await writeFile(join(folder, path), bytes);
    }
    made.push({ name: `log: ${name}`, expected: path === undefined ? 'accepted' : 'refused', subject: folder });
  }
  const longer = folderOf('log longer');
  await cp(log, longer, { recursive: true });
  await writeFile(join(longer, `tile/0/000.p/${size}`), Buffer.concat([leaves!, Buffer.of(0)]));
  made.push({ name: 'log: a tile that goes on', expected: 'refused', subject: longer });
  return made;
}

/** Proofs of inclusion as files, made of a lineage answer. */
async function tlogProofCases(answer: Json, log: string): Promise<Case[]> {
  const made: Case[] = [];
  const { leaf_index: index, inclusion, leaf } = answer.proof_log;
  const proof = ['c2sp.org/tlog-proof@v1', `index ${index}`, ...inclusion, '', answer.checkpoint].join('\n');
  const entry = join(work, 'entry.json');
  await writeFile(entry, leaf);
  const other = join(work, 'other-entry.json');
  await writeFile(other, leaf.replace('"rows":8000', '"rows":8001'));
  const add = async (name: string, expected: Verdict, text: string, options: Partial<Case> = { second: entry }) => {
    const subject = `${folderOf(`proof ${name}`)}.tlog-proof`;
    await writeFile(subject, text);
    made.push({ name: `tlog-proof: ${name}`, expected, subject, ...options });
  };
  await add('as it is', 'accepted', proof);
  await add('with the log', 'accepted', proof, { log });
  await add('without its leaf', 'accepted', proof, {});
  await add('with an extra line', 'accepted', proof.replace('index', 'extra AAAA\nindex'));
  await add('another leaf', 'refused', proof, { second: other });
  await add('another index', 'refused', proof.replace(`index ${index}`, `index ${index ^ 1}`));
  await add('an index beyond the tree', 'refused', proof.replace(`index ${index}`, 'index 1000'));
  await add('a leading zero', 'refused', proof.replace(`index ${index}`, `index 0${index}`));
  await add('a hash less', 'refused', proof.replace(`${inclusion[0]}\n`, ''));
  await add('a hash cut', 'refused', proof.replace(inclusion[0], 'AAAA'));
  await add('another size', 'refused', proof.replace(/\n(\d+)\n(?=[^\n]*\n\n\u2014)/, '\n9\n'));
  await add('a stranger’s checkpoint', 'refused', proof.replace(/\n\n[\s\S]*/, `\n\n${stranger().sign('log\n9\n')}`));
  await add('an unknown line', 'refused', proof.replace('index', 'more\nindex'));
  return made;
}

const stranger = () => generateSigner(signer.verifier.name);

/** A lake of three days that got a fourth, so that a table has two versions. Each case alters a copy. */
async function lakeCases(system: System): Promise<Case[]> {
  lake = join(system.env.dir, 'lake');
  const write = async () => {
    const own = { SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX };
    const { exit, stderr } = await system.run(['lake', '--to', lake], own);
    if (exit !== 0) throw new Error(stderr);
  };
  await write();
  await writeDays(system, [{ ...SMALL_DAYS[1], day: FOURTH, firstId: 100_000 }]);
  if ((await system.backfill(FOURTH, FOURTH)).exit !== 0) throw new Error('the fourth day is not proved');
  await sequence(system.env);
  await write();
  const table = `${DATASET}/native`;
  const made: Case[] = [];
  const add = async (name: string, expected: Verdict, change: (folder: string) => Promise<unknown>) => {
    const folder = folderOf(`lake ${name}`);
    await cp(lake, folder, { recursive: true });
    await change(folder);
    made.push({ name: `lake: ${name}`, expected, subject: folder });
  };
  const edit = async (path: string, change: (value: Json) => void) => {
    const value = JSON.parse(await readFile(path, 'utf8'));
    change(value);
    await writeFile(path, manifestBytes(value));
  };
  /** Changes the note of the table in the root manifest. @param by whose key signs it anew; null: nobody's */
  const note = (name: string, expected: Verdict, change: (note: Json) => void, by: Signer | null = null) =>
    add(name, expected, (folder) =>
      edit(join(folder, '_manifest.json'), (root) => {
        const at = root.tables.findIndex((one: Json) => one.table === table);
        const { signed, ...facts } = root.tables[at];
        change(facts);
        root.tables[at] = by ? signManifest(facts, by) : { ...facts, signed };
      }),
    );
  const fileIn = async (folder: string, what: string) => {
    const names = (await readdir(join(folder, what), { recursive: true })).filter((one) => one.endsWith('.parquet'));
    return join(folder, what, names.sort()[0]);
  };
  const logIn = (folder: string, version = 1) =>
    join(folder, table, '_delta_log', `${String(version).padStart(20, '0')}.json`);
  const manifestIn = async (folder: string) => {
    const name = (await fileIn(folder, table)).slice(join(folder, table).length + 1);
    return join(folder, '_proofs', table, `${sha256Of(name).slice(0, 32)}.json`);
  };
  await add('as it is', 'accepted', async () => {});
  await note('a note signed anew without a change', 'accepted', () => {}, signer);
  await note('a note of a stranger', 'refused', () => {}, stranger());
  await note(
    'a note without a signature',
    'refused',
    put('rows', (value) => Number(value) + 1),
  );
  for (const member of ['version', 'change', 'files', 'rows', 'bytes', 'log_bytes']) {
    const one = put(member, (value) => Number(value) - 1);
    await note(`another ${member}, signed by the stolen key`, 'refused', one, signer);
  }
  await note('another files_sha256, signed', 'refused', put('files_sha256', 'ab'.repeat(32)), signer);
  await note('a checkpoint of a stranger, signed', 'refused', put('checkpoint', stranger().sign('x\n9\n')), signer);
  await note(
    'more bytes of the log, signed',
    'refused',
    put('log_bytes', (value) => Number(value) + 1),
    signer,
  );
  await add('a note left out', 'refused', (folder) =>
    edit(join(folder, '_manifest.json'), (root) => void root.tables.pop()),
  );
  await add('notes in another order', 'refused', (folder) =>
    edit(join(folder, '_manifest.json'), (root) => void root.tables.reverse()),
  );
  await add('the notes of the version before', 'refused', (folder) =>
    edit(join(folder, '_manifest.json'), (root) => {
      const old = JSON.parse(readFileSync(join(folder, '_proofs', table, `${'0'.repeat(20)}.json`), 'utf8'));
      root.tables = root.tables.map((one: Json) => (one.table === table ? old : one));
    }),
  );
  await add('a version that nobody signed', 'refused', async (folder) =>
    writeFile(logIn(folder, 2), await readFile(logIn(folder))),
  );
  await add('a commit with another file', 'refused', async (folder) =>
    writeFile(
      logIn(folder),
      (await readFile(logIn(folder), 'utf8')).replaceAll(/\d-[0-9a-f]{64}/g, `1-${'ab'.repeat(32)}`),
    ),
  );
  await add('a commit that is cut', 'refused', async (folder) =>
    writeFile(logIn(folder), (await readFile(logIn(folder), 'utf8')).slice(0, -5)),
  );
  await add('a commit that is gone', 'refused', (folder) => rm(logIn(folder)));
  await add('a table from elsewhere', 'refused', (folder) =>
    cp(join(folder, table), join(folder, 'another_table', 'native'), { recursive: true }),
  );
  await add('a file that is gone', 'refused', async (folder) => rm(await fileIn(folder, table)));
  await add('a byte of a file', 'refused', async (folder) => {
    const path = await fileIn(folder, table);
    const bytes = await readFile(path);
    bytes[bytes.length >> 1] ^= 1;
    await writeFile(path, bytes);
  });
  await add('a manifest that is gone', 'refused', async (folder) => rm(await manifestIn(folder)));
  await add('a manifest with other rows', 'refused', async (folder) =>
    edit(
      await manifestIn(folder),
      put('row_count', (value) => Number(value) + 1),
    ),
  );
  await add('a manifest with other rows, signed by the stolen key', 'refused', async (folder) =>
    edit(await manifestIn(folder), (manifest) => {
      const { signed: _, ...facts } = manifest;
      Object.assign(manifest, signManifest({ ...facts, row_count: facts.row_count + 1 }, signer));
    }),
  );
  await add('the manifest of another table’s file', 'refused', async (folder) => {
    const others = join(folder, '_proofs', DATASET, 'aligned_1s');
    const name = (await readdir(others)).find((one) => /^[0-9a-f]{32}\.json$/.test(one))!;
    await cp(join(others, name), await manifestIn(folder));
  });
  return made;
}

givenTool(python).test('the Python client reads a lake that the command wrote as of each of its changes', async () => {
  const program = `
import json, sys
import tidemark_client as tm
from tidemark_client.lake import Lake
from pathlib import Path
lake = Lake(Path(sys.argv[1]))
told = []
for change in json.loads(sys.argv[2]):
    for engine in ('polars', 'pandas'):
        rows = lake.scan('${DATASET}', as_of_change=change, engine=engine)
        told.append(len(rows if engine == 'pandas' else rows.collect()))
print(json.dumps(told))
`;
  const versions = ['0', '1'].map((at) => join(lake, '_proofs', DATASET, 'native', `${at.padStart(20, '0')}.json`));
  const notes: Json[] = await Promise.all(versions.map(async (path) => JSON.parse(await readFile(path, 'utf8'))));
  const [first, second] = notes.map(({ change, rows }) => ({ change, rows }));
  expect(second.rows - first.rows).toBe(SMALL_DAYS[1].rows);
  const changes = [first.change, second.change - 1, second.change, second.change + 7];
  const { stdout } = await run(python.path, ['-B', '-c', program, lake, JSON.stringify(changes)], {
    env: { PYTHONPATH: join(ROOT, 'client/python/src') },
  });
  const [old, now] = [first.rows, second.rows];
  expect(JSON.parse(stdout)).toEqual([old, old, old, old, now, now, now, now]);
});

givenTool(python).test('both verifiers refuse the same things', async () => {
  const list = join(work, 'cases.json');
  await writeFile(list, JSON.stringify(cases));
  const { stdout } = await run(python.path, ['-B', '-c', PROGRAM, list, logged.key], {
    env: { PYTHONPATH: join(ROOT, 'client/python/src') },
  });
  const told = new Map(
    stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
      .map(([name, ...verdict]) => [name, verdict]),
  );
  const table: Record<string, unknown>[] = [];
  for (const { name, expected, subject, log, second, document } of cases) {
    const options = [
      ...(second ? [second] : []),
      ...(log ? ['--log', log] : []),
      ...(document ? ['--document', document] : []),
    ];
    const { exit } = await logged.system.run(['check', subject, ...options, '--key', logged.key]);
    const [pythonSays, why] = told.get(name)!;
    table.push({ name, expected, tidemark: exit === 0 ? 'accepted' : 'refused', python: pythonSays, why });
  }
  expect(table.length).toBeGreaterThan(100);
  expect(table.filter((one) => one.tidemark !== one.expected || one.python !== one.expected)).toEqual([]);
});
