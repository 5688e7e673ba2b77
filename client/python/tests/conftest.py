"""The service of TIDEMARK_URL and TIDEMARK_KEY, and a proxy in front of it that spoils answers on the way."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tidemark_client as tm

#: The service has the whole sample, a proof log and exports.
HAS_SAMPLE = os.environ.get("TIDEMARK_SAMPLE") == "1"
KEY = os.environ.get("TIDEMARK_KEY", "")
DATASETS = [
    *(f"exchange_{letter}_spot_trades" for letter in "abc"),
    *("etf_daily_metrics", "macro_series_metrics", "bitcoin_block_headers", "bitcoin_block_transactions"),
    *("bitcoin_mempool_state", "bitcoin_block_fee_totals", "bitcoin_block_subsidy_schedule"),
    *("bitcoin_network_hashrate_estimate", "bitcoin_circulating_supply"),
]


def tables(by_day: Collection[tuple[str, str]]) -> list[object]:
    """Each dataset in both modes; those that are not named run at night only."""
    every = itertools.product(DATASETS, ("native", "aligned_1s"))
    return [pytest.param(*one, marks=() if one in by_day else pytest.mark.nightly, id="-".join(one)) for one in every]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample: needs the sample, its proof log and exports")
    config.addinivalue_line("markers", "nightly: too long for every commit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("sample") and not HAS_SAMPLE:
            item.add_marker(pytest.mark.skip(reason="the service is not that of the sample"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """For the run that counts these tests among its own: a line a test."""
    path = os.environ.get("TIDEMARK_TEST_REPORT")
    if path is None or not (report.when == "call" or report.outcome != "passed"):
        return
    told = {}
    if report.failed:
        told["failure"] = report.longreprtext
    elif report.skipped:
        told["skipped"] = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "skipped"
    with open(path, "a") as file:
        file.write(json.dumps([report.nodeid.rsplit("/", 1)[-1], told]) + "\n")


@pytest.fixture(scope="session")
def td() -> Iterator[tm.Client]:
    with tm.Client() as client:
        yield client


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tm.TidemarkWarning)
        yield


@dataclass
class Upstream:
    """An answer of the service on its way."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    trailers: list[tuple[str, str]]
    #: Bytes of the body after which the connection ends.
    cut: int | None = None
    #: Seconds before the first byte.
    wait: float = 0
    chunked: bool = True
    seen: dict[str, str] = field(default_factory=dict)


Fault = Callable[[Upstream], object]


class Proxy:
    """Passes requests on; the next answers go through the given faults, one each."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[dict[str, str]] = []
        proxy, base = self, urlsplit(os.environ["TIDEMARK_URL"])

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                proxy.requests.append({"line": self.requestline, **{k.lower(): v for k, v in self.headers.items()}})
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path + (f"?{urlsplit(self.path).query}" if urlsplit(self.path).query else "")
                up = http.client.HTTPConnection(base.netloc, timeout=120)
                up.request(self.command, path, body or None, {k: v for k, v in self.headers.items() if k.lower() != "host"})
                raw = up.getresponse()
                trailers: list[tuple[str, str]] = []
                if raw.chunked:
                    data = bytearray()
                    while size := int(raw.fp.readline().split(b";")[0], 16):
                        data += raw.fp.read(size)
                        raw.fp.readline()
                    while (line := raw.fp.readline().strip()) != b"":
                        name, _, value = line.decode().partition(":")
                        trailers.append((name, value.strip()))
                else:
                    data = bytearray(raw.read())
                answer = Upstream(raw.status, raw.getheaders(), bytes(data), trailers, chunked=raw.chunked)
                up.close()
                if proxy.faults:
                    proxy.faults.pop(0)(answer)
                proxy.send(self, answer)

            do_POST = do_DELETE = do_GET

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, answer: Upstream) -> None:
        import time

        time.sleep(answer.wait)
        handler.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "keep-alive"):
                handler.send_header(name, value)
        if answer.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(answer.body)))
        handler.end_headers()
        body = answer.body if answer.cut is None else answer.body[: answer.cut]
        for at in range(0, len(body), 65_536):
            piece = body[at : at + 65_536]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if answer.chunked else piece)
        if answer.cut is not None:
            handler.close_connection = True
            return
        if answer.chunked:
            handler.wfile.write(b"0\r\n" + b"".join(f"{n}: {v}\r\n".encode() for n, v in answer.trailers) + b"\r\n")

    def client(self, **options: object) -> tm.Client:
        return tm.Client(self.url, KEY, max_attempts=3, **options)  # type: ignore[arg-type]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
