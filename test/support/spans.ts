/**
 * Where the time of tests goes: work of five kinds is measured where the helpers do it, and written down a file of tests.
 * `npm run test:times` adds it up. Spans of one kind that overlap count once; spans of different kinds may overlap, as when
 * rows are loaded by a process.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

export const SPAN_KINDS = ['servers', 'processes', 'commands', 'rows', 'waiting'] as const;
export type SpanKind = (typeof SPAN_KINDS)[number];

interface Open {
  count: number;
  since: number;
  total: number;
}

const spans = Object.fromEntries(SPAN_KINDS.map((kind) => [kind, { count: 0, since: 0, total: 0 }])) as Record<
  SpanKind,
  Open
>;

/** Counts the time until `work` settles. */
export async function spend<T>(kind: SpanKind, work: () => Promise<T>): Promise<T> {
  const span = spans[kind];
  if (span.count++ === 0) span.since = performance.now();
  try {
    return await work();
  } finally {
    if (--span.count === 0) span.total += performance.now() - span.since;
  }
}

/** Writes what this file of tests has spent, in milliseconds by kind, and begins anew. */
export async function writeSpans(directory: string, name: string): Promise<void> {
  const spent = Object.fromEntries(SPAN_KINDS.map((kind) => [kind, Math.round(spans[kind].total)]));
  for (const kind of SPAN_KINDS) spans[kind].total = 0;
  await mkdir(directory, { recursive: true });
  await writeFile(join(directory, `${name.replaceAll('/', '~')}.json`), JSON.stringify(spent));
}
