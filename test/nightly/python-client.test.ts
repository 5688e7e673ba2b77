/**
 * The Python client against `./tidemark up` with the sample: exports, lineage, the proof log, the examples of its docstrings, each
 * Python that is at hand, and what its package is made of.
 */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import { run } from '../../shared/stack/processes.ts';
import { ROOT, type Running, startCommand } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { pythonTests } from '../support/python-tests.ts';
import { SAMPLE_MATRIX } from '../support/serving.ts';
import { createTestEnv, natsSettings, type TestEnv } from '../support/stack.ts';
import { clientPython, notebookPython, PYTHON_VERSIONS, packagingPython } from '../support/tools.ts';

const KEY = 'a-key';
const CLIENT = join(ROOT, 'client/python');
const TIMEOUT_MS = 900_000;

let env: TestEnv;
let up: Running;
let url: string;
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tidemark-python-'));
  env = await createTestEnv();
  const settings = {
    SVC_DATABASE_URL: env.databaseUrl,
    ...natsSettings(env),
    SVC_STATE_DIR: join(env.dir, 'state'),
    SVC_STREAM_MAX_BYTES: String(1 << 28),
    SVC_INTERNAL_API_KEY: KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: SAMPLE_MATRIX,
    SVC_HTTP_PORT: '0',
  };
  up = startCommand(['up'], settings);
  url = await new Promise<string>((resolve, reject) => {
    let said = '';
    up.child.stdout?.on('data', (text) => {
      said += text;
      if (said.endsWith('\n')) resolve(JSON.parse(said).url);
    });
    void up.done.then(({ stderr }) => reject(new Error(stderr)));
  });
  const { exit, stderr } = await startCommand(['lake', '--to', lakeFolder(), '--synthetic'], settings).done;
  if (exit !== 0) throw new Error(stderr);
});
afterAll(async () => {
  up.child.kill('SIGTERM');
  await up.done;
  await env[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

const lakeFolder = () => join(folder, 'lake');
const environment = () => ({
  TIDEMARK_URL: url,
  TIDEMARK_KEY: KEY,
  TIDEMARK_SAMPLE: '1',
  TIDEMARK_LAKE: lakeFolder(),
});

for (const version of PYTHON_VERSIONS) {
  await pythonTests(`Python ${version}`, {
    python: await clientPython(version),
    files: ['.'],
    environment,
    timeoutMs: TIMEOUT_MS,
  });
}

/** Executes a notebook, and writes it with its outputs; a cell that fails ends it. */
const EXECUTE = `
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=600, kernel_name='python3').execute()
nbformat.write(book, sys.argv[2])
`;

interface Cell {
  readonly cell_type: string;
  readonly source: readonly string[];
  readonly outputs?: readonly { readonly output_type: string; readonly data?: Record<string, unknown> }[];
}

const notebook = await notebookPython();
givenTool(notebook).test(
  'the notebook runs, with the kinds of outputs that it shows',
  async () => {
    const kept = join(ROOT, 'examples/backtest.ipynb');
    const made = join(folder, 'backtest.ipynb');
    const path = `${dirname(notebook.path)}:${process.env.PATH}`;
    await run(notebook.path, ['-c', EXECUTE, kept, made], {
      cwd: folder,
      env: { ...environment(), PATH: path, PYTHONPATH: join(CLIENT, 'src') },
    });
    const cellsOf = async (file: string): Promise<readonly Cell[]> => JSON.parse(await readFile(file, 'utf8')).cells;
    const shape = (cells: readonly Cell[]) =>
      cells.map(({ source, outputs = [] }) => [
        source,
        outputs.map(({ output_type: type, data = {} }) => [type, Object.keys(data).sort()]),
      ]);
    expect(shape(await cellsOf(made))).toEqual(shape(await cellsOf(kept)));
    expect(await readFile(made, 'utf8')).not.toContain('FAULT');
    // What it shows is the sample's, without a place of any machine.
    expect(await readFile(kept, 'utf8')).not.toMatch(/\/(?:tmp|root|home)\//);
  },
  TIMEOUT_MS,
);

const packaging = await packagingPython();
const { describe: describePackage } = givenTool(packaging);
describePackage('the package', () => {
  givenTool(packaging).test('is typed as strictly as mypy can, and formatted', async () => {
    const options = { cwd: CLIENT };
    await run(packaging.path, ['-m', 'mypy', '--cache-dir', join(folder, 'mypy')], options);
    await run(packaging.path, ['-m', 'ruff', 'check', '--no-cache', '.'], options);
    await run(packaging.path, ['-m', 'ruff', 'format', '--no-cache', '--check', '.'], options);
  });

  givenTool(packaging).test(
    'is a wheel and an archive that PyPI would take, and a wheel of them works without any other package',
    async () => {
      const made = join(folder, 'dist');
      await run(packaging.path, ['-m', 'build', '--no-isolation', '--outdir', made, CLIENT]);
      const files = (await readdir(made)).map((name) => join(made, name)).sort();
      expect(files.map((path) => path.split('/').at(-1))).toEqual([
        'tidemark_client-0.1.0-py3-none-any.whl',
        'tidemark_client-0.1.0.tar.gz',
      ]);
      const { stdout } = await run(packaging.path, ['-m', 'twine', 'check', '--strict', ...files]);
      expect(stdout.match(/PASSED/g)).toHaveLength(2);
      const bare = join(folder, 'bare');
      await run('python3', ['-m', 'venv', '--without-pip', bare]);
      const python = join(bare, 'bin/python');
      await run('python3', [
        '-m',
        'pip',
        '--python',
        python,
        'install',
        '--no-index',
        '--no-deps',
        '--quiet',
        files[0],
      ]);
      const program = [
        'import tidemark_client as tm',
        'td = tm.Client()',
        'rows = list(td.trades("exchange_a", n_rows=3))',
        'print(len(rows), rows[0]["datetime"].tzinfo, tm.__file__)',
        'try: td.trades("exchange_a", n_rows=3).df()',
        'except tm.MissingExtraError as error: print(error)',
      ].join('\n');
      const said = await run(python, ['-W', 'ignore', '-c', program], { env: environment() });
      expect(said.stdout).toContain(`3 UTC ${dirname(dirname(python))}`);
      expect(said.stdout).toContain("pip install 'tidemark-client[pandas]'");
    },
    TIMEOUT_MS,
  );
});
