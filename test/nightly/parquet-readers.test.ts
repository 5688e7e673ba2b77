/** ClickHouse and Spark on exports of every dataset; the readers that are quickly there are in test/integration/. */
import { testReaders } from '../support/parquet-readers.ts';
import { clickhousePython, sparkPython } from '../support/tools.ts';

testReaders(await clickhousePython(), ['clickhouse']);
testReaders(await sparkPython(), ['spark']);
