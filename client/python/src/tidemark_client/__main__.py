"""``python -m tidemark_client check``: holds what a service said against its proof log."""

from __future__ import annotations

import argparse
import sys

from .checks import check
from .errors import TidemarkError
from .http import VERSION


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 where all holds, 1 where something is wrong, 2 where it cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m tidemark_client", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "check", help="an export, a lake, a lineage answer, one or two checkpoints, a .tlog-proof, or a log"
    )
    one.add_argument(
        "path", help="folder or manifest of an export, lineage answer, checkpoint, .tlog-proof, folder of a lake or log"
    )
    one.add_argument("second", nargs="?", help="a second checkpoint, or the leaf of a .tlog-proof")
    one.add_argument("--key", required=True, help="the verifier key of the log, or its file; rotations may stand below it")
    one.add_argument("--log", help="URL of the service or folder of the log, for checkpoints and .tlog-proof")
    one.add_argument("--document", help="the vendor's file of a lineage answer")
    one.add_argument("--max-age", help="how old the newest checkpoint may be, such as 1h")
    given = parser.parse_args(arguments)
    try:
        report = check(given.path, given.key, document=given.document, log=given.log, second=given.second, max_age=given.max_age)
    except (TidemarkError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
