"""Asks a service through the client that openapi-python-client made of its document. Prints what it was told, as JSON."""
import json
import os
import time
from collections.abc import Iterator

from api import AuthenticatedClient
from api.api.export import create_export, download_export, get_export
from api.api.rows import get_exchange_a_spot_klines, query_rows
from api.models import (
    AcceptedExport,
    BitcoinBlockHeadersNativeRows,
    DatasetKey,
    EtfDailyMetricsNativeRows,
    ExchangeASpotTradesNativeRows,
    ExportRequest,
    ExportRequestFormat,
    ExportStatus,
    KlinesNative,
    KlinesRequest,
    QueryRequest,
)

client = AuthenticatedClient(
    base_url=os.environ["TIDEMARK_URL"], token=os.environ["TIDEMARK_KEY"], prefix="", auth_header_name="X-API-Key"
)


def latest(dataset: DatasetKey):
    return query_rows.sync(client=client, body=QueryRequest(sources=[dataset], n_rows=2))


trades = latest(DatasetKey.EXCHANGE_A_SPOT_TRADES)
assert isinstance(trades, ExchangeASpotTradesNativeRows), trades
blocks = latest(DatasetKey.BITCOIN_BLOCK_HEADERS)
assert isinstance(blocks, BitcoinBlockHeadersNativeRows), blocks
metrics = latest(DatasetKey.ETF_DAILY_METRICS)
assert isinstance(metrics, EtfDailyMetricsNativeRows), metrics
klines = get_exchange_a_spot_klines.sync(client=client, body=KlinesRequest(n_latest_rows=2, kline_size="1h"))
assert isinstance(klines, KlinesNative), klines

accepted = create_export.sync(
    client=client,
    body=ExportRequest(format_=ExportRequestFormat.CSV, dataset=DatasetKey.EXCHANGE_A_SPOT_TRADES, n_rows=3),
)
assert isinstance(accepted, AcceptedExport), accepted


def states() -> Iterator[ExportStatus]:
    while True:
        status = get_export.sync(export_id=accepted.export_id, client=client)
        assert isinstance(status, ExportStatus), status
        yield status
        time.sleep(0.05)


done = next(one for one in states() if one.status in ("succeeded", "failed"))
file = download_export.sync_detailed(export_id=accepted.export_id, client=client)
print(
    json.dumps(
        {
            "trades": [[row.trade_id, row.price] for row in trades.rows],
            "blocks": [[row.height, row.difficulty] for row in blocks.rows],
            "metrics": [[row.metric_id, row.metric_value_float] for row in metrics.rows],
            "klines": [[row.open_, row.no_of_trades] for row in klines.rows],
            "bytes": done.artifact.bytes_,
            "file": file.content.decode(),
        }
    )
)
