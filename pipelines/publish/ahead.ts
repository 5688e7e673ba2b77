/** A source whose next documents are on their way while the one at hand is published: so many at once, and no more. */
import type { DocumentRequest, OpenedDocument, Source } from '../sources/types.ts';

export class FetchAhead implements Source, AsyncDisposable {
  readonly #source: Source;
  readonly #depth: number;
  readonly #opening = new Map<DocumentRequest, Promise<OpenedDocument>>();

  /** `depth` documents beside the one at hand; 0: none. */
  constructor(source: Source, depth: number) {
    this.#source = source;
    this.#depth = depth;
  }

  get datasets(): Source['datasets'] {
    return this.#source.datasets;
  }

  publishedSha256(request: DocumentRequest): Promise<string | undefined> {
    return this.#source.publishedSha256(request);
  }

  /** What will be asked for next, in that order. A fault surfaces when its turn comes, and only then. */
  prepare(requests: readonly DocumentRequest[]): void {
    for (const request of requests.slice(0, this.#depth)) {
      if (this.#opening.size >= this.#depth || this.#opening.has(request)) continue;
      const opening = this.#source.open(request);
      opening.catch(() => {});
      this.#opening.set(request, opening);
    }
  }

  async open(request: DocumentRequest): Promise<OpenedDocument> {
    const opening = this.#opening.get(request);
    this.#opening.delete(request);
    return await (opening ?? this.#source.open(request));
  }

  /** What was fetched and is not wanted any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    const left = [...this.#opening.values()];
    this.#opening.clear();
    await Promise.allSettled(left.map(async (opening) => await (await opening)[Symbol.asyncDispose]()));
  }
}
