/** Engines that read Delta tables and are quickly there. ClickHouse and Spark read them in test/nightly/. */
import { testEngines } from '../support/lake-engines.ts';
import { tablesPython } from '../support/tools.ts';

testEngines(await tablesPython(), ['delta-rs', 'polars, a table', 'duckdb, a table'], true);
