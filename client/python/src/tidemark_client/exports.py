"""Exports: files of any size, which the service writes in the background."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from .errors import AlteredAnswerError, ExportFailedError, IncompleteAnswerError, SettingError
from .extras import Progress
from .http import Transport

if TYPE_CHECKING:
    from .checks import Report

_PATH = "/v1/raw/export"


@dataclass(frozen=True)
class Export:
    """The files of an export on this machine. Each has the sha256 that the manifest states."""

    paths: tuple[Path, ...]
    manifest_path: Path
    manifest: Mapping[str, Any]

    @property
    def row_count(self) -> int:
        """Rows of all files."""
        return int(self.manifest["row_count"])

    def check(self, key: str) -> Report:
        """Holds files and manifest against the proof log; ``key`` is its verifier key. Needs the extra ``check``."""
        from .checks import check_export

        return check_export(self.manifest_path.read_bytes(), key, self.paths)


class Exports:
    """Exports one by one."""

    def __init__(self, http: Transport, progress: bool | None) -> None:
        self._http = http
        self._progress = progress

    def submit(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Submits the service's own body. A lost answer makes no second export: all attempts send one Idempotency-Key."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        found: dict[str, Any] = self._http.json("POST", _PATH, request, headers)
        return found

    def status(self, export_id: str) -> dict[str, Any]:
        """The state of an export: ``status``, ``progress``, ``artifact``."""
        found: dict[str, Any] = self._http.json("GET", _of(export_id))
        return found

    def cancel(self, export_id: str) -> dict[str, Any]:
        """Cancels an export that has not ended."""
        found: dict[str, Any] = self._http.json("DELETE", _of(export_id))
        return found

    def list(self, *, status: str | None = None, dataset: str | None = None) -> Iterator[dict[str, Any]]:
        """All exports, newest first."""
        query = {name: value for name, value in (("status", status), ("dataset", dataset)) if value}
        while True:
            page = self._http.json("GET", f"{_PATH}?{urlencode(query)}")
            yield from page["exports"]
            if not page.get("next_cursor"):
                return
            query["cursor"] = page["next_cursor"]

    def wait(self, export_id: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Waits until an export has succeeded. Raises ExportFailedError, or TimeoutError after ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        pause, shown = 0.1, 0
        with Progress(self._progress, "exporting", "row") as bar:
            while True:
                status = self.status(export_id)
                rows = int((status.get("progress") or {}).get("rows") or 0)
                bar.add(max(0, rows - shown))
                shown = max(rows, shown)
                if status["status"] == "succeeded":
                    return status
                if status["status"] == "failed":
                    raise ExportFailedError(export_id, str(status.get("error_code")), str(status.get("error_message")))
                if until is not None and time.monotonic() > until:
                    raise TimeoutError(f"the export {export_id} is {status['status']} after {timeout} s")
                time.sleep(pause * (0.75 + random.random() / 2))
                pause = min(pause * 1.5, 5.0)

    def fetch(self, status: Mapping[str, Any], path: str | os.PathLike[str]) -> Export:
        """Downloads the files of a succeeded export, and its manifest.

        ``path`` with a file's suffix names the one file, and the manifest lies beside it as ``NAME.manifest.json``; otherwise
        it is a folder, made if needed, for the files and ``manifest.json``.
        """
        artifact = status.get("artifact")
        if not artifact:
            raise SettingError(f"The export is {status['status']}: it has no files")
        files = artifact["files"]
        target = Path(path)
        is_file = target.suffix in (".parquet", ".csv", ".gz", ".zst") and not target.is_dir()
        if is_file and len(files) != 1:
            raise SettingError(f"The export has {len(files)} files, one a day: give a folder instead of {target}")
        if not is_file:
            target.mkdir(parents=True, exist_ok=True)
        paths = []
        for one in files:
            name = str(one["name"])
            if Path(name).name != name or name in (".", ".."):
                raise AlteredAnswerError(f"The export names a file outside its folder: {name!r}")
            paths.append(target if is_file else target / name)
            self.download(one, paths[-1])
        manifest = self._http.send("GET", f"{_of(str(status['export_id']))}/manifest").read()
        beside = target.with_name(f"{target.name}.manifest.json") if is_file else target / "manifest.json"
        part = beside.with_name(f".{beside.name}.part")
        part.write_bytes(manifest)
        os.replace(part, beside)
        return Export(tuple(paths), beside, json.loads(manifest))

    def download(self, file: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
        """Downloads one of ``artifact["files"]``. What an earlier download left is resumed; a wrong sha256 raises."""
        target = Path(path)
        size, digest = int(file["bytes"]), str(file["checksum_sha256"])
        # The name has the digest, so that only bytes of this very file are resumed.
        part = target.with_name(f".{target.name}.{digest[:16]}.part")
        failures = 0
        with part.open("ab") as out, Progress(self._progress, target.name, "B", size) as bar:
            out.truncate(min(out.tell(), size))
            out.seek(0, os.SEEK_END)
            bar.add(out.tell())
            while (at := out.tell()) < size:
                try:
                    for piece in self._part(file, at):
                        out.write(piece)
                        bar.add(len(piece))
                        if out.tell() > size:
                            raise AlteredAnswerError(f"{target.name} is longer than the {size} bytes that the service states")
                except IncompleteAnswerError:
                    # An attempt that made progress does not count: a large file may break off any number of times.
                    failures = 1 if out.tell() > at else failures + 1
                    if failures >= self._http.max_attempts:
                        raise
        with part.open("rb") as done:
            found = hashlib.file_digest(done, "sha256").hexdigest()
        if found != digest:
            part.unlink()
            raise AlteredAnswerError(f"{target.name} arrived with the sha256 {found}, and the service states {digest}")
        os.replace(part, target)
        return target

    def _part(self, file: Mapping[str, Any], at: int) -> Iterator[bytes]:
        tag = f'"{file["checksum_sha256"]}"'
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Range": f"bytes={at}-", "If-Range": tag}
        response = self._http.send("GET", str(file["uri"]), headers=headers)
        if (
            response.status != 206
            or response.headers.get("etag") != tag
            or not response.headers.get("content-range", "").startswith(f"bytes {at}-")
        ):
            response.close()
            raise AlteredAnswerError(
                f"{file['name']} was replaced, or a proxy does not support ranges: ask for the export's status again"
            )
        yield from response.pieces()


def _of(export_id: str) -> str:
    return f"{_PATH}/{quote(export_id, safe='')}"
