/**
 * Downloads packages of another suite with the machine's own apt, in a private state folder: nothing that is installed or
 * configured changes, and root is not needed. The machine's apt sources are retargeted to the other suite, so that the
 * packages come from the mirrors and keyrings that the machine trusts. No host is named here.
 */

import { existsSync, readFileSync } from 'node:fs';
import { readdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { commandExists, openFolder, run } from './processes.ts';

interface AptSource {
  readonly types: readonly string[];
  readonly uris: readonly string[];
  readonly suites: readonly string[];
  readonly components: readonly string[];
  /** All other deb822 fields: Signed-By, Trusted, Architectures ... */
  readonly options: Readonly<Record<string, string>>;
}

/** The deb822 names of one-line options, where they differ from the option with a capital letter. */
const DEB822_NAMES: Readonly<Record<string, string>> = {
  arch: 'Architectures',
  lang: 'Languages',
  target: 'Targets',
  'signed-by': 'Signed-By',
  'check-valid-until': 'Check-Valid-Until',
  'check-date': 'Check-Date',
  'by-hash': 'By-Hash',
  'allow-insecure': 'Allow-Insecure',
  'allow-weak': 'Allow-Weak',
  'allow-downgrade-to-insecure': 'Allow-Downgrade-To-Insecure',
};

/** Parses sources of one line each: `deb [signed-by=...] URI suite component...`. */
export function parseOneLineSources(text: string): AptSource[] {
  const sources: AptSource[] = [];
  for (const line of text.split('\n')) {
    const match = /^\s*(deb)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)\s*(?:#.*)?$/.exec(line);
    if (!match) continue;
    const [, type, optionText = '', uri, suite, componentText] = match as unknown as [string, ...string[]];
    const options: Record<string, string> = {};
    for (const pair of optionText.split(/\s+/).filter(Boolean)) {
      const at = pair.indexOf('=');
      if (at < 0) continue;
      const key = pair.slice(0, at).replace(/[+-]$/, '').toLowerCase();
      options[DEB822_NAMES[key] ?? key[0].toUpperCase() + key.slice(1)] = pair.slice(at + 1).replaceAll(',', ' ');
    }
    sources.push({ types: [type], uris: [uri], suites: [suite], components: words(componentText), options });
  }
  return sources;
}

/** Parses deb822 stanzas. A field of several lines (an inline key in Signed-By) keeps its line breaks. */
export function parseDeb822Sources(text: string): AptSource[] {
  const sources: AptSource[] = [];
  for (const stanza of text.replace(/^#.*\n?/gm, '').split(/\n\s*\n/)) {
    const fields = new Map<string, string>();
    let current = '';
    for (const line of stanza.split('\n')) {
      const field = /^([A-Za-z0-9-]+):\s*(.*)$/.exec(line);
      if (field) {
        current = field[1];
        fields.set(current, field[2]);
      } else if (/^\s/.test(line) && current !== '') {
        fields.set(current, `${fields.get(current)}\n${line}`);
      }
    }
    const take = (name: string): string => {
      for (const [key, value] of fields) {
        if (key.toLowerCase() === name) {
          fields.delete(key);
          return value;
        }
      }
      return '';
    };
    const types = words(take('types'));
    const uris = words(take('uris'));
    const suites = words(take('suites'));
    const components = words(take('components'));
    const enabled = take('enabled').trim().toLowerCase();
    if (!types.includes('deb') || uris.length === 0 || enabled === 'no' || enabled === 'false') continue;
    sources.push({ types: ['deb'], uris, suites, components, options: Object.fromEntries(fields) });
  }
  return sources;
}

/**
 * The distribution's own sources with another suite. Third-party sources are dropped: their suites are neither the
 * machine's release nor one of the rolling names, or their components lack `main`.
 */
export function retargetSources(
  sources: readonly AptSource[],
  machineCodename: string,
  target: { readonly suite: string; readonly components: readonly string[] },
): AptSource[] {
  const bases = new Set([machineCodename, 'oldoldstable', 'oldstable', 'stable', 'testing', 'unstable', 'sid']);
  const seen = new Set<string>();
  const result: AptSource[] = [];
  for (const source of sources) {
    if (!source.components.includes('main')) continue;
    for (const suite of source.suites) {
      const match = /^([a-z]+)(-updates|-security|\/updates)?\/?$/.exec(suite);
      if (!match || !bases.has(match[1])) continue;
      const kind = match[2] === '/updates' ? '-security' : (match[2] ?? '');
      const key = `${source.uris.join(' ')} ${kind}`;
      if (seen.has(key)) continue;
      seen.add(key);
      result.push({ ...source, suites: [`${target.suite}${kind}`], components: target.components });
    }
  }
  return result;
}

export function formatDeb822(sources: readonly AptSource[]): string {
  return sources
    .map((source) =>
      [
        `Types: ${source.types.join(' ')}`,
        `URIs: ${source.uris.join(' ')}`,
        `Suites: ${source.suites.join(' ')}`,
        `Components: ${source.components.join(' ')}`,
        ...Object.entries(source.options).map(([key, value]) => `${key}: ${value}`),
        '',
      ].join('\n'),
    )
    .join('\n');
}

const words = (text: string): string[] => text.split(/\s+/).filter(Boolean);

export type ReportProgress = (line: string) => void;

export const PACKAGES = 'packages';

/** The packages to download. */
export interface PackageList {
  /** What the packages contain, for messages. */
  readonly what: string;
  readonly names: readonly string[];
  /** Whether they may come from the suite's backports. */
  readonly backports: boolean;
}

/**
 * The packages among those that apt resolves whose shared libraries the servers load. The others (perl, debconf,
 * passwd ...) serve package scripts, which never run here; LLVM (35 MB) is for jit, which stays off.
 */
const NEEDED_LIBRARY =
  /^(?:lib(?!.*perl|llvm|z3-|pam-modules|semanage|sepol|proc2|ncurses|c-bin|c-l10n|systemd-shared)|zlib1g$)/;

export interface Distribution {
  readonly codename: string;
  /** The suites to try, in this order. */
  readonly targets: readonly { readonly suite: string; readonly components: readonly string[] }[];
}

/** The distribution of the machine; undefined without apt, or where its suites are unknown. */
export function aptDistribution(osRelease = readIfThere('/etc/os-release')): Distribution | undefined {
  if (!commandExists('apt-get') || !commandExists('dpkg-deb')) return undefined;
  const fields = new Map<string, string>();
  for (const match of osRelease.matchAll(/^([A-Z_]+)="?([^"\n]*)"?$/gm)) fields.set(match[1], match[2]);
  const family = `${fields.get('ID') ?? ''} ${fields.get('ID_LIKE') ?? ''}`.split(' ');
  if (family.includes('ubuntu')) {
    // The Ubuntu releases with PostgreSQL 17. Archive and keys are those of the machine's own release.
    const components = ['main', 'universe'];
    return {
      codename: fields.get('UBUNTU_CODENAME') ?? fields.get('VERSION_CODENAME') ?? '',
      targets: ['questing', 'plucky'].map((suite) => ({ suite, components })),
    };
  }
  if (family.includes('debian')) {
    return {
      codename: fields.get('DEBIAN_CODENAME') ?? fields.get('VERSION_CODENAME') ?? '',
      targets: [{ suite: 'trixie', components: ['main'] }],
    };
  }
  return undefined;
}

/**
 * Downloads the wanted packages and the libraries that they need into the folder `PACKAGES` of `work`. apt verifies them
 * with the signed indexes of the archive.
 * @returns the names of the files.
 */
export async function downloadPackages(
  work: string,
  { what, names: wanted, backports }: PackageList,
  distribution: Distribution,
  target: Distribution['targets'][number],
  progress: ReportProgress,
  signal: AbortSignal | undefined,
): Promise<string[]> {
  const sources = retargetSources(await machineSources(), distribution.codename, target);
  if (backports) sources.push(...backportsOf(sources, target.suite));
  if (sources.length === 0) {
    throw new TidemarkError(
      'STACK_INSTALL_FAILED',
      `The machine's apt sources name no archive of its own release (${distribution.codename || 'unknown'})`,
    );
  }
  const apt = await privateApt(join(work, 'apt'), sources);
  // The exit code is ignored, because one of several sources may lack the suite. The next command fails without packages.
  const folders = { lists: join(work, 'apt/state/lists'), copied: dirname(work) };
  const update = await untilAnswered(folders, signal, (ends) =>
    run('apt-get', ['update'], { env: apt, check: false, signal: ends }),
  );
  const listed = await run('apt-get', ['install', '--print-uris', '-y', ...wanted], { env: apt, check: false, signal });
  if (listed.code !== 0) {
    throw new TidemarkError(
      'STACK_INSTALL_FAILED',
      `apt found no installable ${what} in ${target.suite}:\n` +
        `${update.stderr}${listed.stderr}`.trim().split('\n').slice(-6).join('\n'),
    );
  }
  const names: string[] = [];
  let bytes = 0;
  for (const [, file, size] of listed.stdout.matchAll(/^'[^']+' (\S+?)_\S+ (\d+) /gm)) {
    if (!wanted.includes(file) && !NEEDED_LIBRARY.test(file)) continue;
    names.push(file);
    bytes += Number(size);
  }
  progress(`downloading ${what} (${Math.round(bytes / 1e6)} MB, once)`);
  const packages = join(work, PACKAGES);
  await rm(packages, { recursive: true, force: true });
  await openFolder(packages);
  await run('apt-get', ['download', '-q', ...names], { env: apt, cwd: packages, signal });
  return (await readdir(packages)).filter((name) => name.endsWith('.deb')).sort();
}

/** apt waits for half a minute and repeats that for each mirror: where nothing comes at all in this time, there is no network. */
const PROBE_MS = 5000;

/**
 * @param folders.copied what a machine without a network gets from one that has it
 * @throws TidemarkError STACK_INSTALL_FAILED when no mirror has sent a byte into `lists` within `probeMs`; the reason of the signal
 */
export async function untilAnswered<T>(
  { lists, copied }: { readonly lists: string; readonly copied: string },
  signal: AbortSignal | undefined,
  update: (ends: AbortSignal) => Promise<T>,
  probeMs = PROBE_MS,
): Promise<T> {
  const silence = new AbortController();
  const ends = signal ? AbortSignal.any([signal, silence.signal]) : silence.signal;
  const timer = setTimeout(async () => {
    if ((await bytesIn(lists)) > 0) return;
    const help = `without a network, copy ${copied} from a machine that has one, to the same path`;
    const message = `No package mirror answered within ${probeMs / 1000} s; ${help}`;
    silence.abort(new TidemarkError('STACK_INSTALL_FAILED', message));
  }, probeMs);
  try {
    return await update(ends);
  } catch (error) {
    ends.throwIfAborted();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

async function bytesIn(folder: string): Promise<number> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  const sizes = entries.map((entry) =>
    entry.isFile()
      ? stat(join(entry.parentPath, entry.name)).then(
          ({ size }) => size,
          () => 0,
        )
      : 0,
  );
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}

/** The backports of the suite, in the same archive. */
const backportsOf = (sources: readonly AptSource[], suite: string): AptSource[] =>
  sources
    .filter(({ suites }) => suites.includes(suite))
    .map((source) => ({ ...source, suites: [`${suite}-backports`] }));

async function machineSources(): Promise<AptSource[]> {
  const config = (
    await run('apt-config', ['shell', 'list', 'Dir::Etc::sourcelist/f', 'parts', 'Dir::Etc::sourceparts/d'])
  ).stdout;
  const path = (name: string, fallback: string) => new RegExp(`^${name}='(.*)'$`, 'm').exec(config)?.[1] ?? fallback;
  const parts = path('parts', '/etc/apt/sources.list.d/');
  const files = existsSync(parts) ? (await readdir(parts)).sort().map((name) => join(parts, name)) : [];
  const sources: AptSource[] = [];
  for (const file of [path('list', '/etc/apt/sources.list'), ...files]) {
    if (file.endsWith('.list')) sources.push(...parseOneLineSources(readIfThere(file)));
    else if (file.endsWith('.sources')) sources.push(...parseDeb822Sources(readIfThere(file)));
  }
  return sources;
}

/** The environment of an apt with its own state and sources; of the machine's settings it uses only those for fetching. */
async function privateApt(dir: string, sources: readonly AptSource[]): Promise<NodeJS.ProcessEnv> {
  await rm(dir, { recursive: true, force: true });
  // apt downloads as an account of its own, which has to reach the last of each of these.
  const folders = [
    '.',
    'state',
    'state/lists',
    'state/lists/partial',
    'cache',
    'cache/archives',
    'cache/archives/partial',
  ];
  for (const sub of [...folders, 'parts', 'sources']) await openFolder(join(dir, sub));
  await writeFile(join(dir, 'state/status'), '');
  await writeFile(join(dir, 'sources/runtime.sources'), formatDeb822(sources));
  const machine = (await run('apt-config', ['dump'])).stdout
    .split('\n')
    // Index targets would fetch descriptions and icons. Without `Allow...` settings apt's own strict defaults apply.
    .filter((line) => /^Acquire::/.test(line) && !/^Acquire::(?:IndexTargets|Allow)/.test(line));
  const settings = {
    'Dir::Etc::main': join(dir, 'none'),
    'Dir::Etc::parts': join(dir, 'parts'),
    'Dir::Etc::sourcelist': join(dir, 'none'),
    'Dir::Etc::sourceparts': join(dir, 'sources'),
    'Dir::Etc::preferences': join(dir, 'none'),
    'Dir::Etc::preferencesparts': join(dir, 'parts'),
    'Dir::State': join(dir, 'state'),
    'Dir::State::status': join(dir, 'state/status'),
    'Dir::Cache': join(dir, 'cache'),
    'Acquire::Languages': 'none',
    'Acquire::Retries': '3',
    'APT::Install-Recommends': 'false',
  };
  const lines = Object.entries(settings).map(([key, value]) => `${key} "${value}";`);
  await writeFile(join(dir, 'apt.conf'), `${[...machine, ...lines].join('\n')}\n`);
  const own = { APT_CONFIG: join(dir, 'apt.conf'), LC_ALL: 'C', DEBIAN_FRONTEND: 'noninteractive' };
  return { ...aptProxies(process.env), ...own };
}

/** The proxies of the user's environment under the names that apt reads: npm and others take them in capital letters, too. */
export const aptProxies = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(
    ['http_proxy', 'https_proxy', 'no_proxy'].flatMap((name) => {
      const value = env[name] ?? env[name.toUpperCase()];
      return value === undefined ? [] : [[name, value]];
    }),
  );

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
