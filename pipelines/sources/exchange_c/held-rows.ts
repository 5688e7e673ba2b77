/** The rows of a day, held as they are in the file and found again in the order of their ids. 18 bytes a row beside its own. */
const FIRST_CAPACITY = 1 << 10;
/** Ids of a day lie close together; where there is room for so many beside each row, they are counted, not compared. */
const MAX_SPREAD = 16;

export class HeldRows {
  readonly #blocks: Buffer[] = [];
  #bytes = 0;
  #rows = 0;
  #ascending = true;
  #least = Number.POSITIVE_INFINITY;
  #most = 0;
  #ids = new Float64Array(FIRST_CAPACITY);
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
  add(id: number, from: number, to: number): void {
    const row = this.#rows;
    if (row === this.#ids.length) this.#grow();
    if (row > 0 && id < this.#ids[row - 1]) this.#ascending = false;
    if (id < this.#least) this.#least = id;
    if (id > this.#most) this.#most = id;
    this.#ids[row] = id;
    this.#block[row] = this.#blocks.length - 1;
    this.#from[row] = from;
    this.#length[row] = to - from;
    this.#rows++;
  }

  id = (row: number): number => this.#ids[row];
  block = (row: number): Buffer => this.#blocks[this.#block[row]];
  from = (row: number): number => this.#from[row];
  to = (row: number): number => this.#from[row] + this.#length[row];

  /** Rows in the order of their ids, equal ids in that of the file. */
  order(): Uint32Array {
    const order = new Uint32Array(this.#rows);
    for (let row = 0; row < order.length; row++) order[row] = row;
    if (this.#ascending) return order;
    const ids = this.#ids;
    const span = this.#most - this.#least + 1;
    if (span > MAX_SPREAD * Math.max(this.#rows, FIRST_CAPACITY)) return order.sort((a, b) => ids[a] - ids[b] || a - b);
    const least = this.#least;
    const places = new Uint32Array(span + 1);
    for (let row = 0; row < order.length; row++) places[ids[row] - least + 1]++;
    for (let place = 1; place <= span; place++) places[place] += places[place - 1];
    for (let row = 0; row < order.length; row++) order[places[ids[row] - least]++] = row;
    return order;
  }

  #grow(): void {
    const capacity = this.#ids.length * 2;
    const grown = <T extends { set(from: T): void }>(to: T, from: T): T => {
      to.set(from);
      return to;
    };
    this.#ids = grown(new Float64Array(capacity), this.#ids);
    this.#block = grown(new Uint32Array(capacity), this.#block);
    this.#from = grown(new Uint32Array(capacity), this.#from);
    this.#length = grown(new Uint16Array(capacity), this.#length);
  }
}
