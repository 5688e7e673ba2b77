/** Classifies output scripts and finds the address they pay to, with the node's own class names. */
import { hash } from 'node:crypto';
import { sha256 } from '../wire/bytes.ts';
import { addressFormat, base58Address, witnessAddress } from './address.ts';
import { OP, type Operation, operationAt, scriptNumber } from './asm.ts';

export type ScriptType =
  | 'nonstandard'
  | 'anchor'
  | 'pubkey'
  | 'pubkeyhash'
  | 'scripthash'
  | 'multisig'
  | 'nulldata'
  | 'witness_v0_keyhash'
  | 'witness_v0_scripthash'
  | 'witness_v1_taproot'
  | 'witness_unknown';

export interface ScriptKind {
  readonly type: ScriptType;
  /** A bare public key or multisig commits to keys and has none. */
  readonly address?: string;
}

const MAX_KEYS = 20;
/** The program of an anchor output, spendable by anyone. */
const ANCHOR = Buffer.from('4e73', 'hex');

export function scriptKind(script: Buffer, chain: string): ScriptKind {
  const format = addressFormat(chain);
  const { length } = script;
  if (length === 23 && script[0] === OP.HASH160 && script[1] === 20 && script[22] === OP.EQUAL) {
    return { type: 'scripthash', address: base58Address(format.scriptHash, script.subarray(2, 22)) };
  }
  const witness = witnessProgram(script);
  if (witness) {
    const type = witnessType(witness);
    if (type === 'nonstandard') return { type };
    return { type, address: witnessAddress(format.prefix, witness.version, witness.program) };
  }
  if (script[0] === OP.RETURN && isPushOnly(script, 1)) return { type: 'nulldata' };
  if ((length === 35 || length === 67) && script[0] === length - 2 && script[length - 1] === OP.CHECKSIG) {
    if (isKey(script.subarray(1, length - 1))) return { type: 'pubkey' };
  }
  if (
    length === 25 &&
    script[0] === OP.DUP &&
    script[1] === OP.HASH160 &&
    script[2] === 20 &&
    script[23] === OP.EQUALVERIFY &&
    script[24] === OP.CHECKSIG
  ) {
    return { type: 'pubkeyhash', address: base58Address(format.keyHash, script.subarray(3, 23)) };
  }
  return { type: isMultisig(script) ? 'multisig' : 'nonstandard' };
}

interface WitnessProgram {
  readonly version: number;
  readonly program: Buffer;
}

function witnessProgram(script: Buffer): WitnessProgram | undefined {
  if (script.length < 4 || script.length > 42 || script[1] !== script.length - 2) return undefined;
  if (script[0] !== 0 && (script[0] < OP.ONE || script[0] > OP.SIXTEEN)) return undefined;
  return { version: script[0] === 0 ? 0 : script[0] - OP.ONE + 1, program: script.subarray(2) };
}

function witnessType({ version, program }: WitnessProgram): ScriptType {
  if (version === 0) {
    if (program.length === 20) return 'witness_v0_keyhash';
    return program.length === 32 ? 'witness_v0_scripthash' : 'nonstandard';
  }
  if (version === 1 && program.length === 32) return 'witness_v1_taproot';
  return version === 1 && program.equals(ANCHOR) ? 'anchor' : 'witness_unknown';
}

function isPushOnly(script: Buffer, from: number): boolean {
  for (let at = from; at < script.length; ) {
    const operation = operationAt(script, at);
    if (!operation || operation.opcode > OP.SIXTEEN) return false;
    at = operation.end;
  }
  return true;
}

/** Whether the length matches the one that the first byte requires. */
function isKey(bytes: Buffer): boolean {
  const kind = bytes[0];
  if (kind === 2 || kind === 3) return bytes.length === 33;
  return (kind === 4 || kind === 6 || kind === 7) && bytes.length === 65;
}

function isMultisig(script: Buffer): boolean {
  if (script.length === 0 || script[script.length - 1] !== OP.CHECKMULTISIG) return false;
  const needed = operationAt(script, 0);
  if (!needed) return false;
  const required = smallCount(script, needed, 1);
  if (required === undefined) return false;
  let keys = 0;
  let operation = operationAt(script, needed.end);
  while (operation && isKey(script.subarray(operation.dataAt, operation.end))) {
    keys++;
    operation = operationAt(script, operation.end);
  }
  if (!operation || smallCount(script, operation, required) !== keys) return false;
  return operation.end + 1 === script.length;
}

/** A count of keys: 1 to 16 as opcodes, up to 20 as the shortest push. */
function smallCount(script: Buffer, { opcode, dataAt, end }: Operation, least: number): number | undefined {
  let count: number;
  if (opcode >= OP.ONE && opcode <= OP.SIXTEEN) count = opcode - OP.ONE + 1;
  else if (opcode === 1 && script[dataAt] > 16) count = scriptNumber(script, dataAt, end);
  else return undefined;
  return count >= least && count <= MAX_KEYS ? count : undefined;
}

/** RIPEMD-160 of SHA-256, the hash of keys and scripts in addresses. */
export const hash160 = (bytes: Buffer): Buffer => hash('ripemd160', sha256(bytes), 'buffer');
