/**
 * Fetches packages of another suite with the machine's own apt, in a state of its own: nothing of what is installed
 * or configured changes, and root is not needed.
 */

import { existsSync, readFileSync } from 'node:fs';
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TidemarkError } from '../errors.ts';
import { commandExists, run } from './processes.ts';

/**
 * The machine's own apt sources, read so that the same mirrors can be asked for another suite. Nothing here names a
 * host: whatever mirror and keyring the machine trusts for its own packages is what the runtime comes from.
 */

export interface AptSource {
  readonly types: readonly string[];
  readonly uris: readonly string[];
  readonly suites: readonly string[];
  readonly components: readonly string[];
  /** Everything else, as deb822 fields: Signed-By, Trusted, Architectures ... */
  readonly options: Readonly<Record<string, string>>;
}

/** Field names of one-line options whose deb822 spelling is not the option with a capital letter. */
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

/** `deb [signed-by=...] URI suite component...`, one a line. */
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

/** deb822 stanzas; a continued field (an inline key in Signed-By) keeps its lines. */
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
 * The distribution's own entries with their suite replaced. Third-party entries are recognised by suites that are
 * neither the machine's release nor one of the rolling names, or by components without `main`, and left out.
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

export type Progress = (line: string) => void;

export const PACKAGES = 'packages';

/** What is asked of apt. */
export interface Wanted {
  /** For a person: what the packages bring. */
  readonly what: string;
  readonly names: readonly string[];
  /** Whether the suite's backports are asked too. */
  readonly backports: boolean;
}

/**
 * Of the packages apt resolves, the ones that hold shared libraries the servers load. The rest (perl, debconf,
 * passwd ...) serve package scripts that never run here; LLVM (35 MB) is for jit, which stays off.
 */
const NEEDED_LIBRARY =
  /^(?:lib(?!.*perl|llvm|z3-|pam-modules|semanage|sepol|proc2|ncurses|c-bin|c-l10n|systemd-shared)|zlib1g$)/;

export interface Distribution {
  readonly codename: string;
  /** Where to ask, first choice first. */
  readonly targets: readonly { readonly suite: string; readonly components: readonly string[] }[];
}

/** Undefined when the machine has no apt or is of a family whose suites are not known here. */
export function aptDistribution(osRelease = readIfThere('/etc/os-release')): Distribution | undefined {
  if (!commandExists('apt-get') || !commandExists('dpkg-deb')) return undefined;
  const fields = new Map<string, string>();
  for (const match of osRelease.matchAll(/^([A-Z_]+)="?([^"\n]*)"?$/gm)) fields.set(match[1], match[2]);
  const family = `${fields.get('ID') ?? ''} ${fields.get('ID_LIKE') ?? ''}`.split(' ');
  if (family.includes('ubuntu')) {
    // The Ubuntu releases with PostgreSQL 17; same archive, same keys as the machine's own.
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
 * Downloads the wanted packages and the libraries they need into the folder `PACKAGES` of `work`; returns their file
 * names. apt checks them against the signed indexes of the archive.
 */
export async function downloadPackages(
  work: string,
  { what, names: wanted, backports }: Wanted,
  distribution: Distribution,
  target: Distribution['targets'][number],
  progress: Progress,
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
  // Its exit code is not judged: one of several sources may lack the suite. What counts is whether packages are found.
  const update = await run('apt-get', ['update'], { env: apt, check: false, signal });
  const listed = await run('apt-get', ['install', '--print-uris', '-y', ...wanted], { env: apt, check: false });
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
  progress(`getting ${what} (${Math.round(bytes / 1e6)} MB, once)`);
  const packages = join(work, PACKAGES);
  await rm(packages, { recursive: true, force: true });
  await mkdir(packages, { mode: 0o755 });
  await run('apt-get', ['download', '-q', ...names], { env: apt, cwd: packages, signal });
  return (await readdir(packages)).filter((name) => name.endsWith('.deb')).sort();
}

/** The same archive's backports, which are beside the suite itself. */
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

/** The environment of an apt that has its own state and sources, and of the machine's settings those for fetching. */
async function privateApt(dir: string, sources: readonly AptSource[]): Promise<NodeJS.ProcessEnv> {
  await rm(dir, { recursive: true, force: true });
  for (const sub of ['state/lists/partial', 'cache/archives/partial', 'parts', 'sources']) {
    await mkdir(join(dir, sub), { recursive: true, mode: 0o755 });
  }
  await writeFile(join(dir, 'state/status'), '');
  await writeFile(join(dir, 'sources/runtime.sources'), formatDeb822(sources));
  const machine = (await run('apt-config', ['dump'])).stdout
    .split('\n')
    // Index targets would fetch descriptions and icons; of `Allow...` settings apt's own strict defaults stand.
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
  return { APT_CONFIG: join(dir, 'apt.conf'), LC_ALL: 'C', DEBIAN_FRONTEND: 'noninteractive' };
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
