/** The rows of a day, held as they are in the file and found again in the order of their ids. 22 bytes a row beside its own. */
const FIRST_CAPACITY = 1 << 16;
const DIGIT_BITS = 16;
const DIGITS = 1 << DIGIT_BITS;

export class HeldRows {
  readonly #blocks: Buffer[] = [];
  #bytes = 0;
  #rows = 0;
  #ascending = true;
  #ids = new Float64Array(FIRST_CAPACITY);
  /** Milliseconds since the start of the day. */
  #ms = new Uint32Array(FIRST_CAPACITY);
  #block = new Uint32Array(FIRST_CAPACITY);
  #from = new Uint32Array(FIRST_CAPACITY);
  #length = new Uint16Array(FIRST_CAPACITY);

  get rows(): number {
    return this.#rows;
  }

  /** Bytes of the rows held. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Copies lines; rows added from now on are in the copy. */
  openBlock(lines: Buffer): Buffer {
    const block = Buffer.allocUnsafeSlow(lines.length);
    lines.copy(block);
    this.#blocks.push(block);
    this.#bytes += block.length;
    return block;
  }

  /** The row at [from, to) of the open block. */
  add(id: number, ms: number, from: number, to: number): void {
    const row = this.#rows;
    if (row === this.#ids.length) this.#grow();
    if (row > 0 && id < this.#ids[row - 1]) this.#ascending = false;
    this.#ids[row] = id;
    this.#ms[row] = ms;
    this.#block[row] = this.#blocks.length - 1;
    this.#from[row] = from;
    this.#length[row] = to - from;
    this.#rows++;
  }

  id = (row: number): number => this.#ids[row];
  ms = (row: number): number => this.#ms[row];
  block = (row: number): Buffer => this.#blocks[this.#block[row]];
  from = (row: number): number => this.#from[row];
  to = (row: number): number => this.#from[row] + this.#length[row];

  /**
   * Rows in the order of their ids, equal ids in that of the file; undefined where that is the file's. A radix sort:
   * ids of a day lie close together, so two or three rounds over typed arrays do it.
   */
  order(): Uint32Array | undefined {
    if (this.#ascending) return undefined;
    const ids = this.#ids.subarray(0, this.#rows);
    let least = Number.POSITIVE_INFINITY;
    let most = 0;
    for (const id of ids) {
      if (id < least) least = id;
      if (id > most) most = id;
    }
    let order = Uint32Array.from(ids, (_, row) => row);
    let next = new Uint32Array(this.#rows);
    for (let weight = 1; weight <= most - least; weight *= DIGITS) {
      const places = new Uint32Array(DIGITS + 1);
      const digit = (row: number) => Math.floor((ids[row] - least) / weight) % DIGITS;
      for (let row = 0; row < ids.length; row++) places[digit(row) + 1]++;
      for (let value = 0; value < DIGITS; value++) places[value + 1] += places[value];
      for (const row of order) next[places[digit(row)]++] = row;
      [order, next] = [next, order];
    }
    return order;
  }

  #grow(): void {
    const capacity = this.#ids.length * 2;
    const grown = <T extends { set(from: T): void }>(to: T, from: T): T => {
      to.set(from);
      return to;
    };
    this.#ids = grown(new Float64Array(capacity), this.#ids);
    this.#ms = grown(new Uint32Array(capacity), this.#ms);
    this.#block = grown(new Uint32Array(capacity), this.#block);
    this.#from = grown(new Uint32Array(capacity), this.#from);
    this.#length = grown(new Uint16Array(capacity), this.#length);
  }
}
