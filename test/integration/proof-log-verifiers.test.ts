/**
 * Two verifiers that share no code: `./tidemark check` and the Python client's. What somebody alters who may also sign, both refuse,
 * and what neither can see, both accept.
 */
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
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
import { DATASET, documentPath } from '../support/pipeline.ts';
import { createLogged, type LoggedSystem, logFolderOf } from '../support/proof-log.ts';
import { SMALL_DAYS } from '../support/three-days.ts';
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
let logged: LoggedSystem;
let cases: Case[];
let signer: Signer;
let work: string;

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
  expect(table.length).toBeGreaterThan(60);
  expect(table.filter((one) => one.tidemark !== one.expected || one.python !== one.expected)).toEqual([]);
});
