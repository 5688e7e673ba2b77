"""Reads Parquet files, or Delta tables, with each of the named readers, and compares every column with the rows that it should have.

On stdin: {"readers": [name], "cases": [{"name", "path", "version", "instrument", "rows", "fields": [{"name", "dtype"}]}]};
`version` is of a table, which has no order of rows, and null for its newest, of which only the rows of `instrument` are read, if
there is one; `maintain` is the path of a table whose history delta-rs reads, writes a
checkpoint of and vacuums first. `rows` is the path of a JSON document whose `rows` are objects, as the service answers, or lists of texts. On stdout: {"versions": {reader: version},
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


def as_ms(column):
    """Of times that need no cast: microseconds in UTC."""
    import pyarrow as pa

    if column.type != pa.timestamp("us", "UTC"):
        raise TypeError(f"the column is of {column.type}")
    return [None if us is None else us // 1000 for us in column.cast(pa.int64()).to_pylist()]


def where(instrument):
    return f" where instrument = '{instrument}'" if instrument else ""


def by_delta_rs(path, fields, version, instrument):
    import pyarrow.fs as fs
    from deltalake import DeltaTable

    # With deltalake's own file system pyarrow may abort when Python ends.
    local = fs.SubTreeFileSystem(path, fs.LocalFileSystem())
    filters = [("instrument", "=", instrument)] if instrument else None
    table = DeltaTable(path, version=version).to_pyarrow_table(filesystem=local, filters=filters)
    for name, dtype in fields:
        column = table.column(name).combine_chunks()
        yield as_ms(column) if dtype == "timestamp_utc" else column.to_pylist()


def by_polars_delta(path, fields, version, instrument):
    import polars as pl

    scan = pl.scan_delta(path, version=version)
    frame = (scan.filter(pl.col("instrument") == instrument) if instrument else scan).collect()
    for name, dtype in fields:
        yield as_ms(frame.get_column(name).to_arrow()) if dtype == "timestamp_utc" else frame.get_column(name).to_list()


def by_duckdb_delta(path, fields, version, instrument):
    import duckdb
    from duckdb_extensions import import_extension

    import_extension("delta")
    at = "" if version is None else f", version = {version}"
    with duckdb.connect() as db:
        db.execute("load delta")
        columns = [f'epoch_ms("{name}")' if dtype == "timestamp_utc" else f'"{name}"' for name, dtype in fields]
        rows = db.execute(f"select {', '.join(columns)} from delta_scan('{path}'{at}){where(instrument)}").fetchall()
        types = db.execute(f"describe select * from delta_scan('{path}'{at})").fetchall()
    for name, dtype in fields:
        found = next(row[1] for row in types if row[0] == name)
        if dtype == "timestamp_utc" and found != "TIMESTAMP WITH TIME ZONE":
            raise TypeError(f"{name} is of {found}")
    return (list(column) for column in zip(*rows))


def by_clickhouse_delta(path, fields, version, instrument):
    import chdb

    columns = [
        f"toUnixTimestamp64Milli(`{name}`)" if dtype == "timestamp_utc" else f"`{name}`" for name, dtype in fields
    ]
    at = "" if version is None else f", delta_lake_snapshot_version = {version}"
    settings = f"output_format_json_quote_64bit_integers = 0, max_threads = 1{at}"
    sql = f"select {', '.join(columns)} from deltaLakeLocal('{path}'){where(instrument)} settings {settings}"
    rows = [json.loads(line) for line in str(chdb.query(sql, "JSONCompactEachRow")).splitlines()]
    return (list(column) for column in zip(*rows))


def by_spark_delta(path, fields, version, instrument):
    import glob
    import os

    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(glob.glob(os.path.join(os.environ["DELTA_JARS"], "*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    columns = [f"unix_millis(`{name}`)" if dtype == "timestamp_utc" else f"`{name}`" for name, dtype in fields]
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    table = reader.load(path)
    rows = (table.where(f"instrument = '{instrument}'") if instrument else table).selectExpr(*columns).collect()
    return (list(column) for column in zip(*rows))


def maintain(path):
    """What delta-rs may do to a table: none of it may harm it."""
    from deltalake import DeltaTable

    table = DeltaTable(path)
    if not all("change" in one for one in table.history() if one.get("engineInfo") == "tidemark"):
        raise ValueError(f"the history lacks a change: {table.history()}")
    table.create_checkpoint()
    table.vacuum(dry_run=False)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


TABLES = {
    "delta-rs": (by_delta_rs, "deltalake"),
    "polars, a table": (by_polars_delta, "polars"),
    "duckdb, a table": (by_duckdb_delta, "duckdb"),
    "clickhouse, a table": (by_clickhouse_delta, "chdb"),
    "spark, a table": (by_spark_delta, "pyspark"),
}

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


def in_order(columns):
    """The columns with their rows in one order."""
    rows = sorted(zip(*columns), key=lambda row: [(cell is None, str(cell)) for cell in row])
    return [list(column) for column in zip(*rows)]


def main():
    request = json.load(sys.stdin)
    if "maintain" in request:
        maintain(request["maintain"])
    cases = [(case, list(expected_of(case))) for case in request["cases"]]
    versions, equal, faults = {}, {}, []
    for name in request["readers"]:
        is_table = name in TABLES
        read, module = (TABLES if is_table else READERS)[name]
        versions[name] = __import__(module).__version__
        equal[name] = 0
        for case, expected in cases:
            fields = [(field["name"], field["dtype"]) for field in case["fields"]]
            try:
                more = [case.get("version"), case.get("instrument")] if is_table else []
                columns = list(read(case["path"], fields, *more))
                if is_table:
                    columns, expected = in_order(columns), in_order(expected)
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
