/**
 * The facts of a day beside the pass that finds them: the projector's rows, aligned rows and klines of a generated day of exchange A,
 * with the facts and without. Each side is a process of its own, whose CPU counts, and reads the day twice: first to warm up.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { ExchangeARowProjector } from '../pipelines/sources/exchange_a/project.ts';
import { generateDay } from '../pipelines/sources/exchange_a/sample.ts';
import { DAY_MS } from '../shared/dates.ts';
import { subject } from './subject.ts';

const FILE = fileURLToPath(import.meta.url);
const DAY = '2024-03-01';
const FROM_MS = Date.parse(DAY);

export const facts = subject({
  name: 'facts',
  compares: 'the projector’s pass over a day of trades with its facts, beside the same without',
  options: { rows: 3_500_000 },
  rounds: 5,
  smallest: '--rows 500',
  async run(lab, { rows }) {
    const side = (which: 'with' | 'without') => async () => {
      const { stdout } = await promisify(execFile)(process.execPath, [FILE, which, String(rows)]);
      return Number(stdout);
    };
    await lab.compare(`CPU of the rows of ${rows.toLocaleString('en-US')} trades`, {
      tidemark: side('with'),
      'without facts': side('without'),
    });
  },
});

/** Ms of CPU in which the projector reads the frames. */
function measured(frames: readonly { readonly raw: Buffer; readonly rows: number }[], which: string): number {
  const projector = new ExchangeARowProjector({ key: DAY, fromMs: FROM_MS, toMs: FROM_MS + DAY_MS });
  const nothing = { add() {} };
  if (which === 'without') Object.assign(projector, { day: { ...nothing, price: nothing, quantity: nothing } });
  const before = process.cpuUsage();
  for (const { raw, rows } of frames) projector.rows(raw, rows);
  projector.aligned({ datasetId: 1, seriesId: 1 });
  projector.klines(1);
  if (which === 'with') projector.facts();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

if (process.argv[1] === FILE) {
  const [, , which, rows] = process.argv;
  const frames = [...generateDay({ day: DAY, rows: Number(rows), seed: 1, firstId: 1, timeUnit: 'us' })].map((raw) => ({
    raw,
    rows: raw.reduce((lines, byte) => lines + (byte === 10 ? 1 : 0), 0),
  }));
  measured(frames, which);
  process.stdout.write(String(measured(frames, which)));
}
