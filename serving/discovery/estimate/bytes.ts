/** How many bytes rows take in each representation: a few rows of the window are rendered, and the rest is arithmetic. */
import { Params } from '../../db/params.ts';
import type { RowSink } from '../../db/wire.ts';
import type { PlanContext } from '../../read/context.ts';
import type { Session } from '../../read/session.ts';
import { type Slice, slicesOf } from '../../read/slices.ts';
import type { Envelope } from '../../rendering/envelope.ts';
import { BUFFER_BYTES, Out } from '../../rendering/out.ts';
import { REPRESENTATIONS, type Representation } from '../../rendering/representations.ts';
import { readTimestamptzMs } from '../../rendering/timestamps.ts';
import { placesIn } from './places.ts';

/** Places in the window that rows are taken from, and how many at each. */
const PLACES = 4;
const ROWS = 32;
/** Rows rendered, the sample over and over: what is once for many rows weighs as little as it will. */
const RENDERED = 1024;

export const SHORT_NAMES: Readonly<Record<string, string>> = {
  'application/json': 'json',
  'application/x-ndjson': 'ndjson',
  'text/csv': 'csv',
  'application/vnd.apache.arrow.stream': 'arrow',
};

export const shortName = ({ mediaType }: Pick<Representation, 'mediaType'>): string =>
  SHORT_NAMES[mediaType] ?? mediaType;

/** @param context of the request without its filters: they choose rows, and rows are of much the same size. */
export async function estimateBytes(
  session: Session,
  context: PlanContext,
  rows: number,
  envelope: Envelope,
): Promise<Record<string, number>> {
  const sample = rows === 0 ? [] : await readSample(session, context);
  return Object.fromEntries(
    REPRESENTATIONS.map((representation) => {
      const bytes = (times: number) => render(representation, context, envelope, sample, times);
      if (sample.length === 0) return [shortName(representation), bytes(0)];
      const times = Math.ceil(RENDERED / sample.length);
      const [once, twice] = [bytes(times), bytes(2 * times)];
      const perRow = (twice - once) / (times * sample.length);
      const head = once - perRow * times * sample.length;
      return [shortName(representation), Math.max(0, Math.round(head + perRow * rows))];
    }),
  );
}

/** A row as the database sent it. */
interface Kept {
  readonly view: DataView;
  readonly bytes: Buffer;
  readonly at: number;
  readonly length: number;
}

async function readSample(session: Session, { relation, searched }: PlanContext): Promise<Kept[]> {
  const kept: Kept[] = [];
  const sink: RowSink = {
    row(_view, source, at, length) {
      // The connection's buffer goes on to the next message.
      const bytes = Buffer.from(source.subarray(at, at + length));
      kept.push({ view: new DataView(bytes.buffer, bytes.byteOffset, length), bytes, at: 0, length });
    },
  };
  const take = async (slices: readonly Slice[]) => {
    for (const slice of slices) {
      const params = new Params();
      const statement = { text: `${relation.select(slice, params)} limit ${ROWS}`, params: params.list };
      await session.stream(statement, relation.oids, sink);
    }
  };
  await take(placesIn(searched, PLACES, relation.chunkMs));
  // Rows that lie at the beginning alone.
  if (kept.length === 0) await take([...slicesOf(searched, relation.chunkMs)].slice(0, 1));
  return kept;
}

function render(
  representation: Representation,
  { relation }: PlanContext,
  envelope: Envelope,
  sample: readonly Kept[],
  times: number,
): number {
  const hiddenFirst = relation.validity === 'lookahead';
  const spare = Buffer.allocUnsafe(BUFFER_BYTES);
  const out = new Out({ write() {}, buffer: () => spare });
  const writer = representation.open(out, { columns: relation.columns, hiddenFirst }, envelope);
  for (let time = 0; time < times; time++) {
    for (const { view, bytes, at, length } of sample) {
      writer.row(view, bytes, at, length);
      // Its end of validity is told by the next row; any is as long.
      if (hiddenFirst) writer.resolve(readTimestamptzMs(view, at + 4));
    }
  }
  writer.end();
  return out.flushed + out.at;
}
