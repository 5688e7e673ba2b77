"""What the way to the service may do to an answer: none is short, none is altered."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
import signal
import socket
import threading
import time
import warnings
from pathlib import Path

import pytest
from conftest import HAS_SAMPLE, KEY, Fault, Proxy, Upstream

import tidemark_client as tm
from tidemark_client.http import Transport

TRADES = "exchange_a_spot_trades"


def alter(answer: Upstream) -> None:
    """One digit becomes another; the framing and the trailers stay whole."""
    body = bytearray(answer.body)
    at = next(place for place in range(len(body) // 2, len(body)) if body[place : place + 1].isdigit())
    body[at] = ord("1") if body[at] != ord("1") else ord("2")
    answer.body = bytes(body)


def alter_values(answer: Upstream) -> None:
    """A byte in the middle, where Arrow has values."""
    middle = len(answer.body) // 2
    answer.body = answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1 :]


def shorten(answer: Upstream) -> None:
    """The last row is missing, and the framing is whole."""
    answer.body = answer.body[: answer.body.rstrip(b"\n").rfind(b"\n") + 1]


def no_trailers(answer: Upstream) -> None:
    answer.trailers = []
    answer.headers = [(n, v) for n, v in answer.headers if n.lower() not in ("x-svc-sha256", "x-svc-row-count")]


def cut(share: float) -> Fault:
    def spoil(answer: Upstream) -> None:
        answer.cut = int(len(answer.body) * share)

    return spoil


def status(code: int, body: bytes = b"<html>", **headers: str) -> Fault:
    def spoil(answer: Upstream) -> None:
        answer.status, answer.body, answer.trailers, answer.chunked = code, body, [], False
        answer.headers = [(name.replace("_", "-"), value) for name, value in headers.items()]

    return spoil


def both(*faults: Fault) -> Fault:
    return lambda answer: [fault(answer) for fault in faults]


@pytest.mark.parametrize("suffix", [".csv", ".ndjson", ".arrows"])
@pytest.mark.parametrize("fault", [alter, alter_values, shorten], ids=lambda fault: fault.__name__)
def test_an_altered_file_is_none(proxy: Proxy, folder: Path, suffix: str, fault: Fault) -> None:
    td = proxy.client()
    whole = td.save(f"whole{suffix}", TRADES)
    if HAS_SAMPLE and suffix == ".csv":
        assert whole.stat().st_size > 10_000_000
    proxy.faults = [fault]
    with pytest.raises(tm.AlteredAnswerError, match="sha256"):
        td.save(f"altered{suffix}", TRADES)
    # A file of that name from before stays.
    proxy.faults = [fault]
    before = whole.read_bytes()
    with pytest.raises(tm.AlteredAnswerError):
        td.save(f"whole{suffix}", TRADES)
    assert whole.read_bytes() == before and os.listdir(folder) == [whole.name]


@pytest.mark.parametrize("fault", [alter_values, both(alter_values, no_trailers)], ids=["trailers", "in band"])
def test_an_altered_answer_is_none(proxy: Proxy, fault: Fault) -> None:
    pytest.importorskip("pyarrow")
    proxy.faults = [fault]
    with pytest.raises(tm.AlteredAnswerError):
        proxy.client().query(TRADES)


def test_without_trailers_an_arrow_stream_tells_its_own_end_and_text_does_not(proxy: Proxy, folder: Path) -> None:
    pytest.importorskip("pyarrow")
    td = proxy.client()
    whole = td.query(TRADES)
    proxy.faults = [no_trailers]
    found = td.query(TRADES)
    assert (found.row_count, found.pl().equals(whole.pl())) == (whole.row_count, True)
    # Cut between two batches, with the framing whole and even an end marker: no reader of Arrow minds.
    batch = whole._spool.buffer().tobytes().rfind(b"\xff\xff\xff\xff", 0, -2000)
    for ending in (b"", b"\xff\xff\xff\xff\x00\x00\x00\x00"):

        def shortened(answer: Upstream, ending: bytes = ending) -> None:
            no_trailers(answer)
            answer.body = answer.body[:batch] + ending

        proxy.faults = [shortened, shortened]
        with pytest.raises(tm.IncompleteAnswerError):
            td.query(TRADES)
    proxy.faults = [no_trailers, no_trailers]
    with pytest.raises(tm.IncompleteAnswerError, match="proxy_http_version"):
        td.save("rows.csv", TRADES)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_an_answer_that_breaks_off_is_asked_for_again_and_never_short(proxy: Proxy, folder: Path, share: float) -> None:
    td = proxy.client()
    whole = list(td.query(TRADES, n_rows=500))
    proxy.faults = [cut(share)]
    assert list(td.query(TRADES, n_rows=500)) == whole
    proxy.faults = [cut(share), cut(share)]
    with pytest.raises(tm.IncompleteAnswerError):
        td.query(TRADES, n_rows=500)
    proxy.faults = [cut(share), cut(share)]
    with pytest.raises(tm.IncompleteAnswerError):
        td.save("rows.csv", TRADES)
    assert os.listdir(folder) == []


def test_documents_that_break_off_are_asked_for_again(proxy: Proxy) -> None:
    proxy.faults = [cut(0.5), cut(0.1)]
    assert len(proxy.client().datasets()) == 12


def test_a_passing_error_is_waited_for_as_told(proxy: Proxy) -> None:
    busy = b'{"code": "QUERY_QUEUE_LIMIT_REACHED", "status": 503, "detail": "busy", "request_id": "r"}'
    td = proxy.client()
    proxy.faults = [status(503, busy, Retry_After="1"), status(502)]
    began = time.monotonic()
    assert td.query(TRADES, n_rows=3).row_count == 3
    assert time.monotonic() - began >= 1 and len(proxy.requests) == 3
    # The last attempt's error, and a longer wait than the limit, are the caller's.
    proxy.faults = [status(503, busy, Retry_After="0")] * 3
    with pytest.raises(tm.UnavailableError, match="busy"):
        td.datasets()
    proxy.faults = [status(503, busy, Retry_After="60")]
    with pytest.raises(tm.UnavailableError) as error:
        td.datasets()
    assert error.value.retry_after == 60
    # An error that does not pass is not repeated.
    seen = len(proxy.requests)
    proxy.faults = [status(503, busy.replace(b"QUERY_QUEUE_LIMIT_REACHED", b"QUERY_TIMEOUT"), Retry_After="0")]
    with pytest.raises(tm.UnavailableError):
        td.datasets()
    assert len(proxy.requests) == seen + 1


def test_what_is_not_the_service_is_told(proxy: Proxy) -> None:
    td = proxy.client()
    proxy.faults = [status(404, b"<html>Not here</html>")]
    with pytest.raises(tm.ConnectError, match="Not here"):
        td.datasets()
    proxy.faults = [status(302, b"", Location="http://elsewhere/")]
    with pytest.raises(tm.ConnectError, match="redirects to http://elsewhere/"):
        td.datasets()
    proxy.faults = [status(200, b"<html>")]
    with pytest.raises(tm.UnknownAnswerError):
        td.datasets()
    with pytest.raises(tm.ConnectError, match="cannot be reached"):
        tm.Client("http://127.0.0.1:9", "key", max_attempts=1).datasets()


def test_an_older_or_newer_service_is_told_with_its_release(proxy: Proxy) -> None:
    def newer(answer: Upstream) -> None:
        answer.headers = [(n, v.replace('"int64"', '"int128"') if n == "X-Svc-Schema" else v) for n, v in answer.headers]

    def older(answer: Upstream) -> None:
        answer.headers = [(n, v) for n, v in answer.headers if n != "X-Svc-Warnings"]

    td = proxy.client()
    for fault in (newer, older):
        proxy.faults = [fault]
        with pytest.raises(tm.UnknownAnswerError, match=r"client 0\.1\.0, service 0\.1\.0"):
            td.query(TRADES, n_rows=3)


def test_silence_ends_in_an_error(proxy: Proxy) -> None:
    def late(answer: Upstream) -> None:
        answer.wait = 3

    proxy.faults = [late] * 3
    with pytest.raises(tm.ConnectError, match="in time"):
        tm.Client(proxy.url, KEY, max_attempts=1, timeout=0.5).datasets()


def test_a_proxy_of_the_environment_is_asked(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url)
    assert tm.Client("http://service.invalid", KEY).query(TRADES, n_rows=3).row_count == 3
    assert proxy.requests[-1]["line"].startswith("POST http://service.invalid/v1/raw/query ")


def test_compressed_answers_are_the_same_and_a_cut_one_is_none(proxy: Proxy) -> None:
    td = proxy.client()
    whole = list(td.query(TRADES, n_rows=500))
    td._http._encodings = "gzip"
    assert list(td.query(TRADES, n_rows=500)) == whole
    assert proxy.requests[-1]["accept-encoding"] == "gzip"

    def cut_inside(answer: Upstream) -> None:
        answer.body = answer.body[:-12]

    proxy.faults = [cut_inside, cut_inside]
    with pytest.raises(tm.IncompleteAnswerError, match="compression has no end"):
        td.query(TRADES, n_rows=500)

    def repacked(answer: Upstream) -> None:
        alter(answer_ := Upstream(200, [], gzip.decompress(answer.body), []))
        answer.body = gzip.compress(answer_.body)

    proxy.faults = [repacked]
    with pytest.raises(tm.TidemarkError):
        td.query(TRADES, n_rows=500)


def test_connections_are_kept_and_a_dead_one_is_replaced(proxy: Proxy) -> None:
    td = proxy.client()
    td.datasets()
    (kept,) = td._http._idle
    td.query(TRADES, n_rows=3)
    assert td._http._idle == [kept]
    kept.sock.shutdown(2)
    assert len(td.datasets()) == 12
    with td:
        td.datasets()
    assert td._http._idle == []


def test_threads_and_forks_do_not_share_connections(td: tm.Client) -> None:
    whole = list(td.query(TRADES, n_rows=300))
    found: list[bool] = []

    def ask() -> None:
        with warnings.catch_warnings():
            found.append(list(td.query(TRADES, n_rows=300)) == whole)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [True] * 6
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if list(td.query(TRADES, n_rows=300)) == whole else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert list(td.query(TRADES, n_rows=300)) == whole


def test_a_fork_does_not_wait_for_threads_of_its_parent(proxy: Proxy) -> None:
    td = proxy.client()
    td.datasets()
    response = td._http.send("GET", "/v1/datasets")
    with td._http._lock:  # As another thread may hold it at that moment.
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            response.read()
            os._exit(0 if len(td.datasets()) == 12 and len(td._http._idle) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    response.close()
    assert len(td.datasets()) == 12


def test_it_works_in_a_running_event_loop(td: tm.Client) -> None:
    async def notebook() -> int:
        return td.query(TRADES, n_rows=3).row_count

    assert asyncio.run(notebook()) == 3


def test_the_key_is_text_of_any_kind() -> None:
    transport = Transport("http://a", "schlüssel-鍵")
    assert transport._secrets["X-API-Key"].encode("latin-1").decode() == "schlüssel-鍵"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of its own for 127.0.0.1, with its key."""
    import datetime as dt
    import ipaddress

    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "certificate.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_certificate_is_checked_against_those_that_are_trusted(
    proxy: Proxy, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy.server.socket = context.wrap_socket(proxy.server.socket, server_side=True)
    url = proxy.url.replace("http:", "https:")
    with pytest.raises(tm.ConnectError, match="certificate verify failed"):
        tm.Client(url, KEY).datasets()
    assert len(tm.Client(url, KEY, ca=str(certificate)).datasets()) == 12
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert tm.Client(url, KEY).query(TRADES, n_rows=3).row_count == 3
    with pytest.raises(tm.ConnectError, match="mismatch|not valid for"):
        tm.Client(url.replace("127.0.0.1", "localhost"), KEY, max_attempts=1).datasets()


def test_a_proxy_is_asked_to_connect_to_a_service_behind_tls(proxy: Proxy, certificate: Path) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy.server.socket = context.wrap_socket(proxy.server.socket, server_side=True)
    asked: list[bytes] = []

    def pipe(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65_536):
            target.sendall(data)

    def connect() -> None:
        client, _ = listener.accept()
        while not (asked and asked[-1].endswith(b"\r\n\r\n")):
            asked.append(b"".join(asked[-1:]) + client.recv(65_536))
        service = socket.create_connection(("127.0.0.1", proxy.server.server_port))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=pipe, args=(client, service), daemon=True).start()
        pipe(service, client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=connect, daemon=True).start()
        via = f"http://me:a%20word@127.0.0.1:{listener.getsockname()[1]}"
        with tm.Client(proxy.url.replace("http:", "https:"), KEY, ca=str(certificate), proxy=via) as td:
            assert len(td.datasets()) == 12
    login = base64.b64encode(b"me:a word").decode()
    assert asked[-1].startswith(f"CONNECT 127.0.0.1:{proxy.server.server_port} ".encode())
    assert f"Proxy-Authorization: Basic {login}".encode() in asked[-1] and KEY.encode() not in asked[-1]


def test_long_work_shows_a_bar_where_it_is_asked_for(
    proxy: Proxy, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    proxy.client(progress=True).query(TRADES, n_rows=3)
    assert capfd.readouterr().err == ""  # Less than a second.
    from tidemark_client.extras import Progress

    monkeypatch.setattr("tidemark_client.extras.DELAY", 0.1)
    with Progress(True, "trades", "B") as bar:
        time.sleep(0.2)
        bar.add(100)
    assert "trades: 100B" in capfd.readouterr().err
    with Progress(None, "trades", "B") as bar:  # No terminal.
        time.sleep(0.2)
        bar.add(100)
    assert capfd.readouterr().err == ""
