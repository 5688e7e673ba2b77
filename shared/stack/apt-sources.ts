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
