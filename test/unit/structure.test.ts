/** How the product is laid out: which folder may import which, and no circle of imports (types included). */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');

/**
 * The layers of each tree, the lowest first. A file imports from its own layer and from those before it in this list; of
 * the other trees, `pipelines` and `serving` import `shared` alone, and `shared` imports nobody.
 */
const LAYERS = [
  'shared',
  'shared/proof-log',
  'shared/mirror',
  'shared/config/settings',
  'shared/registry',
  'shared/config',
  'shared/frame',
  'shared/proof',
  'shared/db',
  'shared/keys',
  'shared/nats',
  'shared/audit',
  'shared/rights',
  'shared/lineage',
  'shared/status',
  'shared/stack',
  'pipelines/rows',
  'pipelines/sample',
  'pipelines/sources',
  'pipelines/publisher',
  'pipelines/projector',
  'pipelines/proof-log',
  'pipelines/cli',
  'pipelines/cli/doctor',
  'pipelines/cli/commands',
  'serving/db',
  'serving/changes',
  'serving/contract',
  'serving/render',
  'serving/read',
  'serving/read/snapshot',
  'serving/read/sql',
  'serving/read/plan',
  'serving/read/sampling',
  'serving/read/klines',
  'serving/read/execute',
  'serving/read/frame',
  'serving/rights',
  'serving/http',
  'serving/limits',
  'serving/discovery',
  'serving/exports',
  'serving/lake',
  'serving/monitoring',
  'serving/openapi',
  'serving/routes',
  'serving/page',
  'serving',
];

/** Programs put layers together; nothing imports them. */
const PROGRAMS = new Set([
  'pipelines/cli/main.ts',
  'pipelines/cli/run.ts',
  'pipelines/projector/main.ts',
  'serving/exports/worker-main.ts',
  'serving/lake/lake-main.ts',
]);

const files = ['shared', 'pipelines', 'serving'].flatMap((tree) =>
  readdirSync(join(ROOT, tree), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|mjs|js)$/.test(name) && !name.includes('node_modules'))
    .map((name) => posix.join(tree, name)),
);
const textOf = new Map(files.map((file) => [file, readFileSync(join(ROOT, file), 'utf8')]));

/** Files of the product that a file imports, those it loads when it needs them included where `lazy` is set. */
function importsOf(file: string, lazy: boolean): string[] {
  const text = textOf.get(file)!;
  const found = [...text.matchAll(/^(?:import|export)\b[^;]*?from '(\.[^']+)'/gm)];
  if (lazy) found.push(...text.matchAll(/import\('(\.[^']+)'\)/g));
  return found.map(([, path]) => posix.join(dirname(file), path));
}

/** The packages that a file imports, by name. */
const packagesOf = (file: string) =>
  [...textOf.get(file)!.matchAll(/^(?:import|export)\b[^;]*?from '([^.'][^']*)'|\bimport\('([^.'][^']*)'\)/gm)]
    .map(([, eager, lazy]) => eager ?? lazy)
    .filter((path) => !path.startsWith('node:'))
    .map((path) => /^(?:@[^/]+\/)?[^/]+/.exec(path)![0]);

/** A script of a package, which the service hands out from `node_modules`, has its types here. */
const isThere = (path: string) => textOf.has(path) || textOf.has(path.replace(/\.js$/, '.d.ts'));

const layerOf = (file: string): number => {
  for (let folder = dirname(file); folder !== '.'; folder = dirname(folder)) {
    const layer = LAYERS.indexOf(folder);
    if (layer >= 0) return layer;
  }
  throw new Error(`${file} is in no layer`);
};

test('a file imports its own layer and lower ones, and pipelines and serving never each other', () => {
  const faults = files.flatMap((file) =>
    PROGRAMS.has(file)
      ? []
      : importsOf(file, true)
          .filter((target) => {
            const [tree, other] = [file.split('/')[0], target.split('/')[0]];
            return !isThere(target) || (tree !== other && other !== 'shared') || layerOf(target) > layerOf(file);
          })
          .map((target) => `${file} imports ${target}`),
  );
  expect(faults).toEqual([]);
});

test('what runs imports only packages that a start installs', () => {
  const { dependencies } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const imported = files.flatMap((file) => packagesOf(file).map((name) => ({ file, name })));
  expect(imported).toContainEqual({ file: 'pipelines/sources/etf/browser.ts', name: 'playwright-core' });
  expect(imported.filter(({ name }) => dependencies[name] === undefined)).toEqual([]);
});

/** A source's own folder; what several share lies beside them. */
const SOURCE = /^pipelines\/sources\/(exchange_[a-z]|etf|macro|bitcoin)\//;

test('no source imports another', () => {
  const sourceOf = (file: string) => SOURCE.exec(file)?.[1];
  const faults = files.flatMap((file) =>
    importsOf(file, true)
      .filter((target) => sourceOf(file) && sourceOf(target) && sourceOf(file) !== sourceOf(target))
      .map((target) => `${file} imports ${target}`),
  );
  expect(faults).toEqual([]);
});

test('the projector decodes what the log says by itself: it imports no decoder of a source', () => {
  const faults = files
    .filter((file) => file.startsWith('pipelines/projector/') && !PROGRAMS.has(file))
    .flatMap((file) => importsOf(file, true).filter((target) => /^pipelines\/(sources|publisher)\//.test(target)));
  expect(faults).toEqual([]);
});

test('no circle of imports, types included', () => {
  expect(circles()).toEqual([]);
});

/** Strongly connected files, by Tarjan's algorithm. */
function circles(): string[][] {
  const found: string[][] = [];
  const order = new Map<string, number>();
  const lowest = new Map<string, number>();
  const stack: string[] = [];
  const visit = (file: string): void => {
    order.set(file, order.size);
    lowest.set(file, order.get(file)!);
    stack.push(file);
    for (const target of importsOf(file, false).filter((path) => textOf.has(path))) {
      if (!order.has(target)) visit(target);
      if (stack.includes(target)) lowest.set(file, Math.min(lowest.get(file)!, lowest.get(target)!));
    }
    if (lowest.get(file) !== order.get(file)) return;
    const circle = stack.splice(stack.indexOf(file));
    if (circle.length > 1) found.push(circle);
  };
  for (const file of files) if (!order.has(file)) visit(file);
  return found;
}
