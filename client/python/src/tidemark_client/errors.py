"""Errors and warnings. Catch errors by class, and branch by ``code``, never by message."""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

_HERE = str(Path(__file__).parent)


def printable(text: str) -> str:
    """Words of others without control characters, which would move a terminal's cursor."""
    return "".join(
        f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") else char for char in text
    )


class TidemarkError(Exception):
    """Base of all errors of this package.

    ``code`` is stable; ``hint`` says what to do, and is empty where nothing general can be said.
    """

    code: str = "CLIENT_ERROR"
    hint: str = ""
    detail: str
    pointer: str | None = None
    request_id: str | None = None

    def __init__(self, detail: str, *, hint: str | None = None) -> None:
        self.detail = detail
        if hint is not None:
            self.hint = hint
        super().__init__(detail)

    def __str__(self) -> str:
        lines = "\n".join(printable(line) for line in self.detail.split("\n"))
        return f"{lines}\n  {self.hint}" if self.hint else lines

    def __reduce__(self) -> tuple[Any, ...]:
        # With its members, so that an error of a worker process arrives as it was.
        return (_revive, (type(self), self.args, self.__dict__))


def _revive(kind: type[TidemarkError], args: tuple[Any, ...], members: dict[str, Any]) -> TidemarkError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(members)
    return error


class SettingError(TidemarkError, ValueError):
    """An argument, or a setting such as the URL, is missing or malformed. Nothing was sent."""

    code = "CLIENT_SETTING"


class MissingExtraError(TidemarkError, ImportError):
    """What was asked for needs a package that is not installed; the message names the extra."""

    code = "CLIENT_EXTRA_MISSING"

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'tidemark-client[{extra}]'")


class ConnectError(TidemarkError, ConnectionError):
    """The service cannot be reached, or what answers is not the service."""

    code = "CLIENT_CONNECTION"


class IncompleteAnswerError(TidemarkError):
    """The answer broke off. Nothing of it is returned."""

    code = "CLIENT_ANSWER_INCOMPLETE"


class AlteredAnswerError(TidemarkError):
    """The bytes or rows received are not those whose digest or count the service states. Nothing of them is returned."""

    code = "CLIENT_ANSWER_ALTERED"
    hint = "Something between you and the service changes answers: use https, or another way to it."


class UnknownAnswerError(TidemarkError):
    """The answer has a form that this release does not know: the service is older or newer."""

    code = "CLIENT_ANSWER_UNKNOWN"


class ExportFailedError(TidemarkError):
    """The export failed or was canceled; ``code`` is the service's ``error_code``."""

    def __init__(self, export_id: str, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.export_id = export_id
        self.code = code


class ServiceError(TidemarkError):
    """The service refused the request, or failed.

    ``status``, ``code``, ``detail``, ``request_id`` and ``errors`` are those of its problem document. ``pointer`` is the
    place of the first fault in the request's body, or None.
    """

    #: Hints by class: what a caller can do.
    HINT: ClassVar[str] = ""

    def __init__(self, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.errors: Sequence[Mapping[str, str]] = problem.get("errors") or []
        self.warnings: Sequence[Mapping[str, Any]] = problem.get("warnings") or []
        self.retry_after = retry_after
        # The detail of a problem with one fault names it already.
        faults = [f"\n  {fault.get('pointer') or '(body)'} {fault.get('message')}" for fault in self.errors]
        code = str(problem["code"])
        super().__init__(str(problem.get("detail", "")), hint=self.HINT)
        self.code = code
        self.request_id = str(problem["request_id"]) if problem.get("request_id") else None
        self.pointer = str(self.errors[0].get("pointer")) if self.errors else None
        self._text = f"{code}: {self.detail}" + ("".join(faults) if len(faults) > 1 else "")

    def __str__(self) -> str:
        lines = "\n".join(printable(line) for line in self._text.split("\n"))
        after = f"\n  {self.hint}" if self.hint else ""
        return f"{lines}{after}" + (f"\n  request {printable(self.request_id)}" if self.request_id else "")


class ContractError(ServiceError):
    """The request does not follow the contract; ``errors`` lists every fault."""


class KeyRefusedError(ServiceError):
    """The key is missing, wrong or ended, or does not cover the request."""

    HINT = "Pass key=, or set TIDEMARK_KEY (`./tidemark env` prints it)."


class RightsError(ServiceError):
    """The service may not serve the dataset to this caller."""


class StrictWarningError(ServiceError):
    """The request is strict, and there are warnings; ``warnings`` lists them."""


class NoRowsError(ServiceError):
    """No proved row lies in the window and passes the filters."""

    HINT = 'Pass empty="frame" for an empty frame with the same columns.'


class UnavailableError(ServiceError):
    """The service cannot answer now: the last attempt failed or met a limit. ``retry_after`` is in seconds, or None."""


#: The class of a code: the first match.
_BY_CODE: tuple[tuple[str, type[ServiceError]], ...] = (
    (r"AUTH_KEYS_UNAVAILABLE$|.*_LIMITED$", UnavailableError),
    (r"AUTH_", KeyRefusedError),
    (r".*_CONTRACT_ERROR$", ContractError),
    (r".*_RIGHTS_RESOLUTION_ERROR$", UnavailableError),
    (r".*(_RIGHTS_|_SERVING_|_SHADOW|^EXPORT_AUTH_TOKEN_)", RightsError),
    (r"STRICT_", StrictWarningError),
    (r".*_NO_DATA$", NoRowsError),
)


def service_error(problem: Mapping[str, Any], retry_after: float | None = None) -> ServiceError:
    """The error of a problem document."""
    code = str(problem["code"])
    for pattern, kind in _BY_CODE:
        if re.match(pattern, code):
            return kind(problem, retry_after)
    return (UnavailableError if problem.get("status") in (429, 503) else ServiceError)(problem, retry_after)


class TidemarkWarning(UserWarning):
    """A warning of the service about an answer. Its text begins with its code.

    >>> import warnings
    >>> warnings.filterwarnings("ignore", "WINDOW_LATEST_ROWS_MUTABLE", TidemarkWarning)
    """

    def __init__(self, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(printable(f"{code}: {message}"))
        self.code = code
        self.details = dict(details)


def warn(found: Sequence[Mapping[str, Any]]) -> None:
    """Gives the warnings of an answer, in the name of the line outside this package that asked."""
    if not found:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    for one in found:
        text = str(one.get("message") or "see the documentation of this code")
        warnings.warn(TidemarkWarning(str(one.get("code")), text, one.get("details") or {}), stacklevel=level)
