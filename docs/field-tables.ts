/**
 * The field reference, docs/fields.md: each field once. Similar datasets share most of their fields, so a group lists
 * what all its datasets have, and a dataset lists what is its own.
 */

import { ALIGNED_VIEW, type DatasetKind, type Mode, nativeView } from '../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, type Field, shapeOf } from '../shared/registry/index.ts';
import { KLINE_FIELDS } from '../shared/registry/trades.ts';

const GROUPS: Readonly<Record<DatasetKind, string>> = {
  spot_trades: 'Spot trades',
  etf_daily_metrics: 'ETF and macro metrics',
  macro_series_metrics: 'ETF and macro metrics',
  bitcoin_stream: 'Bitcoin: headers, transactions, mempool',
  bitcoin_derived: 'Bitcoin: one value a block',
};

const MODES = ['native', 'aligned_1s'] satisfies Mode[];

/** One mode in the reference: a line that introduces its list, and the list. */
interface Facts {
  readonly order: ReadonlySet<string>;
  readonly fields: ReadonlySet<string>;
}
type ByMode = Readonly<Record<Mode, Facts>>;

export function fieldReference(): string {
  const groups = Map.groupBy(DATASETS.values(), ({ kind }) => GROUPS[kind]);
  return byType(withoutRepeats([...groups].map(([heading, members]) => group(heading, members)).join('\n')));
}

/** The fields of a list that have the same dtype and unit share an item. */
const byType = (text: string) =>
  text.replaceAll(/(?:^- .*\n)+/gm, (list) => {
    const fields = [...list.matchAll(/^- (`\w+`) ([^:]+): (.*)\.\n/gm)];
    const types = Map.groupBy(fields, ([, , type]) => type);
    const items = [...types].map(
      ([type, those]) => `- **${type}**: ${those.map(([, name, , doc]) => `${name} ${doc}`).join('; ')}.\n`,
    );
    return items.join('') + list.replaceAll(/^- `.*\n/gm, '');
  });

/** A list only names the fields that were last described in the same words. */
function withoutRepeats(text: string): string {
  const last = new Map<string, string>();
  const required = (field: string) => field.replace(/^(- `\w+` \w+)\?/, '$1');
  return text.replaceAll(/(?:^- .*\n)+/gm, (list) => {
    const [repeated, nullable, others] = [[] as string[], [] as string[], [] as string[]];
    for (const [field, name] of list.matchAll(/^- (`\w+`) .*\n/gm)) {
      const before = last.get(name);
      if (before === field) repeated.push(name);
      else if (before === required(field)) nullable.push(name);
      else others.push(field);
      last.set(name, field);
    }
    const named = (names: readonly string[], what: string) =>
      names.length > 0 ? `- As above${what}: ${names.join(', ')}.\n` : '';
    return [...others, named(repeated, ''), named(nullable, ', but nullable')].join('');
  });
}

function group(heading: string, members: readonly DatasetDefinition[]): string {
  const all = members.map(factsOf);
  const shared = byMode((mode) => ({
    order: all.map((facts) => facts[mode].order).reduce((left, right) => left.intersection(right)),
    fields: all.map((facts) => facts[mode].fields).reduce((left, right) => left.intersection(right)),
  }));
  const own = members.map((dataset, index) => {
    const rest = byMode((mode) => ({
      order: all[index][mode].order.difference(shared[mode].order),
      fields: all[index][mode].fields.difference(shared[mode].fields),
    }));
    return `### ${dataset.key}\n\n${lists(rest)}`;
  });
  return [`## ${heading}\n`, lists(shared), ...own].join('\n');
}

/** Fields that are the same in both modes are listed once. */
function lists(facts: ByMode): string {
  const both = facts.native.fields.intersection(facts.aligned_1s.fields);
  const parts = [
    { intro: 'Both modes', order: [], fields: both },
    ...MODES.map((mode) => ({
      intro: `\`${mode}\``,
      order: [...facts[mode].order],
      fields: facts[mode].fields.difference(both),
    })),
  ];
  return parts
    .filter(({ order, fields }) => order.length > 0 || fields.size > 0)
    .map(({ intro, order, fields }) => {
      const text = [intro, ...order].join(', ordered by ');
      return `${text}${fields.size > 0 ? ':' : '.'}\n\n${[...fields].map((field) => `${field}\n`).join('')}`;
    })
    .join('\n');
}

function factsOf(dataset: DatasetDefinition): ByMode {
  return byMode((mode) => {
    const { fields, order, view } = shapeOf(dataset, mode);
    const usual = mode === 'native' ? nativeView(dataset.key) : ALIGNED_VIEW;
    if (view.id !== usual.id || view.version !== usual.version)
      throw new Error(`docs/fields.md does not describe the view ${view.id}`);
    return {
      order: new Set([order.map((name) => `\`${name}\``).join(', ')]),
      fields: new Set(fields.map(line)),
    };
  });
}

const line = ({ name, dtype, nullable, unit, computed, doc }: Field) =>
  `- \`${name}\` ${dtype}${nullable ? '?' : ''}${unit ? ` ${unit}` : ''}${computed ? ', computed' : ''}: ${doc}`;

const byMode = <T>(of: (mode: Mode) => T): Readonly<Record<Mode, T>> => ({
  native: of('native'),
  aligned_1s: of('aligned_1s'),
});

/** Fields of native klines, and how aligned klines compute those that they have too. */
export function klines(): string {
  const aligned = new Map(KLINE_FIELDS.aligned_1s.map((field) => [field.name, field.doc]));
  const lines = KLINE_FIELDS.native.map((field) => {
    const doc = aligned.get(field.name) ?? field.doc;
    aligned.delete(field.name);
    return `${line(field)}${doc === field.doc ? '' : ` Aligned: ${doc}`}\n`;
  });
  if (aligned.size > 0) throw new Error(`aligned klines alone have ${[...aligned.keys()].join(', ')}`);
  return byType(lines.join(''));
}
