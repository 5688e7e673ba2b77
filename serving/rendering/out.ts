/** The growing end of a body: one buffer being filled, handed on when it is nearly full. */

/** A full buffer holds at least 64 KiB: smaller writes cost more in system calls than in rendering. */
export const BUFFER_BYTES = 256 * 1024;
/** Writers may store this much past the end of what they wrote. */
const SLACK_BYTES = 64;

export interface Destination {
  /** Takes the bytes; the buffer comes back through `recycle`, or not at all. */
  write(bytes: Buffer): void;
  /** A buffer to go on with, of at least BUFFER_BYTES. */
  buffer(): Buffer;
}

export class Out {
  bytes: Buffer;
  view: DataView;
  at = 0;
  /** Bytes handed on so far. */
  flushed = 0;
  readonly #destination: Destination;

  constructor(destination: Destination) {
    this.#destination = destination;
    this.bytes = destination.buffer();
    this.view = viewOf(this.bytes);
  }

  /** Makes sure that `bytes` more can be written, with slack. What is in the buffer may be handed on. */
  reserve(bytes: number): void {
    if (this.at + bytes + SLACK_BYTES <= this.bytes.length) return;
    this.flush();
    if (bytes + SLACK_BYTES > this.bytes.length) {
      // A single row wider than the buffer: a buffer for it alone.
      this.bytes = Buffer.allocUnsafeSlow(bytes + SLACK_BYTES);
      this.view = viewOf(this.bytes);
    }
  }

  flush(): void {
    if (this.at === 0) return;
    this.flushed += this.at;
    this.#destination.write(this.bytes.subarray(0, this.at));
    this.bytes = this.#destination.buffer();
    this.view = viewOf(this.bytes);
    this.at = 0;
  }

  text(text: string): void {
    this.reserve(text.length * 3);
    this.at += this.bytes.write(text, this.at);
  }

  /** Bytes made elsewhere, over as many buffers as they take. */
  copy(source: Uint8Array): void {
    let from = 0;
    while (from < source.length) {
      if (this.at + SLACK_BYTES >= this.bytes.length) this.flush();
      const part = source.subarray(from, from + this.bytes.length - SLACK_BYTES - this.at);
      this.bytes.set(part, this.at);
      this.at += part.length;
      from += part.length;
    }
  }
}

const viewOf = (bytes: Buffer) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
