/**
 * The projector's side of a transaction's JSON columns: builds them from its consensus bytes. JSON is compact with
 * sorted keys; amounts have eight decimals. It is written piece by piece: hex and numbers need no escaping, and
 * assembly text has no quotes.
 */
import { writeAsm } from '../script/asm.ts';
import { type ScriptKind, scriptKind } from '../script/kinds.ts';
import { ascii, type TextWriter } from '../text-writer.ts';
import { HASH_BYTES, satsAt, type WireReader } from '../wire/bytes.ts';
import type { TransactionLayout } from '../wire/layout.ts';

export interface ConsensusColumns {
  readonly inputs: Buffer;
  readonly outputs: Buffer;
  readonly values: Buffer;
  readonly scripts: Buffer;
  readonly witnessData: Buffer;
  readonly inputSats: number;
  readonly outputSats: number;
  readonly coinbase: boolean;
}

export function consensusColumns(
  layout: TransactionLayout,
  spent: readonly number[],
  chain: string,
  writer: TextWriter,
): ConsensusColumns {
  const coinbase = layout.isCoinbase;
  const kinds: ScriptKind[] = [];
  let outputSats = 0;
  for (let output = 0; output < layout.outputs; output++) {
    kinds.push(scriptKind(outputScript(layout, output), chain));
    outputSats += satsAt(layout.bytes, layout.amount(output));
  }
  let inputSats = 0;
  for (const sats of spent) inputSats += sats;
  if (coinbase) writeCoinbase(writer, layout);
  else writeInputs(writer, layout, spent);
  const inputs = writer.take();
  writeOutputs(writer, layout, kinds);
  const outputs = writer.take();
  writeValues(writer, layout, spent, { inputSats, outputSats });
  const values = writer.take();
  writeScripts(writer, layout, kinds, coinbase);
  const scripts = writer.take();
  writeWitnesses(writer, layout);
  return { coinbase, inputSats, outputSats, inputs, outputs, values, scripts, witnessData: writer.take() };
}

const outputScript = (layout: TransactionLayout, output: number): Buffer =>
  layout.bytes.subarray(layout.outputScript(output), layout.outputScriptEnd(output));

function writeCoinbase(writer: TextWriter, layout: TransactionLayout): void {
  writer.text(TEXT.coinbase);
  writer.hex(layout.bytes, layout.inputScript(0), layout.inputScriptEnd(0));
  writer.text(TEXT.coinbaseSequence);
  writer.integer(layout.sequence(0));
  writer.text(TEXT.endOfInputs);
}

function writeInputs(writer: TextWriter, layout: TransactionLayout, spent: readonly number[]): void {
  for (let input = 0; input < layout.inputs; input++) {
    writer.text(input === 0 ? TEXT.firstInput : TEXT.nextInput);
    writer.integer(input);
    writer.text(TEXT.prevTxid);
    const at = layout.outpoint(input);
    writer.hexReversed(layout.bytes, at, at + HASH_BYTES);
    writer.text(TEXT.prevVout);
    writer.integer(layout.prevVout(input));
    writer.text(TEXT.prevoutValue);
    writeAmount(writer, spent[input]);
    writer.text(TEXT.sequence);
    writer.integer(layout.sequence(input));
  }
  writer.text(TEXT.endOfInputs);
}

function writeOutputs(writer: TextWriter, layout: TransactionLayout, kinds: readonly ScriptKind[]): void {
  for (let output = 0; output < layout.outputs; output++) {
    writer.text(output === 0 ? TEXT.firstOutput : TEXT.nextOutput);
    writeAddresses(writer, kinds[output]);
    writer.text(TEXT.outputIndex);
    writer.integer(output);
    writer.text(TEXT.scriptType);
    writer.string(kinds[output].type);
    writer.text(TEXT.outputValue);
    writeAmount(writer, satsAt(layout.bytes, layout.amount(output)));
  }
  writer.text(TEXT.endOfOutputs);
}

function writeValues(
  writer: TextWriter,
  layout: TransactionLayout,
  spent: readonly number[],
  { inputSats, outputSats }: { readonly inputSats: number; readonly outputSats: number },
): void {
  writer.text(TEXT.inputSum);
  writeAmount(writer, inputSats);
  writer.text(TEXT.inputValues);
  for (let input = 0; input < spent.length; input++) {
    if (input > 0) writer.text(TEXT.comma);
    writeAmount(writer, spent[input]);
  }
  writer.text(TEXT.outputSum);
  writeAmount(writer, outputSats);
  writer.text(TEXT.outputValues);
  for (let output = 0; output < layout.outputs; output++) {
    if (output > 0) writer.text(TEXT.comma);
    writeAmount(writer, satsAt(layout.bytes, layout.amount(output)));
  }
  writer.text(TEXT.endOfValues);
}

function writeScripts(
  writer: TextWriter,
  layout: TransactionLayout,
  kinds: readonly ScriptKind[],
  coinbase: boolean,
): void {
  const { bytes } = layout;
  writer.text(TEXT.inputScripts);
  for (let input = 0; !coinbase && input < layout.inputs; input++) {
    const [start, end] = [layout.inputScript(input), layout.inputScriptEnd(input)];
    writer.text(input === 0 ? TEXT.firstAsm : TEXT.nextAsm);
    writeAsm(writer, bytes.subarray(start, end), 'input');
    writer.text(TEXT.hex);
    writer.hex(bytes, start, end);
    writer.text(TEXT.scriptOfInput);
    writer.integer(input);
    writer.text(TEXT.endOfObject);
  }
  writer.text(TEXT.outputScripts);
  for (let output = 0; output < layout.outputs; output++) {
    const script = outputScript(layout, output);
    writer.text(output === 0 ? TEXT.firstAddresses : TEXT.nextAddresses);
    writeAddresses(writer, kinds[output]);
    writer.text(TEXT.asm);
    writeAsm(writer, script, 'output');
    writer.text(TEXT.hex);
    writer.hex(script, 0, script.length);
    writer.text(TEXT.scriptOfOutput);
    writer.integer(output);
    writer.text(TEXT.type);
    writer.string(kinds[output].type);
    writer.text(TEXT.endOfScript);
  }
  writer.text(TEXT.endOfScripts);
}

function writeWitnesses(writer: TextWriter, layout: TransactionLayout): void {
  let written = 0;
  for (let input = 0; input < layout.inputs; input++) {
    const reader = layout.witness(input);
    if (!reader) continue;
    writer.text(written++ === 0 ? TEXT.firstInput : TEXT.nextWitness);
    writer.integer(input);
    writer.text(TEXT.stack);
    writeStack(writer, reader);
    writer.text(TEXT.endOfStack);
  }
  writer.text(written === 0 ? TEXT.none : TEXT.endOfList);
}

function writeStack(writer: TextWriter, reader: WireReader): void {
  const items = reader.count(1);
  for (let item = 0; item < items; item++) {
    writer.text(item === 0 ? TEXT.quote : TEXT.nextItem);
    const length = reader.count(1);
    writer.hex(reader.bytes, reader.at, reader.at + length);
    reader.skip(length);
  }
  writer.text(TEXT.quote);
}

function writeAddresses(writer: TextWriter, { address }: ScriptKind): void {
  if (address === undefined) {
    writer.text(TEXT.none);
    return;
  }
  writer.text(TEXT.openList);
  writer.string(address);
  writer.text(TEXT.closeList);
}

const SATS_PER_BTC = 100_000_000;
const DECIMALS = 8;

function writeAmount(writer: TextWriter, sats: number): void {
  const whole = Math.floor(sats / SATS_PER_BTC);
  writer.integer(whole);
  writer.text(TEXT.point);
  writer.integer(sats - whole * SATS_PER_BTC, DECIMALS);
}

const TEXT = {
  none: ascii('[]'),
  comma: ascii(','),
  point: ascii('.'),
  quote: ascii('"'),
  openList: ascii('["'),
  closeList: ascii('"]'),
  endOfObject: ascii('}'),
  endOfList: ascii(']'),
  coinbase: ascii('[{"coinbase_hex":"'),
  coinbaseSequence: ascii('","input_index":0,"sequence":'),
  firstInput: ascii('[{"input_index":'),
  nextInput: ascii('},{"input_index":'),
  prevTxid: ascii(',"prev_txid":"'),
  prevVout: ascii('","prev_vout":'),
  prevoutValue: ascii(',"prevout_value_btc":'),
  sequence: ascii(',"sequence":'),
  endOfInputs: ascii('}]'),
  firstOutput: ascii('[{"addresses":'),
  nextOutput: ascii('},{"addresses":'),
  outputIndex: ascii(',"output_index":'),
  scriptType: ascii(',"script_type":"'),
  outputValue: ascii('","value_btc":'),
  endOfOutputs: ascii('}]'),
  inputSum: ascii('{"input_value_btc_sum":'),
  inputValues: ascii(',"input_values_btc":['),
  outputSum: ascii('],"output_value_btc_sum":'),
  outputValues: ascii(',"output_values_btc":['),
  endOfValues: ascii(']}'),
  inputScripts: ascii('{"input_script_sig":['),
  firstAsm: ascii('{"asm":"'),
  nextAsm: ascii(',{"asm":"'),
  scriptOfInput: ascii('","input_index":'),
  outputScripts: ascii('],"output_script_pub_key":['),
  firstAddresses: ascii('{"addresses":'),
  nextAddresses: ascii(',{"addresses":'),
  asm: ascii(',"asm":"'),
  hex: ascii('","hex":"'),
  scriptOfOutput: ascii('","output_index":'),
  type: ascii(',"type":"'),
  endOfScript: ascii('"}'),
  endOfScripts: ascii(']}'),
  nextWitness: ascii(',{"input_index":'),
  stack: ascii(',"stack":['),
  nextItem: ascii('","'),
  endOfStack: ascii(']}'),
} as const;
