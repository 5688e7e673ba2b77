/** Readers of Parquet and Arrow that are quickly there, on exports of every dataset and saved streams; test/nightly/ has the others. */
import { spawnSync } from 'node:child_process';
import { mkdtempDisposable, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect } from 'vitest';
import { chooseRepresentation } from '../../serving/render/representations.ts';
import { ROOT } from '../support/command.ts';
import { bodyOf, generatedRows, lastMessageAt } from '../support/generated-rows.ts';
import { givenTool } from '../support/given.ts';
import { testReaders } from '../support/parquet-readers.ts';
import { readersPython } from '../support/tools.ts';

const PYTHON = await readersPython();

testReaders(PYTHON, ['pyarrow', 'polars', 'duckdb', 'fastparquet']);

givenTool(PYTHON).test(
  'docs/python.md: its check of a saved stream tells a cut or altered one from a whole one',
  async () => {
    const page = await readFile(join(ROOT, 'docs/python.md'), 'utf8');
    const [, program] = /## A saved stream[\s\S]+?```python\n([\s\S]+?)```/.exec(page)!;
    const arrow = chooseRepresentation('application/vnd.apache.arrow.stream');
    const [sample] = fc.sample(generatedRows, { numRuns: 1, seed: 3 });
    const rows = Array.from({ length: 500 }, (_, row) => sample.rows[row % sample.rows.length]);
    const body = bodyOf(arrow, { ...sample, rows });
    const altered = Buffer.from(body);
    const inLastRows = lastMessageAt(body) - 9;
    altered[inLastRows] ^= 1;

    await using dir = await mkdtempDisposable(join(tmpdir(), 'tidemark-stream-'));
    const run = async (bytes: Buffer, more = '') => {
      await writeFile(join(dir.path, 'trades.arrows'), bytes);
      const { status, stderr } = spawnSync(PYTHON.path, ['-c', program + more], { cwd: dir.path, encoding: 'utf8' });
      return [status, /^\w[\w.]*(?=:|$)/.exec(stderr.trimEnd().split('\n').at(-1)!)?.[0]];
    };
    const polars = 'import polars as pl\nassert pl.read_ipc_stream(body).height == table.num_rows == 500\n';
    expect(await run(body, polars)).toEqual([0, undefined]);
    expect(await run(body.subarray(0, lastMessageAt(body)))).toEqual([1, 'StopIteration']);
    expect(await run(altered)).toEqual([1, 'AssertionError']);
  },
);
