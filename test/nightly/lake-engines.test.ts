/** ClickHouse and Spark on the tables of a lake; the engines that are quickly there are in test/integration/. */
import { testEngines } from '../support/lake-engines.ts';
import { clickhousePython, sparkTablesPython } from '../support/tools.ts';

testEngines(await clickhousePython(), ['clickhouse, a table']);
testEngines(await sparkTablesPython(), ['spark, a table']);
