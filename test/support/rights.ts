/** The rights matrix of tests: it lets them serve rows that count as a vendor's, of every source and dataset. */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DATASETS } from '../../shared/registry/index.ts';

const ARTIFACT = 'signed.md';
const SIGNED = 'Stands for the licences of all vendors, in tests that serve rows of vendors or of their layouts.\n';

function matrixText(): string {
  const datasetsOf = new Map<string, string[]>();
  for (const { key, sources } of DATASETS.values()) {
    for (const source of sources) datasetsOf.set(source, [...(datasetsOf.get(source) ?? []), key]);
  }
  const rights = { rights_state: 'Hosted Allowed', rights_provisional: false, legal_signoff_artifact: ARTIFACT };
  const sources = Object.fromEntries([...datasetsOf].map(([source, datasets]) => [source, { ...rights, datasets }]));
  return JSON.stringify({ version: 'test-1', sources }, null, 2);
}

/** Every process that needs the file finds the same one, or makes it. */
function writtenMatrix(): string {
  const text = matrixText();
  const digest = createHash('sha256').update(text).digest('hex').slice(0, 16);
  const folder = join(tmpdir(), `tidemark-test-rights-${digest}`);
  const path = join(folder, 'matrix.json');
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true });
  for (const [name, content] of [
    [ARTIFACT, SIGNED],
    ['matrix.json', text],
  ]) {
    const partial = join(folder, `${name}.${process.pid}.partial`);
    writeFileSync(partial, content);
    renameSync(partial, join(folder, name));
  }
  return path;
}

export const OWN_MATRIX = writtenMatrix();
