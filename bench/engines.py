"""DuckDB or ClickHouse in this process, behind HTTP: one request at a time, as their users serve them. Prints its URL.

usage: engines.py DuckDB|ClickHouse PLACE
A request is {"sql": "...", "as": "json" | "csv" | "arrow"}.
"""

import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BATCH_ROWS = 100_000
BUFFER_BYTES = 1 << 20


def duckdb_at(place):
    import duckdb
    import pyarrow as pa
    import pyarrow.csv

    db = duckdb.connect(place)

    def run(sql, form):
        if form == "json":
            result = db.execute(sql)
            names = [name for name, *_ in result.description or []]
            rows = [dict(zip(names, row)) for row in result.fetchall()]
            return lambda sink: sink.write(json.dumps({"rows": rows}, default=float).encode())
        batches = db.sql(sql).to_arrow_reader(BATCH_ROWS)

        def write(sink):
            make = pa.ipc.new_stream if form == "arrow" else pyarrow.csv.CSVWriter
            with make(pa.PythonFile(sink, "w"), batches.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)

        return write

    return run


def clickhouse_at(place):
    import chdb

    db = chdb.connect(place)
    for setting in (
        "output_format_json_quote_64bit_integers = 0",
        "output_format_arrow_compression_method = 'none'",
        "schema_inference_make_columns_nullable = 0",
    ):
        db.query(f"set {setting}")
    forms = {"json": "JSON", "csv": "CSVWithNames", "arrow": "ArrowStream"}

    def run(sql, form):
        found = db.query(sql, forms[form]).bytes()
        return lambda sink: sink.write(found)

    return run


class Chunks(io.RawIOBase):
    """A body whose length is not known when it begins."""

    def __init__(self, socket):
        self.socket = socket

    def writable(self):
        return True

    def write(self, data):
        self.socket.write(b"%x\r\n" % len(data))
        self.socket.write(data)
        self.socket.write(b"\r\n")
        return len(data)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with turn:
            try:
                status, write = 200, run(asked["sql"], asked["as"])
            except Exception as error:
                status, reason = 400, str(error).encode()
                write = lambda sink: sink.write(reason)
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with io.BufferedWriter(Chunks(self.wfile), BUFFER_BYTES) as body:
                write(body)
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


_, engine, place = sys.argv
run = {"DuckDB": duckdb_at, "ClickHouse": clickhouse_at}[engine](place)
turn = threading.Lock()
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
