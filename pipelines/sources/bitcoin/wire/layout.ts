/**
 * The positions of a transaction's parts in its consensus serialisation. One layout is reused for every transaction of
 * a block, so none needs an object per part.
 */

import type { WireReader } from './bytes.ts';
import { HASH_BYTES, sha256d, sha256dInto } from './bytes.ts';

const NO_VOUT = 0xffffffff;
const OUTPOINT_BYTES = 36;
const SEQUENCE_BYTES = 4;
const VERSION_BYTES = 4;

/** Shortest input (outpoint, empty script, sequence) and output (amount, empty script). */
const MIN_INPUT_BYTES = 41;
const MIN_OUTPUT_BYTES = 9;

/** Positions per input: outpoint, script, end of the script (where the sequence is), witness count. */
const INPUT_FIELDS = 4;
/** Positions per output: amount, script, end of the script. */
const OUTPUT_FIELDS = 3;

export class TransactionLayout {
  bytes: Buffer = Buffer.alloc(0);
  start = 0;
  end = 0;
  inputs = 0;
  outputs = 0;
  /** Whether the serialisation includes witness data. */
  hasWitness = false;
  #reader: WireReader | undefined;
  #bodyStart = 0;
  #bodyEnd = 0;
  #inputs = new Int32Array(16 * INPUT_FIELDS);
  #outputs = new Int32Array(16 * OUTPUT_FIELDS);
  #stripped = Buffer.alloc(1024);

  /** Reads the next transaction. @throws the reader's fault */
  read(reader: WireReader): this {
    const { bytes } = reader;
    this.#reader = reader;
    this.bytes = bytes;
    this.start = reader.at;
    reader.skip(VERSION_BYTES);
    // In place of the list of inputs, an empty list marks the form with witness data (BIP 144).
    this.hasWitness = bytes[reader.at] === 0;
    if (this.hasWitness) {
      reader.skip(2);
      if (bytes[reader.at - 1] !== 1) throw reader.fault('a transaction has no inputs, or unknown flags');
    }
    this.#bodyStart = reader.at;
    this.#readInputs(reader);
    this.#readOutputs(reader);
    this.#bodyEnd = reader.at;
    if (this.hasWitness) this.#readWitnesses(reader);
    reader.skip(4); // lock time
    this.end = reader.at;
    return this;
  }

  get isCoinbase(): boolean {
    if (this.inputs !== 1 || this.prevVout(0) !== NO_VOUT) return false;
    const at = this.outpoint(0);
    for (let index = at; index < at + HASH_BYTES; index++) if (this.bytes[index] !== 0) return false;
    return true;
  }

  /** Position of the hash that the input spends. */
  outpoint(input: number): number {
    return this.#inputs[input * INPUT_FIELDS];
  }

  prevVout(input: number): number {
    return this.bytes.readUInt32LE(this.outpoint(input) + HASH_BYTES);
  }

  inputScript(input: number): number {
    return this.#inputs[input * INPUT_FIELDS + 1];
  }

  inputScriptEnd(input: number): number {
    return this.#inputs[input * INPUT_FIELDS + 2];
  }

  sequence(input: number): number {
    return this.bytes.readUInt32LE(this.inputScriptEnd(input));
  }

  /** A reader of the input's witness, a count and that many fields; undefined if the transaction has none. */
  witness(input: number): WireReader | undefined {
    if (!this.hasWitness) return undefined;
    const at = this.#inputs[input * INPUT_FIELDS + 3];
    return this.bytes[at] === 0 ? undefined : this.#reader?.from(at);
  }

  /** Position of the amount, which `read` has validated. */
  amount(output: number): number {
    return this.#outputs[output * OUTPUT_FIELDS];
  }

  outputScript(output: number): number {
    return this.#outputs[output * OUTPUT_FIELDS + 1];
  }

  outputScriptEnd(output: number): number {
    return this.#outputs[output * OUTPUT_FIELDS + 2];
  }

  /** Writes the id, in wire order, into `target`. */
  txidInto(target: Buffer, at: number): void {
    sha256dInto(target, at, this.#withoutWitness());
  }

  get txid(): Buffer {
    return sha256d(this.#withoutWitness());
  }

  /** Valid until the next call. */
  #withoutWitness(): Buffer {
    const { bytes, start, end } = this;
    if (!this.hasWitness) return bytes.subarray(start, end);
    const body = this.#bodyEnd - this.#bodyStart;
    const length = VERSION_BYTES + body + 4;
    if (this.#stripped.length < length) this.#stripped = Buffer.allocUnsafeSlow(2 * length);
    bytes.copy(this.#stripped, 0, start, start + VERSION_BYTES);
    bytes.copy(this.#stripped, VERSION_BYTES, this.#bodyStart, this.#bodyEnd);
    bytes.copy(this.#stripped, VERSION_BYTES + body, end - 4, end);
    return this.#stripped.subarray(0, length);
  }

  #readInputs(reader: WireReader): void {
    this.inputs = reader.count(MIN_INPUT_BYTES);
    if (this.inputs === 0) throw reader.fault('a transaction has no inputs');
    if (this.#inputs.length < this.inputs * INPUT_FIELDS) this.#inputs = new Int32Array(2 * this.inputs * INPUT_FIELDS);
    for (let input = 0; input < this.inputs; input++) {
      const slot = input * INPUT_FIELDS;
      this.#inputs[slot] = reader.at;
      reader.skip(OUTPOINT_BYTES);
      const length = reader.count(1);
      this.#inputs[slot + 1] = reader.at;
      reader.skip(length);
      this.#inputs[slot + 2] = reader.at;
      reader.skip(SEQUENCE_BYTES);
    }
  }

  #readOutputs(reader: WireReader): void {
    this.outputs = reader.count(MIN_OUTPUT_BYTES);
    if (this.outputs === 0) throw reader.fault('a transaction has no outputs');
    if (this.#outputs.length < this.outputs * OUTPUT_FIELDS) {
      this.#outputs = new Int32Array(2 * this.outputs * OUTPUT_FIELDS);
    }
    for (let output = 0; output < this.outputs; output++) {
      const slot = output * OUTPUT_FIELDS;
      this.#outputs[slot] = reader.at;
      reader.sats();
      const length = reader.count(1);
      this.#outputs[slot + 1] = reader.at;
      reader.skip(length);
      this.#outputs[slot + 2] = reader.at;
    }
  }

  #readWitnesses(reader: WireReader): void {
    let items = 0;
    for (let input = 0; input < this.inputs; input++) {
      this.#inputs[input * INPUT_FIELDS + 3] = reader.at;
      const count = reader.count(1);
      for (let item = 0; item < count; item++) reader.skipField();
      items += count;
    }
    if (items === 0) throw reader.fault('witness data is announced but empty');
  }
}
