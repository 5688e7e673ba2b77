/**
 * What anybody can read says nothing about rows: a stranger who knows everything of a one-row partition but its value tries ten
 * thousand values, and finds none. The same guesses find each value in a leaf that states digests, as leaves of version 1 did.
 */
import { createHash, createHmac } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openContext } from '../../pipelines/cli/context.ts';
import { ingest } from '../../pipelines/cli/ingest.ts';
import { feedOf } from '../../pipelines/sources/index.ts';
import { answerFile } from '../../pipelines/sources/macro/provider-api.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { eventsOf } from '../../pipelines/sources/macro/vintages.ts';
import { RecordFrames } from '../../pipelines/sources/record-frames.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { factsText } from '../../shared/proof/facts.ts';
import { COMMITMENTS, type CommittedFact, commitmentOf, saltOf } from '../../shared/proof-log/commitment.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { decodeLeaf, offsetsText } from '../../shared/proof-log/leaf.ts';
import { COPY_HEADER, COPY_TRAILER, RowBytes } from '../../shared/proof-log/rows.ts';
import { readEntries, TILE_WIDTH } from '../../shared/proof-log/tiles.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';
import { loggedColumns } from '../../shared/registry/proof-rows.ts';
import { commandIo } from '../support/command.ts';
import { System } from '../support/pipeline.ts';
import { logFolderOf, sequence } from '../support/proof-log.ts';

const sha256 = (...parts: (string | Uint8Array)[]) => {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
};

let system: System;
/** The folder of the sample's documents. */
let documents: string;
let rows: readonly PartitionRow[];
/** The public leaves, by partition. */
const leaves = new Map<string, string>();

beforeAll(async () => {
  system = await System.create();
  const { io } = commandIo(system.settings);
  const command = { line: 'up', positionals: [], values: {}, settings: {}, json: true, progress: false, io };
  {
    await using context = await openContext(command, 'up');
    const feed = feedOf('macro');
    const directory = join(system.env.dir, 'sample');
    await mkdir(directory);
    const { settings, log, signal } = context;
    const todayMs = Date.parse('2026-11-28T00:00:00Z');
    const { location, selection } = await feed.sample!.make({ directory, settings, todayMs, log, signal });
    documents = fileURLToPath(location!);
    const request = { kind: 'backfill', line: 'up', location, selection, synthetic: true } as const;
    for await (const unit of ingest(context, feed, request)) expect(unit.state).toBe('proved');
  }
  const size = await sequence(system.env);
  const source = folderSource(logFolderOf(system.env));
  for (let tile = 0; tile * TILE_WIDTH < size; tile++) {
    for (const entry of await readEntries(source, tile, size)) {
      const text = Buffer.from(entry).toString();
      leaves.set(decodeLeaf(entry).partition!, text);
    }
  }
  const all = await new Catalog(system.client).partitions(macroSeriesMetrics, undefined, undefined);
  rows = all.filter((row) => row.rows === 1);
});
afterAll(() => system[Symbol.asyncDispose]());

/** Everything of the partition but its value, which a stranger knows from the docs and the provider's pages. */
async function known({ partitionKey, sourceId }: PartitionRow) {
  const series = SERIES.find((one) => one.sourceId === sourceId)!;
  const [{ value_text: value, dimensions_json: dimensions }] = await system.rows(
    `select value_text, dimensions_json from macro_series_metrics where partition_key = '${partitionKey}'`,
  );
  const { observation_date: date } = JSON.parse(dimensions);
  const document = (await readFile(join(documents, answerFile('series/observations', series.seriesId)))).toString();
  const at = document.indexOf(`"date":"${date}","value":"${value}"`) + `"date":"${date}","value":"`.length;
  return {
    value: value as string,
    // A day without a value has a full stop.
    decimals: (value.split('.')[1] || '00').length,
    vintage: partitionKey.split(':')[1],
    series: { ...series, title: series.metricName.replaceAll('_', ' ') },
    date: date as string,
    document: [document.slice(0, at), document.slice(at + value.length)] as const,
  };
}

type Known = Awaited<ReturnType<typeof known>>;

/** The digests of a partition with the value. */
function digestsOf(key: string, { series, vintage, date, document }: Known, value: string) {
  const [event] = eventsOf(series, vintage, [{ date, value }]);
  const frames = new RecordFrames(macroSeriesMetrics, key, 4096);
  const ended = [...frames.add(event), ...frames.end()].at(-1)!;
  if (ended.kind !== 'end') throw new Error('a partition ends');
  const columns = loggedColumns(macroSeriesMetrics);
  const bytes = new RowBytes();
  bytes.begin(columns.length);
  // The event names its partition by its vintage, and the row by both.
  const cells = event.row.with(9, key);
  for (const [index, { pg }] of columns.entries()) bytes.cell(pg as 'text', cells[index] as string);
  return {
    document_sha256: sha256(document[0], value, document[1]),
    offsets: offsetsText(ended.facts),
    rows_hash: ended.facts.rows_hash,
    events_sha256: ended.facts.events_sha256,
    rows_sha256: sha256(COPY_HEADER, bytes.bytes.subarray(0, bytes.at), COPY_TRAILER),
    facts: factsText(macroSeriesMetrics, ended.facts, undefined),
  };
}

const PUBLIC_SALTS = (key: string) => {
  const [empty, zeros] = [Buffer.alloc(0), Buffer.alloc(32)];
  const salted = { dataset: macroSeriesMetrics.key, partition: key, revision: 1 };
  return [empty, zeros, Buffer.from(key), saltOf(empty, salted), saltOf(zeros, salted)];
};

/** All that a stranger can make of a digest: itself, hashes of it, and commitments under salts that anybody knows. */
const madeOf = (fact: CommittedFact, value: string, salts: readonly Buffer[]): string[] => [
  value,
  sha256(value),
  sha256(`${COMMITMENTS[fact]}\n${value}`),
  ...salts.map((salt) => commitmentOf(salt, fact, value)),
  createHmac('sha256', COMMITMENTS[fact]).update(value).digest('hex'),
];

/** The offset is a digest of names here and not of the value. */
const GUESSED = ['document_sha256', 'rows_hash', 'events_sha256', 'rows_sha256'] as const;

/** Ten thousand values around the true one, and that there is none. */
const guessesOf = ({ value, decimals }: Known): string[] => {
  const unit = 10 ** -decimals;
  const first = Math.max(0, Math.round((Number(value) || 0) / unit) - 5000);
  return ['.', ...Array.from({ length: 10_000 }, (_, at) => ((first + at) * unit).toFixed(decimals))];
};

async function guess(row: PartitionRow) {
  const { partitionKey: key, manifest } = row;
  const facts = await known(row);
  const salts = PUBLIC_SALTS(key);
  const leaf = leaves.get(key)!;
  // A leaf of version 1 stated these.
  const stated = new Set([manifest!.document.sha256, manifest!.rows_hash, manifest!.events_sha256]);
  const inLeaf = new Set(leaf.match(/[0-9a-f]{64}|-?\d{8,}/g));
  const found = { leaf: [] as string[], stated: [] as string[] };
  for (const value of guessesOf(facts)) {
    const digests = digestsOf(key, facts, value);
    for (const fact of GUESSED) {
      if (madeOf(fact, digests[fact], salts).some((made) => inLeaf.has(made))) found.leaf.push(`${fact} ${value}`);
      if (stated.has(digests[fact])) found.stated.push(`${fact} ${value}`);
    }
  }
  return { facts, leaf, found };
}

/** The salt opens what guesses do not: the digests that are tried are those that the leaf commits to. */
async function opened(row: PartitionRow, facts: Known, leaf: string): Promise<void> {
  const [{ salt }] = await system.rows(`select salt from proof_leaves where partition_key = '${row.partitionKey}'`);
  const digests = digestsOf(row.partitionKey, facts, facts.value);
  for (const fact of Object.keys(COMMITMENTS) as CommittedFact[]) {
    expect(leaf).toContain(`"${COMMITMENTS[fact]}":"${commitmentOf(salt, fact, digests[fact])}"`);
  }
}

async function expectNothingFound(row: PartitionRow): Promise<void> {
  const { facts, leaf, found } = await guess(row);
  expect(found.leaf, row.partitionKey).toEqual([]);
  expect(found.stated).toEqual(GUESSED.slice(0, 3).map((fact) => `${fact} ${facts.value}`));
  await opened(row, facts, leaf);
}

test('ten thousand guesses find no value in a leaf, and each in the digests that it commits to', async () => {
  const bySeries = [...Map.groupBy(rows, ({ sourceId }) => sourceId).values()].map(([row]) => row);
  expect(bySeries.length).toBeGreaterThanOrEqual(3);
  await expectNothingFound(bySeries[0]);
});

test('the same at every leaf of the sample with one row', { tags: ['nightly'], timeout: 900_000 }, async () => {
  expect(rows).toHaveLength(41);
  for (const row of rows) await expectNothingFound(row);
});
