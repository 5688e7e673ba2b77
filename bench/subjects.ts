/** Every benchmark. */
import { bitcoin } from './bitcoin.ts';
import { changes } from './changes.ts';
import { engines } from './engines.ts';
import { exports } from './export.ts';
import { facts } from './facts.ts';
import { frame } from './frame.ts';
import { ingest } from './ingest.ts';
import { instruments } from './instruments.ts';
import { klines } from './klines.ts';
import { lake } from './lake.ts';
import { load } from './load.ts';
import { proofLog } from './proof-log.ts';
import { query } from './query.ts';
import type { Subject } from './subject.ts';

export const SUBJECTS: readonly Subject[] = [
  ingest,
  facts,
  query,
  klines,
  frame,
  engines,
  exports,
  lake,
  instruments,
  bitcoin,
  load,
  changes,
  proofLog,
];
