/** Scripts as text, in the node's own notation. */
import { ascii, type TextWriter } from '../rows/text-writer.ts';
import { OP, opcodeName, operationAt } from './opcodes.ts';

/** Longer ones can never be run, so nothing in them is a signature. */
const MAX_SCRIPT_BYTES = 10_000;

const SPACE = 0x20;
const ERROR = ascii('[error]');

const SIGHASH: Readonly<Record<number, string>> = {
  1: '[ALL]',
  2: '[NONE]',
  3: '[SINGLE]',
  129: '[ALL|ANYONECANPAY]',
  130: '[NONE|ANYONECANPAY]',
  131: '[SINGLE|ANYONECANPAY]',
};

/**
 * Pushes of up to four bytes are numbers, longer ones hex; in an input's script, what has the form of a signature has
 * its last byte named. `[error]` stands where the script ends inside a push.
 */
export function writeAsm(writer: TextWriter, script: Buffer, role: 'input' | 'output'): void {
  const signatures = role === 'input' && script[0] !== OP.RETURN && script.length <= MAX_SCRIPT_BYTES;
  for (let at = 0; at < script.length; ) {
    if (at > 0) writer.letter(SPACE);
    const operation = operationAt(script, at);
    if (!operation) {
      writer.text(ERROR);
      break;
    }
    const { opcode, dataAt, end } = operation;
    if (opcode > OP.PUSHDATA4) writer.string(opcodeName(opcode));
    else if (end - dataAt <= 4) writer.string(String(scriptNumber(script, dataAt, end)));
    else if (signatures && isSignature(script.subarray(dataAt, end))) {
      writer.hex(script, dataAt, end - 1);
      writer.string(SIGHASH[script[end - 1]]);
    } else writer.hex(script, dataAt, end);
    at = end;
  }
}

/** A number as scripts hold it: little-endian, the highest bit of the last byte its sign. Of at most four bytes. */
export function scriptNumber(script: Buffer, start: number, end: number): number {
  if (start === end) return 0;
  const magnitude = script.readUIntLE(start, end - start);
  const sign = 2 ** (8 * (end - start) - 1);
  // -0 is written 0
  return magnitude >= sign ? 0 - (magnitude - sign) : magnitude;
}

/** Strict DER of two integers and a known signature hash type (BIP 66). */
function isSignature(data: Buffer): boolean {
  const { length } = data;
  if (length < 9 || length > 73) return false;
  if (data[0] !== 0x30 || data[1] !== length - 3) return false;
  const rLength = data[3];
  if (5 + rLength >= length) return false;
  const sLength = data[5 + rLength];
  if (rLength + sLength + 7 !== length) return false;
  return (
    isPositiveInteger(data, 2, rLength) &&
    isPositiveInteger(data, 4 + rLength, sLength) &&
    SIGHASH[data[length - 1]] !== undefined
  );
}

/** `at`: where the integer's tag is. */
function isPositiveInteger(data: Buffer, at: number, length: number): boolean {
  if (data[at] !== 0x02 || length === 0) return false;
  if ((data[at + 2] & 0x80) !== 0) return false;
  return !(length > 1 && data[at + 2] === 0 && (data[at + 3] & 0x80) === 0);
}
