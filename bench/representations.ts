/**
 * The same rows in every representation and content coding, compared with `psql` that writes them with row_to_json in the
 * same round. Each representation has a service of its own, so that the peak of memory is its own. The warm-up round checks
 * the bodies against their trailers.
 */
import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Transform } from 'node:stream';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { REPRESENTATIONS } from '../serving/render/representations.ts';
import type { Stack } from '../shared/stack/stack.ts';
import type { Note } from './harness.ts';
import { median, rounded, timed } from './measure.ts';
import { discard, drained, psqlJson, SAME_FIELDS, startServer, WHOLE_DAY } from './query-subjects.ts';

const DECODERS: Readonly<Record<string, () => Transform>> = { zstd: createZstdDecompress, gzip: createGunzip };
const CODINGS = ['identity', ...Object.keys(DECODERS)];

export interface RepresentationFigures {
  readonly representation: string;
  readonly peak_mib: number;
  readonly codings: readonly {
    readonly coding: string;
    readonly seconds: number;
    /** Time relative to psql row_to_json: the median of the rounds' ratios. */
    readonly ratio: number;
    readonly mib: number;
  }[];
}

export async function measureRepresentations(
  stack: Stack,
  rows: number,
  rounds: number,
  note: Note,
): Promise<RepresentationFigures[]> {
  const figures: RepresentationFigures[] = [];
  for (const { mediaType, rowsOnly } of REPRESENTATIONS) {
    await using server = await startServer(stack);
    const ask = (coding: string) => server.post(WHOLE_DAY, { Accept: mediaType, 'Accept-Encoding': coding });
    const psql: number[] = [];
    const ours = CODINGS.map((coding) => ({ coding, seconds: [] as number[], bytes: 0 }));
    for (let round = 0; round <= rounds; round++) {
      const theirs = await timed(() => drained(psqlJson(stack, SAME_FIELDS, 'ignore')));
      if (round > 0) psql.push(theirs);
      for (const figure of ours) {
        if (round === 0) {
          await check(await ask(figure.coding), figure.coding, rowsOnly ? rows : undefined);
          continue;
        }
        const seconds = await timed(async () => {
          figure.bytes = await discard(await ask(figure.coding));
        });
        figure.seconds.push(seconds);
        note(`${mediaType} ${figure.coding} ${seconds.toFixed(3)} s  psql ${theirs.toFixed(3)} s`);
      }
    }
    figures.push({
      representation: mediaType,
      peak_mib: server.peakMib(),
      codings: ours.map(({ coding, seconds, bytes }) => ({
        coding,
        seconds: rounded(median(seconds), 3),
        ratio: rounded(median(seconds.map((second, round) => second / psql[round])), 3),
        mib: Math.round(bytes / 2 ** 20),
      })),
    });
  }
  return figures;
}

/** Checks a body of rows against its trailers: the number of rows, and the digest without the coding. */
async function check(response: IncomingMessage, coding: string, rows: number | undefined): Promise<void> {
  const hash = createHash('sha256');
  const decoder = DECODERS[coding]?.();
  for await (const chunk of decoder ? response.pipe(decoder) : response) hash.update(chunk as Buffer);
  if (rows === undefined) return;
  const { 'x-svc-row-count': count, 'x-svc-sha256': digest } = response.trailers;
  if (Number(count) !== rows) throw new Error(`${count} rows were served, ${rows} ingested`);
  if (hash.digest('hex') !== digest) throw new Error('the body does not match the digest in its trailer');
}

export const linesOf = (figures: readonly RepresentationFigures[]): string[] =>
  figures.flatMap(({ representation, codings, peak_mib }) =>
    codings.map(({ coding, seconds, ratio, mib }, index) => {
      const name = index === 0 ? representation : '';
      const peak = index === 0 ? `  peak ${peak_mib} MiB` : '';
      return `  ${name.padEnd(36)} ${coding.padEnd(8)} ${seconds.toFixed(3)} s  ratio ${ratio.toFixed(3)}  ${mib} MiB${peak}`;
    }),
  );
