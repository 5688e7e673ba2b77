/** ClickHouse on exports of every dataset; the readers that are quickly there are in test/integration/. */
import { testReaders } from '../support/parquet-readers.ts';
import { clickhousePython } from '../support/tools.ts';

testReaders(await clickhousePython(), ['clickhouse']);
