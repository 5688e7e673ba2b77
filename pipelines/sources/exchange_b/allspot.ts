/**
 * Exchange B's `allspot` documents: a file day of every spot instrument in one CSV, in whatever order. The rows of the
 * instruments that are read are set apart in the spool folder, and then decoded as their own files are, one after another: the
 * log of a dataset takes one partition at a time.
 */
import { closeSync, readSync, writeSync } from 'node:fs';
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { dayOfKey, windowOf } from '../../../shared/registry/keys.ts';
import { openScratch } from '../documents/fetch.ts';
import type { DecodedItem, DecodeOptions, FileDayRequest, FileDaySource } from '../feed-types.ts';
import { dailySource, openTradeFile } from '../trades/feed.ts';
import { LineSplitter, type LineTaker, RowReader, skipByteOrderMark } from '../trades/row-reader.ts';
import { ExchangeBDecoder } from './decode.ts';
import { type ExchangeBOptions, fetchExchangeBFile } from './source.ts';

/** What stands in a document's name in place of an instrument. */
const ALL = 'allspot';
const LF = 10;
const COMMA = 44;
const PIECE_BYTES = 512 * 1024;

interface AllspotOptions extends Omit<ExchangeBOptions, 'instrument'> {
  /** The instrument of a partition that names none. */
  readonly byDefault: string;
}

/** Its requests name the partitions that are wanted of a document. */
export const allspotSource = (options: AllspotOptions): FileDaySource =>
  dailySource(exchangeBSpotTrades, {
    fetch: async ({ period: day }, validators) => {
      const fetching = { ...options, instrument: ALL, maxBytes: options.maxDocumentBytes };
      return await fetchExchangeBFile({ ...fetching, day, ...windowOf(exchangeBSpotTrades, day) }, validators);
    },
    open: async (file, request) => {
      const { name: document, contentMd5: content_md5 } = file;
      const { byDefault, spoolDir } = options;
      const decoder = (decoding: DecodeOptions) =>
        new AllspotDecoder({
          document,
          wanted: wantedOf(request, byDefault),
          openScratch: () => openScratch(spoolDir),
          ...decoding,
        });
      return await openTradeFile({ file, request, archive: 'zip', facts: { content_md5 }, decoder }, options);
    },
  });

interface Wanted {
  readonly dataset: DatasetDefinition;
  readonly symbol: string;
  /** The file day. */
  readonly day: string;
}

const wantedOf = ({ partitions }: FileDayRequest, byDefault: string): Wanted[] =>
  partitions.map(({ dataset = exchangeBSpotTrades as DatasetDefinition, key }) => ({
    dataset,
    symbol: dataset.instrument ?? byDefault,
    day: dayOfKey(key),
  }));

interface AllspotDecodeOptions extends DecodeOptions {
  readonly document: string;
  readonly wanted: readonly Wanted[];
  /** Opens an empty file that nobody else sees. */
  readonly openScratch: () => number;
}

/** The rows of one instrument, with the document's header. */
interface Apart {
  readonly wanted: Wanted;
  file: number | undefined;
}

export class AllspotDecoder implements LineTaker, Disposable {
  readonly reader: RowReader;
  readonly #options: AllspotDecodeOptions;
  readonly #splitter = new LineSplitter(this);
  readonly #apart: ReadonlyMap<string, Apart>;
  #header: Buffer | undefined;
  /** Whose rows came last, which the next are most often of as well. */
  #last: { readonly name: Buffer; readonly apart: Apart | undefined } = { name: Buffer.of(LF), apart: undefined };

  constructor(options: AllspotDecodeOptions) {
    this.#options = options;
    this.reader = new RowReader({ document: options.document, columns: [] });
    this.#apart = new Map(options.wanted.map((wanted) => [wanted.symbol, { wanted, file: undefined }]));
  }

  push(chunk: Buffer): DecodedItem[] {
    this.#splitter.push(chunk);
    return [];
  }

  *finish(): Generator<DecodedItem> {
    this.#splitter.finish();
    for (const apart of this.#apart.values()) if (apart.file !== undefined) yield* this.#decoded(apart);
  }

  lines(buffer: Buffer, from: number, to: number): void {
    let start = from;
    if (this.#header === undefined) {
      const begin = skipByteOrderMark(buffer, from);
      start = buffer.indexOf(LF, begin) + 1;
      this.#header = Buffer.from(buffer.subarray(begin, start));
    }
    // Runs of rows of one instrument are written at once.
    for (let run = start; run < to; ) {
      const apart = this.#of(buffer, run);
      let end = buffer.indexOf(LF, run) + 1;
      while (end < to && this.#isLast(buffer, end)) end = buffer.indexOf(LF, end) + 1;
      if (apart) this.#write(apart, buffer.subarray(run, end));
      run = end;
    }
  }

  #isLast(buffer: Buffer, at: number): boolean {
    const { name } = this.#last;
    return buffer.compare(name, 0, name.length, at, at + name.length) === 0;
  }

  /** @returns undefined for an instrument that is not read. */
  #of(buffer: Buffer, at: number): Apart | undefined {
    if (this.#isLast(buffer, at)) return this.#last.apart;
    const lf = buffer.indexOf(LF, at);
    const comma = buffer.indexOf(COMMA, at);
    const end = comma < 0 || comma > lf ? lf : comma;
    const apart = this.#apart.get(buffer.toString('latin1', at, end));
    this.#last = { name: Buffer.from(buffer.subarray(at, end + 1)), apart };
    return apart;
  }

  #write(apart: Apart, rows: Buffer): void {
    if (apart.file === undefined) {
      apart.file = this.#options.openScratch();
      this.#append(apart.file, this.#header!);
    }
    this.#append(apart.file, rows);
  }

  #append(file: number, bytes: Buffer): void {
    try {
      for (let done = 0; done < bytes.length; ) done += writeSync(file, bytes, done);
    } catch (cause) {
      throw new TidemarkError('DISK_UNUSABLE', 'The spool folder does not take the rows of an allspot document', {
        cause,
      });
    }
  }

  *#decoded({ wanted, file }: Apart): Generator<DecodedItem> {
    const { dataset, symbol, day } = wanted;
    const decoder = new ExchangeBDecoder({
      document: `${this.#options.document} (rows of ${symbol})`,
      instrument: symbol,
      window: { key: day, ...windowOf(exchangeBSpotTrades, day) },
      frameRawBytes: this.#options.frameRawBytes,
      anyIds: this.#options.anyIds,
    });
    const named = (item: DecodedItem): DecodedItem => ({ ...item, dataset });
    for (let at = 0; ; ) {
      const piece = Buffer.allocUnsafeSlow(PIECE_BYTES);
      const read = readSync(file!, piece, 0, piece.length, at);
      if (read === 0) break;
      at += read;
      yield* decoder.push(piece.subarray(0, read)).map(named);
    }
    yield* decoder.finish().map(named);
  }

  [Symbol.dispose](): void {
    for (const apart of this.#apart.values()) {
      if (apart.file !== undefined) closeSync(apart.file);
      apart.file = undefined;
    }
  }
}
