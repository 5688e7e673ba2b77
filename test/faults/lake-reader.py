"""Reads every table of a lake at its newest version, again and again, as DuckDB and delta-rs do.

A line of JSON a read: the engine, the table, the version, its change, and its rows by date. What is wrong is a line with `fault`.

usage: lake-reader.py LAKE, until its standard input ends
"""

import json
import os
import sys
import threading
import time

import deltalake
import duckdb
import duckdb_extensions
import pyarrow as pa

os.nice(10)
LAKE = sys.argv[1]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
duckdb_extensions.import_extension("delta")
duck = duckdb.connect(config={"threads": 1})
duck.execute("load delta")


def say(**line):
    print(json.dumps(line), flush=True)


def tables():
    for dataset in sorted(os.listdir(LAKE)) if os.path.isdir(LAKE) else []:
        for mode in ("native", "aligned_1s"):
            log = os.path.join(LAKE, dataset, mode, "_delta_log")
            if os.path.isdir(log) and any(name.endswith("0.json") or name.endswith(".parquet") for name in os.listdir(log)):
                yield f"{dataset}/{mode}"


class State:
    """A version, as its log says: rows by date, and the change."""

    def __init__(self, table, version=None):
        self.delta = deltalake.DeltaTable(os.path.join(LAKE, table), version=version)
        self.version = self.delta.version()
        self.column = self.delta.metadata().partition_columns[0]
        self.change = self.delta.transaction_version("tidemark")
        files = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        self.files = len(files)
        self.rows = {}
        for file in files:
            date = str(file[f"partition.{self.column}"])
            self.rows[date] = self.rows.get(date, 0) + file["num_records"]

    def note_fault(self, table):
        try:
            with open(os.path.join(LAKE, "_proofs", table, f"{self.version:020}.json")) as text:
                note = json.load(text)
        except FileNotFoundError:
            return None
        found = (self.files, sum(self.rows.values()), self.change)
        noted = (note["files"], note["rows"], note["change"])
        return None if found == noted else f"{found} files, rows, change in its log, and {noted} in its note"


def by_delta_rs(table, state):
    rows = state.delta.to_pyarrow_dataset().to_table().group_by(state.column).aggregate([([], "count_all")])
    return {str(row[state.column]): row["count_all"] for row in rows.to_pylist()}


def by_duckdb(table, state):
    # The digest reads every cell.
    path = os.path.join(LAKE, table)
    found = duck.execute(f'select "{state.column}", count(hash(t)) from delta_scan(\'{path}\') t group by 1').fetchall()
    return {str(date): count for date, count in found}


ENGINES = {"delta-rs": by_delta_rs, "DuckDB": by_duckdb}


def read(table, engine):
    """What the engine counts is what the log of one version between its begin and its end says."""
    state = State(table)
    try:
        counted, error = ENGINES[engine](table, state), None
    except Exception as fault:
        counted, error = None, f"{type(fault).__name__}: {fault}"[:1000]
    after = State(table)
    if error:
        # A version that was overtaken may have lost the bytes of what was withdrawn.
        return say(engine=engine, table=table, version=state.version, **({"overtaken": error} if after.version > state.version else {"fault": error}))
    between = [state, *(State(table, version) for version in range(state.version + 1, after.version)), after]
    match = next((one for one in between if one.rows == counted), None)
    if match is None:
        said = {one.version: one.rows for one in between}
        return say(engine=engine, table=table, version=state.version, fault=f"counted {counted}, and the log says {said}")
    say(engine=engine, table=table, version=match.version, change=match.change, rows=counted)
    for one in (state, after):
        fault = one.note_fault(table)
        if fault:
            say(engine=engine, table=table, version=one.version, fault=fault)


turn = 0
while not ended.is_set():
    turn += 1
    for table in tables():
        if ended.is_set():
            break
        engine = list(ENGINES)[turn % len(ENGINES)]
        try:
            read(table, engine)
        except Exception as fault:
            # The log itself was not read. A table that goes with the lake is none.
            if os.path.isdir(os.path.join(LAKE, table)):
                say(engine=engine, table=table, fault=f"its log: {type(fault).__name__}: {fault}"[:1000])
    time.sleep(0.05)
