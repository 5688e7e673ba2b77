"""Market data that cannot fool you.

>>> import tidemark_client as tm
>>> td = tm.Client()
>>> list(td.klines("exchange_a", "1h", n_rows=24).df().columns[:4])
['open', 'high', 'low', 'close']
"""

from .answer import Answer, Field
from .checks import Report, check
from .client import Client
from .columns import block, column, etf, macro, ohlc
from .errors import (
    AlteredAnswerError,
    ConnectError,
    ContractError,
    ExportFailedError,
    IncompleteAnswerError,
    KeyRefusedError,
    MissingExtraError,
    NoRowsError,
    RightsError,
    ServiceError,
    SettingError,
    StrictWarningError,
    TidemarkError,
    TidemarkWarning,
    UnavailableError,
    UnknownAnswerError,
)
from .exports import Export
from .http import VERSION as __version__
from .lake import Lake
from .prooflog import ProofFault
from .shapes import ohlcv

__all__ = [
    "AlteredAnswerError",
    "Answer",
    "Client",
    "ConnectError",
    "ContractError",
    "Export",
    "ExportFailedError",
    "Field",
    "IncompleteAnswerError",
    "KeyRefusedError",
    "Lake",
    "MissingExtraError",
    "NoRowsError",
    "ProofFault",
    "Report",
    "RightsError",
    "ServiceError",
    "SettingError",
    "StrictWarningError",
    "TidemarkError",
    "TidemarkWarning",
    "UnavailableError",
    "UnknownAnswerError",
    "__version__",
    "block",
    "check",
    "column",
    "etf",
    "macro",
    "ohlc",
    "ohlcv",
]
