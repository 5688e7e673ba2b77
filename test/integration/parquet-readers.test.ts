/** Readers of Parquet that are quickly there, on exports of every dataset; test/nightly/ has the others. */
import { testReaders } from '../support/parquet-readers.ts';
import { readersPython } from '../support/tools.ts';

testReaders(await readersPython(), ['pyarrow', 'polars', 'duckdb', 'fastparquet']);
