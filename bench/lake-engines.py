"""What engines need to open a Delta table, and delta-rs to write one. Prints one line of JSON: the milliseconds, and the rows.

usage: lake-engines.py write CSV TABLE | open ENGINE TABLE
"""

import json
import sys
import time


def write(csv, table):
    import pyarrow as pa
    import pyarrow.csv
    from deltalake import WriterProperties, write_deltalake

    def run():
        rows = pyarrow.csv.open_csv(csv)
        write_deltalake(table, pa.RecordBatchReader.from_batches(rows.schema, rows), writer_properties=WriterProperties(compression="ZSTD"))

    return run


def open_with(engine, table):
    """Lists every file of the newest version and counts the rows by its statistics."""
    if engine == "delta-rs":
        import pyarrow as pa
        from deltalake import DeltaTable

        return lambda: sum(pa.table(DeltaTable(table).get_add_actions(flatten=True)).column("num_records").to_pylist())
    if engine == "polars":
        import polars as pl

        return lambda: pl.scan_delta(table).select(pl.len()).collect().item()
    if engine == "DuckDB":
        import duckdb
        from duckdb_extensions import import_extension

        import_extension("delta")
        db = duckdb.connect()
        db.execute("load delta")
        return lambda: db.execute(f"select count(*) from delta_scan('{table}')").fetchone()[0]
    import chdb

    return lambda: int(chdb.query(f"select count() from deltaLakeLocal('{table}')", "CSV").bytes())


work = write(*sys.argv[2:]) if sys.argv[1] == "write" else open_with(*sys.argv[2:])
begun = time.perf_counter()
rows = work()
print(json.dumps({"ms": (time.perf_counter() - begun) * 1000, "rows": rows}))
