/**
 * The publisher's side of a transaction's JSON columns: builds the expected columns from the node's JSON answer. The
 * projector builds the same columns from consensus bytes (consensus-columns.ts). This side copies hex, assembly and
 * amounts as the node wrote them, so it decodes nothing that the projector decodes.
 */
import { btcText } from '../rpc/answers.ts';
import { isPlainAmount, type JsonCursor, satsAt } from '../rpc/json-cursor.ts';
import { ascii, type TextWriter } from '../text-writer.ts';

/**
 * The five columns as one text: a block's thousands of transactions are in memory together, and each buffer has its
 * overhead.
 */
export class RpcColumns {
  readonly #text: Buffer;
  readonly #ends: readonly [number, number, number, number];

  constructor(text: Buffer, ends: readonly [number, number, number, number]) {
    this.#text = text;
    this.#ends = ends;
  }

  get inputs(): Buffer {
    return this.#text.subarray(0, this.#ends[0]);
  }

  get outputs(): Buffer {
    return this.#text.subarray(this.#ends[0], this.#ends[1]);
  }

  get values(): Buffer {
    return this.#text.subarray(this.#ends[1], this.#ends[2]);
  }

  get scripts(): Buffer {
    return this.#text.subarray(this.#ends[2], this.#ends[3]);
  }

  get witnessData(): Buffer {
    return this.#text.subarray(this.#ends[3]);
  }
}

/** The bytes [start, end) of the node's answer. */
interface Piece {
  start: number;
  end: number;
}

const piece = (): Piece => ({ start: 0, end: 0 });

/** An amount: its satoshis and its position in the answer. */
class RpcAmount {
  sats = 0;
  /** The written form, copied if it is also the stored form. */
  readonly digits = piece();
  #isPlain = false;

  read(cursor: JsonCursor, where: string): void {
    this.sats = satsAt(cursor, where);
    this.#isPlain = isPlainAmount(cursor);
    this.digits.start = cursor.start;
    this.digits.end = cursor.end;
  }

  write(writer: TextWriter, source: Buffer): void {
    if (this.#isPlain) writer.copy(source, this.digits.start, this.digits.end);
    else writer.string(btcText(this.sats));
  }
}

export class RpcInput {
  readonly coinbase = piece();
  isCoinbase = false;
  readonly prevTxid = piece();
  prevVout = 0;
  readonly prevValue = new RpcAmount();
  sequence = 0;
  readonly asm = piece();
  readonly hex = piece();
  /** The input's witness items: a range of the transaction's `witnessItems`. */
  witnessFrom = 0;
  witnessTo = 0;
}

export class RpcOutput {
  readonly value = new RpcAmount();
  readonly asm = piece();
  readonly hex = piece();
  readonly type = piece();
  readonly address = piece();
  hasAddress = false;
}

/** The positions of one transaction's parts in the answer. One instance is reused for all transactions. */
export class RpcTransaction {
  readonly source: Buffer;
  readonly #inputs: RpcInput[] = [];
  readonly #outputs: RpcOutput[] = [];
  inputCount = 0;
  outputCount = 0;
  /** Start and end of each item, in pairs. */
  readonly witnessItems: number[] = [];

  constructor(source: Buffer) {
    this.source = source;
  }

  clear(): void {
    this.inputCount = 0;
    this.outputCount = 0;
    this.witnessItems.length = 0;
  }

  addInput(): RpcInput {
    this.#inputs[this.inputCount] ??= new RpcInput();
    return this.#inputs[this.inputCount++];
  }

  addOutput(): RpcOutput {
    this.#outputs[this.outputCount] ??= new RpcOutput();
    return this.#outputs[this.outputCount++];
  }

  /** The amounts that the inputs spend; empty for a coinbase. */
  spent(): number[] {
    const amounts: number[] = [];
    for (let at = 0; at < this.inputCount; at++) {
      if (!this.#inputs[at].isCoinbase) amounts.push(this.#inputs[at].prevValue.sats);
    }
    return amounts;
  }

  paid(): number {
    let sum = 0;
    for (let at = 0; at < this.outputCount; at++) sum += this.#outputs[at].value.sats;
    return sum;
  }

  isCoinbase(): boolean {
    return this.inputCount > 0 && this.#inputs[0].isCoinbase;
  }

  /** Writes compact JSON with sorted keys. */
  columns(writer: TextWriter, sums: { readonly input: number; readonly output: number }): RpcColumns {
    this.#writeInputs(writer);
    const inputs = writer.length;
    this.#writeOutputs(writer);
    const outputs = writer.length;
    this.#writeValues(writer, sums);
    const values = writer.length;
    this.#writeScripts(writer);
    const scripts = writer.length;
    this.#writeWitness(writer);
    return new RpcColumns(writer.take(), [inputs, outputs, values, scripts]);
  }

  #writeInputs(writer: TextWriter): void {
    const { source } = this;
    writer.letter(OPEN_LIST);
    for (let index = 0; index < this.inputCount; index++) {
      const input = this.#inputs[index];
      if (index > 0) writer.letter(COMMA);
      if (input.isCoinbase) {
        writer.text(KEY.coinbaseHex);
        writer.copy(source, input.coinbase.start, input.coinbase.end);
        writer.text(KEY.thenInputIndex);
        writer.integer(index);
      } else {
        writer.text(KEY.inputIndex);
        writer.integer(index);
        writer.text(KEY.prevTxid);
        writer.copy(source, input.prevTxid.start, input.prevTxid.end);
        writer.text(KEY.prevVout);
        writer.integer(input.prevVout);
        writer.text(KEY.prevoutValue);
        input.prevValue.write(writer, source);
      }
      writer.text(KEY.sequence);
      writer.integer(input.sequence);
      writer.letter(CLOSE_OBJECT);
    }
    writer.letter(CLOSE_LIST);
  }

  #writeOutputs(writer: TextWriter): void {
    writer.letter(OPEN_LIST);
    for (let index = 0; index < this.outputCount; index++) {
      const output = this.#outputs[index];
      if (index > 0) writer.letter(COMMA);
      this.#writeAddresses(writer, output);
      writer.text(KEY.outputIndex);
      writer.integer(index);
      writer.text(KEY.scriptType);
      this.#writeType(writer, output);
      writer.text(KEY.value);
      output.value.write(writer, this.source);
      writer.letter(CLOSE_OBJECT);
    }
    writer.letter(CLOSE_LIST);
  }

  #writeValues(writer: TextWriter, sums: { readonly input: number; readonly output: number }): void {
    writer.text(KEY.inputSum);
    writer.string(btcText(sums.input));
    writer.text(KEY.inputValues);
    let first = true;
    for (let at = 0; at < this.inputCount; at++) {
      if (this.#inputs[at].isCoinbase) continue;
      if (!first) writer.letter(COMMA);
      first = false;
      this.#inputs[at].prevValue.write(writer, this.source);
    }
    writer.text(KEY.outputSum);
    writer.string(btcText(sums.output));
    writer.text(KEY.outputValues);
    for (let at = 0; at < this.outputCount; at++) {
      if (at > 0) writer.letter(COMMA);
      this.#outputs[at].value.write(writer, this.source);
    }
    writer.text(KEY.endOfValues);
  }

  #writeScripts(writer: TextWriter): void {
    const { source } = this;
    writer.text(KEY.inputScripts);
    let first = true;
    for (let index = 0; index < this.inputCount; index++) {
      const { isCoinbase, asm, hex } = this.#inputs[index];
      if (isCoinbase) continue;
      if (!first) writer.letter(COMMA);
      first = false;
      writer.text(KEY.asm);
      writer.copy(source, asm.start, asm.end);
      writer.text(KEY.hex);
      writer.copy(source, hex.start, hex.end);
      writer.text(KEY.thenInputIndex);
      writer.integer(index);
      writer.letter(CLOSE_OBJECT);
    }
    writer.text(KEY.outputScripts);
    for (let index = 0; index < this.outputCount; index++) {
      const output = this.#outputs[index];
      const { asm, hex } = output;
      if (index > 0) writer.letter(COMMA);
      this.#writeAddresses(writer, output);
      writer.text(KEY.thenAsm);
      writer.copy(source, asm.start, asm.end);
      writer.text(KEY.hex);
      writer.copy(source, hex.start, hex.end);
      writer.text(KEY.afterHexOutputIndex);
      writer.integer(index);
      writer.text(KEY.type);
      this.#writeType(writer, output);
      writer.text(KEY.endOfOutputScript);
    }
    writer.text(KEY.endOfScripts);
  }

  #writeWitness(writer: TextWriter): void {
    writer.letter(OPEN_LIST);
    let first = true;
    for (let index = 0; index < this.inputCount; index++) {
      const { witnessFrom, witnessTo } = this.#inputs[index];
      if (witnessFrom === witnessTo) continue;
      if (!first) writer.letter(COMMA);
      first = false;
      writer.text(KEY.inputIndex);
      writer.integer(index);
      writer.text(KEY.stack);
      for (let at = witnessFrom; at < witnessTo; at += 2) {
        if (at > witnessFrom) writer.letter(COMMA);
        writer.letter(QUOTE);
        writer.copy(this.source, this.witnessItems[at], this.witnessItems[at + 1]);
        writer.letter(QUOTE);
      }
      writer.text(KEY.endOfStack);
    }
    writer.letter(CLOSE_LIST);
  }

  #writeAddresses(writer: TextWriter, { hasAddress, address }: RpcOutput): void {
    if (!hasAddress) {
      writer.text(KEY.noAddresses);
      return;
    }
    writer.text(KEY.addresses);
    writer.copy(this.source, address.start, address.end);
    writer.text(KEY.endOfAddresses);
  }

  /** Nodes before version 28 have no own name for an anchor. */
  #writeType(writer: TextWriter, { type, hex }: RpcOutput): void {
    const isAnchor = hex.end - hex.start === ANCHOR.length && ANCHOR.equals(this.source.subarray(hex.start, hex.end));
    if (isAnchor) writer.text(KEY.anchor);
    else writer.copy(this.source, type.start, type.end);
  }
}

const [QUOTE, COMMA, OPEN_LIST, CLOSE_LIST, CLOSE_OBJECT] = [0x22, 0x2c, 0x5b, 0x5d, 0x7d];
const ANCHOR = Buffer.from('51024e73');

const KEY = {
  coinbaseHex: ascii('{"coinbase_hex":"'),
  inputIndex: ascii('{"input_index":'),
  thenInputIndex: ascii('","input_index":'),
  prevTxid: ascii(',"prev_txid":"'),
  prevVout: ascii('","prev_vout":'),
  prevoutValue: ascii(',"prevout_value_btc":'),
  sequence: ascii(',"sequence":'),
  noAddresses: ascii('{"addresses":[]'),
  addresses: ascii('{"addresses":["'),
  endOfAddresses: ascii('"]'),
  outputIndex: ascii(',"output_index":'),
  scriptType: ascii(',"script_type":"'),
  value: ascii('","value_btc":'),
  inputSum: ascii('{"input_value_btc_sum":'),
  inputValues: ascii(',"input_values_btc":['),
  outputSum: ascii('],"output_value_btc_sum":'),
  outputValues: ascii(',"output_values_btc":['),
  endOfValues: ascii(']}'),
  inputScripts: ascii('{"input_script_sig":['),
  outputScripts: ascii('],"output_script_pub_key":['),
  asm: ascii('{"asm":"'),
  thenAsm: ascii(',"asm":"'),
  hex: ascii('","hex":"'),
  afterHexOutputIndex: ascii('","output_index":'),
  type: ascii(',"type":"'),
  endOfOutputScript: ascii('"}'),
  endOfScripts: ascii(']}'),
  stack: ascii(',"stack":['),
  endOfStack: ascii(']}'),
  anchor: ascii('anchor'),
} as const;
