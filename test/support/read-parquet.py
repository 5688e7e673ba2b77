"""Reads Parquet files with each of the named readers, and compares every column with the rows that it should have.

On stdin: {"readers": [name], "cases": [{"name", "path", "rows", "fields": [{"name", "dtype"}]}]}; `rows` is the path of a JSON
document whose `rows` are objects, as the service answers, or lists of texts. On stdout: {"versions": {reader: version},
"equal": {reader: columns}, "faults": [text]}.
"""

import json
import sys
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def by_pyarrow(path, fields):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    for name, dtype in fields:
        column = table.column(name)
        yield (column.cast(pa.int64()) if dtype == "timestamp_utc" else column).to_pylist()


def by_polars(path, fields):
    import polars as pl

    frame = pl.read_parquet(path)
    for name, dtype in fields:
        column = frame.get_column(name)
        yield (column.dt.epoch("ms") if dtype == "timestamp_utc" else column).to_list()


def by_duckdb(path, fields):
    import duckdb

    columns = [f'epoch_ms("{name}")' if dtype == "timestamp_utc" else f'"{name}"' for name, dtype in fields]
    rows = duckdb.sql(f"select {', '.join(columns)} from read_parquet('{path}')").fetchall()
    return (list(column) for column in zip(*rows))


def by_fastparquet(path, fields):
    import pandas as pd

    frame = pd.read_parquet(path, engine="fastparquet")
    for name, dtype in fields:
        column = frame[name]
        absent = column.isna()
        if dtype == "timestamp_utc":
            column = column.astype("datetime64[ms]").astype("int64")
        yield [None if gone else cell for cell, gone in zip(column.tolist(), absent)]


def by_clickhouse(path, fields):
    import chdb

    columns = [
        f"toUnixTimestamp64Milli(`{name}`)" if dtype == "timestamp_utc" else f"`{name}`" for name, dtype in fields
    ]
    settings = "output_format_json_quote_64bit_integers = 0, max_threads = 1"
    sql = f"select {', '.join(columns)} from file('{path}', Parquet) settings {settings}"
    rows = [json.loads(line) for line in str(chdb.query(sql, "JSONCompactEachRow")).splitlines()]
    return (list(column) for column in zip(*rows))


def by_spark(path, fields):
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    columns = [f"unix_millis(`{name}`)" if dtype == "timestamp_utc" else f"`{name}`" for name, dtype in fields]
    rows = spark.read.parquet(path).selectExpr(*columns).collect()
    return (list(column) for column in zip(*rows))


READERS = {
    "pyarrow": (by_pyarrow, "pyarrow"),
    "polars": (by_polars, "polars"),
    "duckdb": (by_duckdb, "duckdb"),
    "fastparquet": (by_fastparquet, "fastparquet"),
    "clickhouse": (by_clickhouse, "chdb"),
    "spark": (by_spark, "pyspark"),
}


def to_ms(text):
    return (datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH) // timedelta(milliseconds=1)


PARSERS = {"int64": int, "bool01": int, "float64": float, "timestamp_utc": to_ms}


def expected_of(case):
    with open(case["rows"], encoding="utf-8") as file:
        rows = [list(row.values()) if isinstance(row, dict) else row for row in json.load(file)["rows"]]
    for index, field in enumerate(case["fields"]):
        parse = PARSERS.get(field["dtype"], str)
        yield [None if row[index] is None else parse(row[index]) for row in rows]


def difference(found, expected, dtype):
    """The first cell that differs, or None."""
    if len(found) != len(expected):
        return f"has {len(found)} rows, not {len(expected)}"
    # pandas makes floats of integers with nulls, which is all that a double can be asked for; any others stay integers.
    with_nulls = dtype in ("int64", "bool01") and None in expected
    for row, (cell, right) in enumerate(zip(found, expected)):
        if with_nulls and isinstance(cell, float):
            right = None if right is None else float(right)
        if cell != right or dtype == "int64" and isinstance(cell, float) and not with_nulls:
            return f"has {cell!r} in row {row}, not {right!r}"
    return None


def main():
    request = json.load(sys.stdin)
    cases = [(case, list(expected_of(case))) for case in request["cases"]]
    versions, equal, faults = {}, {}, []
    for name in request["readers"]:
        read, module = READERS[name]
        versions[name] = __import__(module).__version__
        equal[name] = 0
        for case, expected in cases:
            fields = [(field["name"], field["dtype"]) for field in case["fields"]]
            try:
                columns = list(read(case["path"], fields))
            except Exception as error:
                faults.append(f"{name}, {case['name']}: {type(error).__name__}: {error}"[:300])
                continue
            for (field, dtype), found, right in zip(fields, columns, expected, strict=True):
                fault = difference(found, right, dtype)
                if fault is None:
                    equal[name] += 1
                else:
                    faults.append(f"{name}, {case['name']}: {field} {fault}"[:300])
    json.dump({"versions": versions, "equal": equal, "faults": faults}, sys.stdout)


main()
