/** Scripts as text in the node's own notation. */
import { ascii, type TextWriter } from '../text-writer.ts';

export const OP = {
  PUSHDATA1: 0x4c,
  PUSHDATA2: 0x4d,
  PUSHDATA4: 0x4e,
  ONE: 0x51,
  SIXTEEN: 0x60,
  RETURN: 0x6a,
  DUP: 0x76,
  EQUAL: 0x87,
  EQUALVERIFY: 0x88,
  HASH160: 0xa9,
  CHECKSIG: 0xac,
  CHECKMULTISIG: 0xae,
} as const;

/** The names of opcodes from 0x4f on, in order. */
const NAMED = `-1 OP_RESERVED 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
  OP_NOP OP_VER OP_IF OP_NOTIF OP_VERIF OP_VERNOTIF OP_ELSE OP_ENDIF OP_VERIFY OP_RETURN
  OP_TOALTSTACK OP_FROMALTSTACK OP_2DROP OP_2DUP OP_3DUP OP_2OVER OP_2ROT OP_2SWAP OP_IFDUP OP_DEPTH OP_DROP OP_DUP
  OP_NIP OP_OVER OP_PICK OP_ROLL OP_ROT OP_SWAP OP_TUCK
  OP_CAT OP_SUBSTR OP_LEFT OP_RIGHT OP_SIZE
  OP_INVERT OP_AND OP_OR OP_XOR OP_EQUAL OP_EQUALVERIFY OP_RESERVED1 OP_RESERVED2
  OP_1ADD OP_1SUB OP_2MUL OP_2DIV OP_NEGATE OP_ABS OP_NOT OP_0NOTEQUAL OP_ADD OP_SUB OP_MUL OP_DIV OP_MOD OP_LSHIFT
  OP_RSHIFT OP_BOOLAND OP_BOOLOR OP_NUMEQUAL OP_NUMEQUALVERIFY OP_NUMNOTEQUAL OP_LESSTHAN OP_GREATERTHAN
  OP_LESSTHANOREQUAL OP_GREATERTHANOREQUAL OP_MIN OP_MAX OP_WITHIN
  OP_RIPEMD160 OP_SHA1 OP_SHA256 OP_HASH160 OP_HASH256 OP_CODESEPARATOR OP_CHECKSIG OP_CHECKSIGVERIFY
  OP_CHECKMULTISIG OP_CHECKMULTISIGVERIFY
  OP_NOP1 OP_CHECKLOCKTIMEVERIFY OP_CHECKSEQUENCEVERIFY OP_NOP4 OP_NOP5 OP_NOP6 OP_NOP7 OP_NOP8 OP_NOP9 OP_NOP10
  OP_CHECKSIGADD`.split(/\s+/);
const FIRST_NAMED = 0x4f;

export function opcodeName(opcode: number): string {
  if (opcode === 0xff) return 'OP_INVALIDOPCODE';
  return NAMED[opcode - FIRST_NAMED] ?? 'OP_UNKNOWN';
}

export interface Operation {
  readonly opcode: number;
  /** Start of the pushed data; equals `end` if the opcode pushes none. */
  readonly dataAt: number;
  /** Start of the next operation. */
  readonly end: number;
}

/** The operation at `at`, or undefined if the script ends inside it. */
export function operationAt(script: Buffer, at: number): Operation | undefined {
  const opcode = script[at];
  let start = at + 1;
  if (opcode > OP.PUSHDATA4) return { opcode, dataAt: start, end: start };
  let length = opcode;
  const width = opcode < OP.PUSHDATA1 ? 0 : opcode === OP.PUSHDATA1 ? 1 : opcode === OP.PUSHDATA2 ? 2 : 4;
  if (width > 0) {
    if (start + width > script.length) return undefined;
    length = script.readUIntLE(start, width);
    start += width;
  }
  const end = start + length;
  return end > script.length ? undefined : { opcode, dataAt: start, end };
}

/** Longer scripts can never run, so nothing in them is a signature. */
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
 * Writes a script. Pushes of up to four bytes become numbers, longer ones hex. In an input's script, a push in the form
 * of a signature gets the name of its last byte. `[error]` marks a script that ends inside a push.
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

/** A number of at most four bytes as scripts encode it: little-endian, the top bit of the last byte is the sign. */
export function scriptNumber(script: Buffer, start: number, end: number): number {
  if (start === end) return 0;
  const magnitude = script.readUIntLE(start, end - start);
  const sign = 2 ** (8 * (end - start) - 1);
  // -0 becomes 0
  return magnitude >= sign ? 0 - (magnitude - sign) : magnitude;
}

/** Whether it is strict DER of two integers followed by a known signature hash type (BIP 66). */
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

/** `at`: position of the integer's tag. */
function isPositiveInteger(data: Buffer, at: number, length: number): boolean {
  if (data[at] !== 0x02 || length === 0) return false;
  if ((data[at + 2] & 0x80) !== 0) return false;
  return !(length > 1 && data[at + 2] === 0 && (data[at + 3] & 0x80) === 0);
}
