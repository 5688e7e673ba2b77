"""Packages that only some callers have."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from .errors import MissingExtraError

#: The extra that brings a package.
_EXTRAS = {
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "arrow",
    "duckdb": "duckdb",
    "deltalake": "lake",
    "cryptography": "check",
}


def need(module: str, what: str, extra: str | None = None) -> Any:
    """The module, or MissingExtraError, which names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".", maxsplit=1)[0]
        raise MissingExtraError(what, package, extra or _EXTRAS[package]) from error


def has(module: str) -> bool:
    """Whether the module is installed."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


#: Seconds after which work is long.
DELAY = 1.0


class Progress:
    """A bar on a terminal or in a notebook, where tqdm is installed. Work of less than a second shows none."""

    def __init__(self, shown: bool | None, what: str, unit: str, total: int | None = None) -> None:
        self._bar: Any = None
        seen = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
        if shown is False or (shown is None and not (seen and has("tqdm"))):
            return
        if not has("tqdm"):
            raise MissingExtraError("A progress bar", "tqdm", "progress")
        with warnings.catch_warnings():  # Without ipywidgets a notebook shows the bar as text, of which tqdm warns.
            warnings.simplefilter("ignore")
            tqdm = importlib.import_module("tqdm.auto").tqdm
        self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=True, delay=DELAY, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def over(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces, counted by their bytes."""
        for piece in pieces:
            self.add(len(piece))
            yield piece
