/**
 * Programs and Python packages that few machines have and some tests need. What is installed is used. The rest is made once and
 * kept in the machine's cache folder: programs from the distribution's packages, as the servers are, and Python packages in an
 * environment of their own. What cannot be made is missing, with the reason and what to install.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { chmod, rm, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import { TidemarkError } from '../../shared/errors.ts';
import { chooseCacheDir, ensurePackages, type Recipe } from '../../shared/stack/packages.ts';
import { faultText, run, withLock } from '../../shared/stack/processes.ts';

export interface Tool {
  /** Of the program, or its name on the PATH; empty where it is missing. */
  readonly path: string;
  /** Why tests that need it are skipped. */
  readonly missing?: string;
  /** What it needs in its environment. */
  readonly env?: Readonly<Record<string, string>>;
}

/** A slow line gets the time it needs; a network that answers nothing does not hold up the tests for longer. */
const GIVE_UP_MS = 600_000;
const SELF = { name: 'self' };

interface Program {
  /** The names it may have on the PATH. */
  readonly names: readonly string[];
  /** Prints the version. */
  readonly versionArgs: readonly string[];
  readonly recipe: Recipe;
  /** Below the recipe's folder. */
  readonly path: string;
  readonly toInstall: string;
}

const PROMTOOL: Program = {
  names: ['promtool'],
  versionArgs: ['--version'],
  recipe: {
    name: 'promtool',
    what: 'promtool',
    names: ['promtool', 'patchelf'],
    backports: false,
    unused: [],
    programs: async (root) => [join(root, 'usr/bin/promtool')],
    smokeTest: async (prefix) => void (await run(join(prefix, 'usr/bin/promtool'), ['--version'])),
  },
  path: 'usr/bin/promtool',
  toInstall: 'apt-get install promtool (before Debian 13: prometheus)',
};

const CHROMIUM_FOLDER = 'usr/lib/chromium';
/** Below the recipe's folder: starts the browser with the libraries and fonts beside it. */
const CHROMIUM_SCRIPT = 'chromium.sh';
const HELLO = 'data:text/html,<script>document.write(6 * 7)</script>';

const CHROMIUM: Program = {
  names: ['chromium', 'chromium-browser', 'google-chrome'],
  versionArgs: ['--version'],
  recipe: {
    name: 'chromium',
    what: 'Chromium',
    names: ['chromium', 'chromium-common', 'fonts-dejavu-core', 'patchelf'],
    backports: false,
    unused: ['usr/share/icons', 'usr/share/themes', join(CHROMIUM_FOLDER, 'libVkLayer_khronos_validation.so')],
    programs: async (root) => ['chromium', 'chrome_crashpad_handler'].map((name) => join(root, CHROMIUM_FOLDER, name)),
    async finish(root, prefix, libraries) {
      const fonts = join(prefix, 'usr/share/fonts');
      await writeFile(
        join(root, 'fonts.conf'),
        `<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">\n<fontconfig><dir>${fonts}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>\n`,
      );
      // Some of the libraries name folders of the system for what they need in turn, which the program's own do not undo.
      const path = [libraries, join(libraries, 'pulseaudio')].join(':');
      const lines = [
        '#!/bin/sh',
        `export LD_LIBRARY_PATH='${path}' FONTCONFIG_FILE='${join(prefix, 'fonts.conf')}'`,
        `exec '${join(prefix, CHROMIUM_FOLDER, 'chromium')}' "$@"`,
      ];
      await writeFile(join(root, CHROMIUM_SCRIPT), `${lines.join('\n')}\n`);
      await chmod(join(root, CHROMIUM_SCRIPT), 0o755);
    },
    async smokeTest(prefix) {
      const args = ['--headless', '--no-sandbox', '--disable-gpu', '--dump-dom', HELLO];
      const { stdout } = await run(join(prefix, CHROMIUM_SCRIPT), args, { signal: AbortSignal.timeout(120_000) });
      if (!stdout.includes('>42<')) throw new Error(`Chromium shows no page, but ${JSON.stringify(stdout)}`);
    },
  },
  path: CHROMIUM_SCRIPT,
  toInstall: 'apt-get install chromium',
};

const NGINX_PATH = 'usr/sbin/nginx';

const NGINX: Program = {
  names: ['nginx'],
  // It would open its compiled-in log before it prints, and warn where that does not exist.
  versionArgs: ['-e', 'stderr', '-v'],
  recipe: {
    name: 'nginx',
    what: 'nginx',
    names: ['nginx', 'patchelf'],
    backports: false,
    unused: [],
    programs: async (root) => [join(root, NGINX_PATH)],
    smokeTest: async (prefix) => void (await run(join(prefix, NGINX_PATH), ['-e', 'stderr', '-v'])),
  },
  path: NGINX_PATH,
  toInstall: 'apt-get install nginx',
};

export const promtool = (): Promise<Tool> => once('promtool', () => programOf(PROMTOOL));
export const chromium = (): Promise<Tool> => once('chromium', () => programOf(CHROMIUM));
/** nginx as the distribution makes it; its configuration is the test's. */
export const nginx = (): Promise<Tool> => once('nginx', () => programOf(NGINX));

async function programOf({ names, versionArgs, recipe, path, toInstall }: Program): Promise<Tool> {
  const installed = (process.env.PATH ?? '')
    .split(delimiter)
    .flatMap((folder) => names.map((name) => join(folder, name)))
    .find((one) => existsSync(one) && runs(one, versionArgs));
  if (installed) return { path: installed };
  try {
    const signal = AbortSignal.timeout(GIVE_UP_MS);
    return { path: join(await ensurePackages(recipe, { user: SELF, progress, signal }), path) };
  } catch (error) {
    return missing(`${recipe.what} is missing: ${toInstall}`, error);
  }
}

const REQUESTS_PACKAGES = [
  'requests==2.34.2',
  'certifi==2026.10.19.post1',
  'charset-normalizer==3.5.3',
  'idna==3.20',
  'urllib3==2.8.0',
];
/** The packages of the Python that the page shows, with those that they need. */
const SNIPPET_PACKAGES = ['polars==2.1.0', 'polars-runtime-32==2.1.0', ...REQUESTS_PACKAGES];

/** A Python with polars and requests. */
export const snippetPython = (): Promise<Tool> =>
  once('snippet-python', () => pythonWith(SNIPPET_PACKAGES, 'import polars, requests'));

const SIGNING_PACKAGES = ['cryptography==50.0.2', 'cffi==2.1.1', 'pycparser==3.12'];

/** Readers of Parquet and Arrow that are quickly there, with those packages that they need. */
const READER_PACKAGES = [
  ...['pyarrow==26.0.1', 'polars==2.1.0', 'polars-runtime-32==2.1.0', 'duckdb==2.0.1', 'fastparquet==2026.9.0'],
  ...['pandas==3.1.1', 'numpy==2.4.6', 'python-dateutil==4.0.0', 'tzdata==2026.6'],
  ...['cramjam==2.14.0', 'fsspec==2026.9.0', 'packaging==26.4'],
];
/** ClickHouse takes half a gigabyte. */
const CLICKHOUSE_PACKAGES = ['chdb==4.4.0', 'chdb-core==26.9.0', ...READER_PACKAGES];

/** A Python with pyarrow, polars, DuckDB and fastparquet. */
export const readersPython = (): Promise<Tool> =>
  once('readers-python', () => pythonWith(READER_PACKAGES, 'import pyarrow, polars, duckdb, fastparquet'));

const DELTA_RS_PACKAGES = [
  ...['deltalake==1.6.6', 'arro3-core==0.9.1', 'Deprecated==1.3.1', 'wrapt==2.5.2', 'typing_extensions==4.16.0'],
];

/** DuckDB's extension is of one version of DuckDB, and newer ones have none there. */
const TABLE_PACKAGES = [
  ...DELTA_RS_PACKAGES,
  ...['duckdb==1.5.5', 'duckdb_extension_delta==1.5.5', 'duckdb_extensions==1.5.5', 'pytz==2026.6'],
  ...['pyarrow==26.0.1', 'polars==2.1.0', 'polars-runtime-32==2.1.0'],
];

/** A Python with delta-rs, polars and DuckDB, which read Delta tables. */
export const tablesPython = (): Promise<Tool> =>
  once('tables-python', () =>
    pythonWith(
      TABLE_PACKAGES,
      'import deltalake, polars, duckdb_extensions, duckdb; assert duckdb.__version__ == "1.5.5"',
    ),
  );

export const QUESTDB_JAR = 'questdb-9.3.4.jar';

/** A folder with the jar of QuestDB. */
export const questDb = (): Promise<Tool> => once('questdb', () => jarsForJava(['org.questdb:questdb:9.3.4']));

const DELTA_JARS = [
  'io.delta:delta-spark_2.12:3.3.3',
  'io.delta:delta-storage:3.3.3',
  'org.antlr:antlr4-runtime:4.9.3',
];

/** A Python with Spark 3.5, and the jars that read Delta tables. */
export const sparkTablesPython = (): Promise<Tool> =>
  once('spark-tables-python', async () => {
    const jars = await jarsForJava(DELTA_JARS);
    if (jars.missing !== undefined) return jars;
    const python = await pythonWith(
      ['pyspark==3.5.9', 'py4j==0.10.9.9'],
      'import pyspark; assert pyspark.__version__ == "3.5.9"',
      ['pyspark'],
    );
    return python.missing === undefined ? { ...python, env: { DELTA_JARS: jars.path } } : python;
  });

/** A Python with all that README, docs and examples import. */
export const docsPython = (): Promise<Tool> =>
  once('docs-python', () =>
    pythonWith(
      [...READER_PACKAGES, ...REQUESTS_PACKAGES, ...DELTA_RS_PACKAGES, ...SIGNING_PACKAGES],
      'import pyarrow, polars, requests, deltalake, cryptography',
    ),
  );

/** What the Python client's tests need of Python alone. */
const PYTHON_TEST_PACKAGES = [
  ...['pytest==9.2.0', 'iniconfig==2.3.1', 'pluggy==1.7.0', 'packaging==26.4', 'Pygments==2.21.0'],
  ...SIGNING_PACKAGES,
];
const FRAME_PACKAGES = ['pyarrow==26.0.1', 'duckdb==1.5.5', 'pytz==2026.6', 'tzdata==2026.6', 'tqdm==4.70.1'];
const PANDAS_3 = ['pandas==3.1.1', 'numpy==2.4.6', 'python-dateutil==4.0.0'];
/** Each Python that the client is tested on, with what frames it has there; the first is that of `npm test`. */
const PYTHONS = [
  {
    version: '3.11',
    packages: [
      ...[...PYTHON_TEST_PACKAGES, ...FRAME_PACKAGES, ...PANDAS_3, 'polars==2.1.0', 'polars-runtime-32==2.1.0'],
      ...DELTA_RS_PACKAGES,
    ],
    check: 'import pandas, polars, pyarrow, duckdb, deltalake, cryptography, pytest',
  },
  {
    version: '3.12',
    packages: [
      ...[...PYTHON_TEST_PACKAGES, ...FRAME_PACKAGES, 'polars==1.44.2', 'polars-runtime-32==1.44.2'],
      ...['pandas==2.3.3', 'numpy==2.3.5', 'python-dateutil==4.0.0'],
      ...DELTA_RS_PACKAGES,
    ],
    check: 'import pandas, polars, pyarrow, duckdb, deltalake, cryptography, pytest',
  },
  { version: '3.13', packages: PYTHON_TEST_PACKAGES, check: 'import cryptography, pytest' },
  { version: '3.14', packages: PYTHON_TEST_PACKAGES, check: 'import cryptography, pytest' },
] as const;

export type PythonVersion = (typeof PYTHONS)[number]['version'];
export const PYTHON_VERSIONS = PYTHONS.map(({ version }) => version);

/** A Python of a version, with what the tests of the Python client import. */
export const clientPython = (version: PythonVersion = PYTHONS[0].version): Promise<Tool> =>
  once(`client-python-${version}`, async () => {
    const { packages, check } = PYTHONS.find((one) => one.version === version)!;
    const interpreter = pythonOf(version);
    return interpreter === undefined
      ? { path: '', missing: `python${version} is missing: install it on the PATH` }
      : await pythonWith(packages, check, [], interpreter);
  });

/** A Python of this version: on the PATH, or where pyenv keeps its own. */
function pythonOf(version: string): string | undefined {
  const own = join(process.env.PYENV_ROOT ?? join(homedir(), '.pyenv'), 'versions');
  const kept = existsSync(own) ? readdirSync(own).filter((name) => name.startsWith(`${version}.`)) : [];
  const found = [`python${version}`, 'python3', ...kept.map((name) => join(own, name, 'bin/python'))];
  const isIt = `import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '${version}')`;
  return found.find((python) => runs(python, ['-c', isIt]));
}

const PACKAGING_PACKAGES = [
  ...['ast_serialize==0.13.1', 'backports.tarfile==1.2.0', 'build==1.6.1', 'certifi==2026.10.19.post1'],
  ...['cffi==2.1.1', 'charset-normalizer==3.5.3', 'cryptography==50.0.2', 'docutils==0.23'],
  ...['duckdb==2.0.1', 'hatchling==1.33.0', 'id==1.6.1', 'idna==3.20', 'importlib_metadata==10.2.0'],
  ...['jaraco.classes==3.4.0', 'jaraco.context==6.1.2', 'jaraco.functools==4.6.0', 'jeepney==0.9.0'],
  ...['keyring==25.7.0', 'lazy-importer==0.1.0', 'librt==0.17.0', 'markdown-it-py==4.3.0', 'mdurl==0.1.2'],
  ...['more-itertools==11.2.1', 'mypy==2.4.1', 'mypy_extensions==1.2.0', 'nh3==0.3.8', 'numpy==2.4.6'],
  ...['packaging==26.4', 'pandas-stubs==3.1.0.261029', 'pathspec==1.1.1', 'pluggy==1.7.0', 'polars==2.1.0'],
  ...['polars-runtime-32==2.1.0', 'pyarrow==26.0.1', 'pyarrow-stubs==20.0.0.20260819', 'pycparser==3.12'],
  ...['Pygments==2.21.0', 'pyproject_hooks==1.3.3', 'readme_renderer==46.0', 'requests==2.34.2'],
  ...['requests-toolbelt==1.0.0', 'rfc3986==2.0.0', 'rich==15.0.0', 'ruff==0.17.6', 'SecretStorage==3.5.0'],
  ...['tomlkit==0.15.2', 'trove-classifiers==2026.9.21.13', 'twine==7.0.0', 'typing_extensions==4.16.0'],
  ...['urllib3==2.8.0', 'zipp==4.1.2'],
];

/** A Python with what the Python client is checked and packed with. */
export const packagingPython = (): Promise<Tool> =>
  once('packaging-python', () => pythonWith(PACKAGING_PACKAGES, 'import mypy, ruff, twine, build, hatchling'));

const NOTEBOOK_PACKAGES = [
  ...['asttokens==3.0.2', 'attrs==26.1.0', 'backtesting==0.6.6', 'bokeh==3.9.2', 'cffi==2.1.1'],
  ...['comm==0.2.3', 'contourpy==1.3.3', 'cryptography==50.0.2', 'cycler==0.12.1', 'debugpy==1.8.22'],
  ...['executing==2.3.0', 'fastjsonschema==2.22.3', 'fonttools==4.68.0', 'ipykernel==7.4.0'],
  ...['ipython==9.18.1', 'ipython_pygments_lexers==1.1.1', 'jedi==0.20.1', 'Jinja2==3.1.6'],
  ...['jsonschema==4.26.0', 'jsonschema-specifications==2025.9.1', 'jupyter_client==8.10.0'],
  ...['jupyter_core==5.9.1', 'kiwisolver==1.5.1', 'MarkupSafe==3.0.4', 'matplotlib==3.11.2'],
  ...['matplotlib-inline==0.2.2', 'narwhals==2.29.0', 'nbclient==0.11.0', 'nbformat==5.11.1'],
  ...['nest-asyncio2==1.7.4', 'numpy==2.4.6', 'packaging==26.4', 'pandas==3.1.1', 'parso==0.8.7'],
  ...['pexpect==4.9.0', 'pillow==13.0.0', 'platformdirs==4.14.8', 'prompt_toolkit==3.0.53'],
  ...['psutil==7.2.2', 'ptyprocess==0.7.0', 'pure_eval==0.2.4', 'pyarrow==26.0.1', 'pycparser==3.12'],
  ...['Pygments==2.21.0', 'pyparsing==3.3.3', 'python-dateutil==4.0.0', 'PyYAML==6.0.4', 'pyzmq==27.3.0'],
  ...['referencing==0.37.0', 'rpds-py==2026.9.1', 'stack-data==0.6.3', 'tornado==6.6.1', 'tqdm==4.70.1'],
  ...['traitlets==5.16.1', 'typing_extensions==4.16.0', 'tzdata==2026.6', 'wcwidth==0.9.4'],
  ...['xyzservices==2026.9.1'],
];

/** A Python that executes the notebook of examples/, with what it imports. */
export const notebookPython = (): Promise<Tool> =>
  once('notebook-python', () => pythonWith(NOTEBOOK_PACKAGES, 'import nbclient, ipykernel, backtesting, matplotlib'));

/** A Python with ClickHouse. */
export const clickhousePython = (): Promise<Tool> =>
  once('clickhouse-python', () => pythonWith(CLICKHOUSE_PACKAGES, 'import chdb'));

/** A Python with Spark, which PyPI has as source alone. */
export const sparkPython = (): Promise<Tool> =>
  once('spark-python', async () =>
    runs('java', ['-version'])
      ? await pythonWith(['pyspark==4.3.0', 'py4j==0.10.9.9'], 'import pyspark', ['pyspark'])
      : { path: '', missing: 'java is missing: apt-get install default-jre-headless' },
  );

const SCHEMATHESIS_PACKAGES = [
  ...['schemathesis==4.32.5', 'hypothesis==6.170.17', 'hypothesis-graphql==0.13.5', 'graphql-core==3.3.2'],
  ...['jsonschema_rs==0.60.3', 'harfile==0.6.0', 'pyrate-limiter==4.5.1', 'sortedcontainers==2.4.0', 'Werkzeug==3.1.9'],
  ...['MarkupSafe==3.0.4', 'click==8.5.1', 'rich==15.0.0', 'Pygments==2.21.0', 'markdown-it-py==4.3.0', 'mdurl==0.1.2'],
  ...['pytest==9.2.0', 'iniconfig==2.3.1', 'pluggy==1.7.0', 'packaging==26.4', 'PyYAML==6.0.4', 'anyio==4.16.0'],
  ...['requests==2.34.2', 'certifi==2026.10.19.post1', 'charset-normalizer==3.5.3', 'idna==3.20', 'urllib3==2.8.0'],
  'typing_extensions==4.16.0',
];

/** A Python with schemathesis, which makes requests from an OpenAPI document and holds the answers against it. */
export const schemathesisPython = (): Promise<Tool> =>
  once('schemathesis-python', () => pythonWith(SCHEMATHESIS_PACKAGES, 'import schemathesis'));

const PYTHON_CLIENT_PACKAGES = [
  ...['openapi-python-client==0.29.1', 'httpx==0.28.1', 'httpcore==1.0.9', 'h11==0.16.0', 'anyio==4.16.0'],
  ...['attrs==26.1.0', 'certifi==2026.10.19.post1', 'idna==3.20', 'Jinja2==3.1.6', 'MarkupSafe==3.0.4'],
  ...['pydantic==2.14.4', 'pydantic_core==2.50.5', 'annotated-types==0.8.0', 'annotated-doc==0.0.7'],
  ...['typing-inspection==0.4.5', 'typing_extensions==4.16.0', 'ruamel.yaml==0.19.1', 'ruff==0.17.6', 'typer==0.27.3'],
  ...['rich==15.0.0', 'Pygments==2.21.0', 'markdown-it-py==4.3.0', 'mdurl==0.1.2', 'shellingham==1.5.4'],
];

/** A Python with openapi-python-client, and with what a client that it makes imports. */
export const pythonClientMaker = (): Promise<Tool> =>
  once('python-client-maker', () => pythonWith(PYTHON_CLIENT_PACKAGES, 'import openapi_python_client'));

const TYPESCRIPT_PACKAGES = ['openapi-typescript@7.13.0', 'openapi-fetch@0.17.0', 'typescript@5.9.3'];

/** A folder with openapi-typescript, and with what a client that it makes imports. */
export const typescriptClientMaker = (): Promise<Tool> =>
  once('typescript-client-maker', () =>
    filled('npm', TYPESCRIPT_PACKAGES, 'reach the npm registry', (folder, signal) =>
      run('npm', ['install', '--silent', '--no-audit', '--no-fund', '--prefix', folder, ...TYPESCRIPT_PACKAGES], {
        signal,
      }),
    ),
  );

const goPrograms = async (modules: readonly string[]): Promise<Tool> =>
  runs('go', ['version'])
    ? await filled('go', modules, 'reach the Go module proxy', (folder, signal) =>
        run('go', ['install', ...modules], { signal, env: { GOBIN: folder } }),
      )
    : { path: '', missing: 'go is missing: apt-get install golang' };

/** A folder with oapi-codegen. */
export const goClientMaker = (): Promise<Tool> =>
  once('go-client-maker', () => goPrograms(['github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2']));

/** A folder with Tessera's fsck, which reads logs of tlog-tiles. */
export const logFsck = (): Promise<Tool> =>
  once('log-fsck', () => goPrograms(['github.com/transparency-dev/tessera/cmd/fsck@v1.0.4']));

const JAVA_ARTIFACTS = ['org.openapitools:openapi-generator-cli:7.17.0'];
export const JAVA_GENERATOR = 'openapi-generator-cli-7.17.0.jar';

/** A folder with the jar of openapi-generator. */
export const javaClientMaker = (): Promise<Tool> =>
  once('java-client-maker', async () =>
    runs('javac', ['-version']) && runs('mvn', ['--version'])
      ? await jarsOf(JAVA_ARTIFACTS)
      : { path: '', missing: 'javac or mvn is missing: apt-get install default-jdk-headless maven' },
  );

/** A folder with these artifacts of Maven Central, without those that they need. */
const jarsOf = (artifacts: readonly string[]): Promise<Tool> =>
  filled('maven', artifacts, 'reach Maven Central', async (folder, signal) => {
    for (const name of artifacts) {
      const options = [`-Dartifact=${name}`, `-DoutputDirectory=${folder}`];
      await run('mvn', ['-q', '-B', 'dependency:copy', ...options], { signal, cwd: folder });
    }
  });

/** The same, where there is a Java that can run them. */
const jarsForJava = async (artifacts: readonly string[]): Promise<Tool> =>
  runs('java', ['-version']) && runs('mvn', ['--version'])
    ? await jarsOf(artifacts)
    : { path: '', missing: 'java or mvn is missing: apt-get install default-jre-headless maven' };

/** A folder of the cache that is filled once. */
async function filled(
  kind: string,
  packages: readonly string[],
  toInstall: string,
  fill: (folder: string, signal: AbortSignal) => Promise<unknown>,
): Promise<Tool> {
  try {
    const cacheDir = await chooseCacheDir(SELF);
    const folder = join(cacheDir, `${kind}-${keyOf(packages)}`);
    const isReady = () => existsSync(join(folder, 'READY'));
    if (isReady()) return { path: folder };
    await withLock(join(cacheDir, `${kind}.lock`), { waitMs: GIVE_UP_MS }, async () => {
      if (isReady()) return;
      progress(`installing ${packages.join(', ')} (once)`);
      await rm(folder, { recursive: true, force: true });
      mkdirSync(folder);
      await fill(folder, AbortSignal.timeout(GIVE_UP_MS));
      await writeFile(join(folder, 'READY'), `${packages.join('\n')}\n`);
    });
    return { path: folder };
  } catch (error) {
    return missing(`${packages[0]} is missing: ${toInstall}`, error);
  }
}

const keyOf = (packages: readonly string[]): string =>
  createHash('sha256')
    .update(JSON.stringify([packages, process.arch]))
    .digest('hex')
    .slice(0, 12);

/**
 * @param packages all of them with their versions
 * @param check what the environment must run
 * @param fromSource packages that are built here
 * @param interpreter which Python it is made from
 */
async function pythonWith(
  packages: readonly string[],
  check: string,
  fromSource: readonly string[] = [],
  interpreter = 'python3',
): Promise<Tool> {
  try {
    const cacheDir = await chooseCacheDir(SELF);
    const folder = join(
      cacheDir,
      `python-${keyOf([...packages, ...(interpreter === 'python3' ? [] : [interpreter])])}`,
    );
    const python = join(folder, 'bin/python');
    // An environment stops working when the Python that it is made from is replaced by another version.
    const isReady = () => existsSync(join(folder, 'READY')) && runs(python, ['-c', check]);
    if (isReady()) return { path: python };
    if (runs(interpreter, ['-c', check])) return { path: interpreter };
    await withLock(join(cacheDir, 'python.lock'), { waitMs: GIVE_UP_MS }, async () => {
      if (isReady()) return;
      const signal = AbortSignal.timeout(GIVE_UP_MS);
      progress(`installing ${packages.join(', ')} (once)`);
      await rm(folder, { recursive: true, force: true });
      await run(interpreter, ['-m', 'venv', '--without-pip', folder], { signal });
      const forms = ['--only-binary', ':all:', ...fromSource.flatMap((name) => ['--no-binary', name])];
      const options = ['--quiet', '--no-input', '--disable-pip-version-check', ...forms, '--no-deps'];
      await run('python3', ['-m', 'pip', '--python', python, 'install', ...options, ...packages], { signal });
      await run(python, ['-c', check], { signal });
      await writeFile(join(folder, 'READY'), `${packages.join('\n')}\n`);
    });
    return { path: python };
  } catch (error) {
    return missing(
      `python3 with ${packages[0]} is missing: apt-get install python3 python3-pip, and reach PyPI`,
      error,
    );
  }
}

/** What a run could not have once, its other files do not wait for again. */
async function once(name: string, make: () => Promise<Tool>): Promise<Tool> {
  const folder = join(import.meta.dirname, '../../.tidemark/test');
  const note = join(folder, `${name}.missing`);
  const { TIDEMARK_TEST_RUN: testRun } = process.env;
  const [ofRun, why] = existsSync(note) ? readFileSync(note, 'utf8').split('\n') : [];
  if (why && ofRun === testRun) return { path: '', missing: why };
  const tool = await make();
  if (tool.missing !== undefined) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(note, `${testRun}\n${tool.missing}`);
  }
  return tool;
}

/** In one line without brackets: it becomes part of the tests' names. */
function missing(what: string, error: unknown): Tool {
  const hasNoApt = error instanceof TidemarkError && error.code === 'STACK_INSTALL_FAILED';
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
  const fault = hasNoApt ? 'there is no apt' : faultText(cause).replaceAll(/[[\]]/g, '').replaceAll(/\s+/g, ' ');
  return { path: '', missing: `${what} (a private one cannot be made: ${fault.slice(0, 200)})` };
}

const runs = (program: string, args: readonly string[]): boolean =>
  spawnSync(program, args, { stdio: 'ignore', timeout: 60_000 }).status === 0;

const progress = (line: string) => void process.stderr.write(`tidemark: ${line}\n`);
