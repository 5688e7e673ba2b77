"""The shapes of bars that backtesting libraries take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .answer import Answer
from .errors import SettingError

if TYPE_CHECKING:
    import pandas

Shape: TypeAlias = Literal["backtesting", "vectorbt", "bt", "zipline", "ccxt"]
_BARS = ("open", "high", "low", "close", "volume")


def ohlcv(bars: Answer | pandas.DataFrame, shape: Shape = "backtesting") -> Any:
    """Bars as a backtesting library takes them, from klines or a frame with ``**tm.ohlc(...)``.

    ``backtesting``: a pandas DataFrame with ``Open`` to ``Volume``; ``vectorbt``: ``open`` to ``volume``; ``bt``: ``close``
    alone; ``zipline``: without a zone, volume as whole 1e-8; ``ccxt``: lists ``[ms, open, high, low, close, volume]``. Bars of
    a bucket without trades are left out. Columns of other names stay, but in ``bt`` and ``ccxt``. Ask for
    ``label="right"`` if the library takes a bar's time for the moment at which it is known.

    >>> list(tm.ohlcv(td.klines("exchange_a", "1h", n_rows=5, fields=["datetime", *"open high low close volume".split()])))
    ['Open', 'High', 'Low', 'Close', 'Volume']
    """
    frame = bars.df() if isinstance(bars, Answer) else bars
    missing = [name for name in _BARS if name not in frame.columns]
    if missing:
        raise SettingError(f"The bars have no column {', '.join(missing)}: ask for klines, or for a frame with **ohlc(...)")
    frame = frame.dropna(subset=["close"])
    if shape == "backtesting":
        return frame.rename(columns={name: name.capitalize() for name in _BARS})
    if shape == "vectorbt":
        return frame
    if shape == "bt":
        return frame[["close"]]
    if shape == "zipline":
        volume = (frame["volume"] * 1e8).round().astype("uint64")
        return frame.assign(volume=volume).tz_localize(None)
    if shape == "ccxt":
        times = (int(at.timestamp() * 1000) for at in frame.index)
        return [[at, *bar] for at, bar in zip(times, frame[list(_BARS)].to_numpy().tolist(), strict=True)]
    raise SettingError(f"The shape is {shape!r}: known are backtesting, vectorbt, bt, zipline and ccxt")
