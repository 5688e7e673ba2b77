"""Requests over HTTP/1.1, repeated where that can help. Every request of this package may be repeated.

``http.client`` drops the trailers of an answer, which hold its digest, so that bodies are read here.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import http.client
import ipaddress
import json
import os
import random
import re
import socket
import ssl
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import (
    AlteredAnswerError,
    ConnectError,
    IncompleteAnswerError,
    ServiceError,
    SettingError,
    TidemarkError,
    UnknownAnswerError,
    service_error,
)

try:  # Python 3.14
    from compression import zstd as _zstd  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # pragma: no cover - depends on the Python
    _zstd = None

VERSION = "0.1.0"
_FIRST_PAUSE = 0.25
_PASSING = {429, 502, 503, 504}
# Codes of a 503 that do not pass: the same read would exceed its time again, and the others need an operator.
_LASTING = re.compile(
    r"QUERY_TIMEOUT$|ALIGNED_STORAGE_CONTRACT_VIOLATION$|EXPORT_ARTIFACT_"
    r"|.*(_METADATA_ERROR|_RUNTIME_ERROR|_RIGHTS_RESOLUTION_ERROR)$"
)
_PIECE = 1 << 18


class Unpacker(Protocol):
    """Unpacks a body; ``eof`` at the end of its frame."""

    @property
    def eof(self) -> bool:
        """Whether the end of the frame is reached."""
        ...

    def decompress(self, data: Any, /) -> bytes:
        """The next unpacked bytes."""
        ...


class Response:
    """The answer to one request: read it once, by ``pieces`` or ``read``."""

    def __init__(self, raw: http.client.HTTPResponse, done: Callable[[bool], None]) -> None:
        self._raw = raw
        self._done: Callable[[bool], None] | None = done
        self.status = raw.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in raw.getheaders()}
        #: The headers after the body, once it is read.
        self.trailers: dict[str, str] = {}
        #: sha256 of the unpacked body, once it is read.
        self.sha256 = ""
        self.bytes = 0

    def stated(self, name: str) -> str | None:
        """What the service states in a trailer, or for short answers in a header."""
        return self.trailers.get(name, self.headers.get(name))

    def pieces(self) -> Iterator[bytes]:
        """The unpacked body. Raises IncompleteAnswerError where it breaks off."""
        digest = hashlib.sha256()
        unpacker = _unpacker(self.headers.get("content-encoding", "identity"))
        try:
            for piece in self._wire():
                data = unpacker.decompress(piece) if unpacker else piece
                digest.update(data)
                self.bytes += len(data)
                if data:
                    yield data
            if unpacker and not unpacker.eof:
                raise IncompleteAnswerError("The answer broke off: its compression has no end")
        except TidemarkError:
            raise
        except TimeoutError as error:
            raise IncompleteAnswerError(f"The answer stopped after {self.bytes} bytes and said nothing more") from error
        # zlib, zstd, sockets and the parser of chunks each have their own.
        except (OSError, EOFError, ValueError, http.client.HTTPException, zlib.error) as error:
            raise IncompleteAnswerError(f"The answer broke off after {self.bytes} bytes: {error}") from error
        except Exception as error:
            if _zstd is None or not isinstance(error, _zstd.ZstdError):
                raise
            raise IncompleteAnswerError(f"The answer broke off after {self.bytes} bytes: {error}") from error
        else:
            self.sha256 = digest.hexdigest()
            self._finish(reuse=True)
        finally:
            self._finish(reuse=False)

    def read(self, limit: int = 1 << 30) -> bytes:
        """The whole unpacked body, at most ``limit`` bytes."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > limit:
                raise UnknownAnswerError(f"The answer has more than {limit} bytes")
        return bytes(found)

    def close(self) -> None:
        """Ends the read at the service, unless it is read to its end."""
        self._finish(reuse=False)

    def _finish(self, *, reuse: bool) -> None:
        done, self._done = self._done, None
        if done:
            self._raw.close()
            done(reuse and not self._raw.will_close)

    def _wire(self) -> Iterator[bytes]:
        raw = self._raw
        if raw.chunked:
            yield from self._chunks()
        elif raw.length is None:  # Until the connection ends: only a stated digest can tell the end.
            while data := raw.read(_PIECE):
                yield data
        else:
            left = raw.length
            while left > 0:
                data = raw.read(min(left, _PIECE))
                if not data:
                    raise EOFError(f"{left} bytes are missing")
                left -= len(data)
                yield data

    def _chunks(self) -> Iterator[bytes]:
        file: Any = self._raw.fp
        while True:
            size = int(_line(file).split(b";", 1)[0], 16)
            if size == 0:
                break
            while size > 0:
                data = file.read(min(size, _PIECE))
                if not data:
                    raise EOFError("a chunk is cut")
                size -= len(data)
                yield data
            if _line(file) != b"":
                raise ValueError("a chunk has no end")
        for _ in range(100):
            line = _line(file)
            if line == b"":
                return
            name, _, value = line.partition(b":")
            self.trailers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
        raise ValueError("too many trailers")


def _line(file: Any) -> bytes:
    line: bytes = file.readline(65_537)
    if not line.endswith(b"\n"):
        raise EOFError("a line of the framing is cut")
    return line.rstrip(b"\r\n")


def _unpacker(encoding: str) -> Unpacker | None:
    if encoding == "identity":
        return None
    if encoding == "gzip":
        return zlib.decompressobj(wbits=31)
    if encoding == "zstd" and _zstd is not None:
        found: Unpacker = _zstd.ZstdDecompressor()
        return found
    raise UnknownAnswerError(f"The answer is compressed with {encoding}, which was not asked for")


class Transport:
    """Connections to one service. Safe over threads, and after a fork."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        backend_token: str | None = None,
        timeout: float | tuple[float, float] = (10.0, 120.0),
        max_attempts: int = 5,
        max_retry_wait: float = 30.0,
        ca: str | ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        self.base = _base(url)
        self._connect_timeout, self._read_timeout = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        self.max_attempts = max_attempts
        self._max_retry_wait = max_retry_wait
        self._tls = _tls(ca) if self.base.scheme == "https" else None
        self._proxy = _proxy(self.base, proxy)
        self._secrets = {
            name: _secret(option, value)
            for name, option, value in (("X-API-Key", "key", key), ("X-Backend-Token", "backend_token", backend_token))
            if value is not None
        }
        # Packing costs more time than it saves on the way to this machine itself.
        self._encodings = "identity" if _is_here(self.base) else "zstd, gzip" if _zstd else "gzip"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    @property
    def url(self) -> str:
        """The address of the service."""
        return self.base.geturl()

    def close(self) -> None:
        """Closes the idle connections. The transport stays usable."""
        self._leave_to_parent()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer that is one JSON document; an answer that breaks off is asked for again."""
        for attempt in range(self.max_attempts):
            try:
                data = self.send(method, path, body, {"Accept": "application/json", **(headers or {})}).read()
                return json.loads(data)
            except IncompleteAnswerError:
                if attempt + 1 >= self.max_attempts:
                    raise
            except ValueError as error:
                raise UnknownAnswerError(f"{self.url}{path} answered with what is not JSON") from error
        raise AssertionError("unreachable")  # pragma: no cover

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Response:
        """Sends a request until it is answered with 2xx.

        Raises ServiceError where the service refuses, ConnectError where it is not reached.
        """
        data = None if body is None else json.dumps(body, default=_plain, allow_nan=False).encode()
        for attempt in range(1, self.max_attempts + 1):
            passing, after = True, None
            try:
                response = self._ask(method, path, data, headers or {})
                if 200 <= response.status < 300:
                    return response
                error, after = self._fault(response)
                passing = response.status in _PASSING and not _LASTING.match(error.code)
            except ConnectError as lost:
                error = lost
                passing = not isinstance(lost.__cause__, ssl.SSLError)
            wait = after if after is not None else _FIRST_PAUSE * 2 ** (attempt - 1) * (0.5 + random.random())
            if not passing or attempt == self.max_attempts or wait > self._max_retry_wait:
                raise error
            time.sleep(wait)
        raise SettingError("max_attempts is below 1")

    def _ask(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Response:
        target = self.base.path + path
        if self._proxy and self.base.scheme == "http":
            target = f"http://{self.base.netloc}{target}"
        sent = {
            "User-Agent": f"tidemark-client/{VERSION} (Python)",
            "Accept-Encoding": self._encodings,
            **({"Content-Type": "application/json"} if data is not None else {}),
            **headers,
            **(self._proxy_headers if self.base.scheme == "http" else {}),
            **self._secrets,
        }
        while True:
            connection, is_new = self._connection()
            try:
                connection.request(method, target, data, sent)
                raw = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not is_new and not isinstance(error, TimeoutError):
                    continue  # An idle connection that the other side had closed says nothing about the service.
                what = "did not answer in time" if isinstance(error, TimeoutError) else "cannot be reached"
                raise ConnectError(f"{self.url} {what}: {error or type(error).__name__}") from error
            except BaseException:
                connection.close()
                raise
            return Response(raw, partial(self._give_back, connection, os.getpid()))

    def _fault(self, response: Response) -> tuple[TidemarkError, float | None]:
        if 300 <= response.status < 400 and "location" in response.headers:
            response.close()
            to = response.headers["location"][:200]
            return ConnectError(f"{self.url} redirects to {to}, where the key is not sent: use that as the URL"), None
        after = _retry_after(response.headers.get("retry-after"))
        try:
            text = response.read(1 << 24)
        except TidemarkError:
            text = b""
        try:
            problem = json.loads(text)
            if isinstance(problem.get("code"), str):
                return service_error(problem, after), after
        except (ValueError, AttributeError):
            pass
        shown = text[:200].decode("utf-8", "replace")
        return ConnectError(f"{self.url} answered {response.status} without a problem document: {shown}"), after

    def _leave_to_parent(self) -> None:
        """After a fork: the connections are the parent's, and the lock may be held by a thread that is only there."""
        if self._pid != os.getpid():
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        self._leave_to_parent()
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        at = self._proxy or self.base
        host, port = at.hostname or "", at.port or (443 if at.scheme == "https" else 80)
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(host, port, timeout=self._connect_timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._connect_timeout)
        if self._proxy and self._tls:
            connection.set_tunnel(self.base.hostname or "", self.base.port or 443, self._proxy_headers)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectError(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
        connection.sock.settimeout(self._read_timeout)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, True

    def _give_back(self, connection: http.client.HTTPConnection, opened_by: int, reuse: bool) -> None:
        self._leave_to_parent()
        with self._lock:
            if reuse and opened_by == os.getpid() and len(self._idle) < 8:
                self._idle.append(connection)
                return
        connection.close()

    @property
    def _proxy_headers(self) -> dict[str, str]:
        if not self._proxy or self._proxy.username is None:
            return {}
        login = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def check_body(response: Response, rows: int | None = None) -> None:
    """Holds a body that was read against the digest and, where ``rows`` were counted, the count that the service states.

    Raises IncompleteAnswerError where nothing is stated, AlteredAnswerError where they differ.
    """
    stated = response.stated("x-svc-sha256")
    if stated is None:
        raise IncompleteAnswerError(
            "The answer states no digest, so that nobody can tell whether it is whole: "
            "a proxy drops trailers (nginx: proxy_http_version 1.1, and 1.29.7 or newer)"
        )
    if stated != response.sha256:
        raise AlteredAnswerError(f"The answer has the sha256 {response.sha256}, and the service states {stated}")
    count = response.stated("x-svc-row-count")
    if rows is not None and count is not None and int(count) != rows:
        raise AlteredAnswerError(f"The answer has {rows} rows, and the service states {count}")


def _base(url: str) -> SplitResult:
    base = urlsplit(url.strip())
    if base.scheme not in ("http", "https") or not base.hostname:
        raise SettingError(f"The URL is {url!r}: it must be as http://127.0.0.1:8080")
    if base.username or base.password or base.query or base.fragment:
        raise SettingError("The URL must have no user, query or fragment")
    return base._replace(path=base.path.rstrip("/"))


def _secret(option: str, value: str) -> str:
    """A key as UTF-8, in the latin-1 that http.client writes."""
    if not value or value != value.strip() or re.search(r"[\x00-\x1f\x7f]", value):
        raise SettingError(f"{option} is empty, begins or ends with white space, or has a control character")
    return value.encode().decode("latin-1")


def _tls(ca: str | ssl.SSLContext | None) -> ssl.SSLContext:
    if isinstance(ca, ssl.SSLContext):
        return ca
    path = ca or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    # Without a path this heeds SSL_CERT_FILE and SSL_CERT_DIR.
    with contextlib.suppress(FileNotFoundError):
        if path and os.path.isdir(path):
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path or None)
    raise SettingError(f"The file of CA certificates {path} does not exist")


def _proxy(base: SplitResult, given: str | None) -> SplitResult | None:
    """The proxy given, or that of HTTPS_PROXY, HTTP_PROXY and NO_PROXY; an empty text means none."""
    if given is None:
        if urllib.request.proxy_bypass(base.hostname or ""):
            return None
        found = urllib.request.getproxies()
        given = found.get(base.scheme) or found.get("all")
    if not given:
        return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise SettingError(f"The proxy is of the kind {proxy.scheme!r}: only http:// proxies are supported")
    return proxy


def _is_here(base: SplitResult) -> bool:
    host = base.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _retry_after(header: str | None) -> float | None:
    if header is None:
        return None
    if header.isdigit():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """Numbers of numpy and times, for JSON."""
    if hasattr(value, "isoformat") or type(value).__name__ == "datetime64":
        from .times import iso

        return iso(value)
    for method in ("tolist", "to_list"):  # numpy and pandas, polars
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, (set, frozenset, range)):
        return list(value)
    raise SettingError(f"{value!r} cannot be written as JSON")


__all__ = ["VERSION", "Response", "ServiceError", "Transport", "check_body"]
