/** The answer to `getrawmempool` with all it says of each entry, read in one pass. */
import { TidemarkError } from '../../../shared/errors.ts';
import { unfit } from './rpc/answers.ts';
import { enterObject, flagAt, integerAt, satsAt } from './rpc/cursor-values.ts';
import { type JsonCursor, JsonKeys } from './rpc/json-cursor.ts';

export interface MempoolEntry {
  readonly txid: string;
  readonly feeSats: number;
  readonly vsize: number;
  /** Epoch seconds. */
  readonly firstSeen: number;
  readonly replaceable: boolean;
}

export interface MempoolAnswer {
  /** In order of txid. */
  readonly entries: readonly MempoolEntry[];
  /** As the node wrote them. */
  readonly bytes: Buffer;
}

const ENTRY = new JsonKeys(['fees', 'vsize', 'time', 'bip125-replaceable']);
const FEES = new JsonKeys(['base']);
const TXID = /^[0-9a-f]{64}$/;

export function readMempoolAnswer(cursor: JsonCursor): MempoolAnswer {
  const entries: MempoolEntry[] = [];
  enterObject(cursor, 'getrawmempool');
  const from = cursor.at - 1;
  while (cursor.member()) {
    const txid = cursor.bytes.toString('latin1', cursor.start, cursor.end);
    if (!TXID.test(txid)) throw unfit('getrawmempool', 'a list by transaction id', txid);
    entries.push(entryOf(cursor, txid));
  }
  entries.sort((a, b) => (a.txid < b.txid ? -1 : a.txid > b.txid ? 1 : 0));
  return { entries, bytes: cursor.bytes.subarray(from, cursor.at) };
}

function entryOf(cursor: JsonCursor, txid: string): MempoolEntry {
  let [feeSats, vsize, firstSeen, replaceable]: [number?, number?, number?, boolean?] = [];
  enterObject(cursor, 'getrawmempool entry');
  while (cursor.member()) {
    switch (ENTRY.placeOf(cursor.bytes, cursor.start, cursor.end)) {
      case 0:
        feeSats = baseFee(cursor);
        break;
      case 1:
        vsize = integerAt(cursor, 'vsize', 1);
        break;
      case 2:
        firstSeen = integerAt(cursor, 'time');
        break;
      case 3:
        replaceable = flagAt(cursor, 'bip125-replaceable');
        break;
      default:
        cursor.skip();
    }
  }
  if (feeSats === undefined) throw unfit('fees.base', 'an amount', undefined);
  if (vsize === undefined) throw unfit('vsize', 'a whole number', undefined);
  if (firstSeen === undefined) throw unfit('time', 'a whole number', undefined);
  if (replaceable === undefined) {
    throw new TidemarkError(
      'NODE_ANSWER_INVALID',
      'The node does not say which waiting transactions may be replaced (bip125-replaceable): from version 32 on it does only when started with -deprecatedrpc=bip125',
      { details: { field: 'bip125-replaceable' } },
    );
  }
  return { txid, feeSats, vsize, firstSeen, replaceable };
}

function baseFee(cursor: JsonCursor): number | undefined {
  let fee: number | undefined;
  enterObject(cursor, 'fees');
  while (cursor.member()) {
    if (FEES.placeOf(cursor.bytes, cursor.start, cursor.end) === 0) fee = satsAt(cursor, 'fees.base');
    else cursor.skip();
  }
  return fee;
}
