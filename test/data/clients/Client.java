/** Asks a service through the client that openapi-generator made of its document. Prints what it was told, as JSON. */
package client;

import java.nio.file.Files;
import java.util.List;
import java.util.Map;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.ExportApi;
import org.openapitools.client.api.RowsApi;
import org.openapitools.client.model.*;

public class Client {
  static RowsApi rows;

  static QueryRows latest(DatasetKey dataset) throws Exception {
    return rows.queryRows(new QueryRequest().sources(List.of(dataset)).nRows(2L), null, null, null);
  }

  static List<Object> pair(Object one, Object other) {
    return java.util.Arrays.asList(one, other);
  }

  public static void main(String[] args) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(System.getenv("TIDEMARK_URL"));
    client.setRequestInterceptor(request -> request.header("X-API-Key", System.getenv("TIDEMARK_KEY")));
    rows = new RowsApi(client);
    ExportApi exports = new ExportApi(client);
    List<ExchangeASpotTradesNativeRow> trades = latest(DatasetKey.EXCHANGE_A_SPOT_TRADES)
        .getExchangeASpotTradesRows().getExchangeASpotTradesNativeRows().getRows();
    List<BitcoinBlockHeadersNativeRow> blocks = latest(DatasetKey.BITCOIN_BLOCK_HEADERS)
        .getBitcoinBlockHeadersRows().getBitcoinBlockHeadersNativeRows().getRows();
    List<EtfDailyMetricsNativeRow> metrics = latest(DatasetKey.ETF_DAILY_METRICS)
        .getEtfDailyMetricsRows().getEtfDailyMetricsNativeRows().getRows();
    KlinesRequest hours = new KlinesRequest().nLatestRows(2L).klineSize(new KlinesRequestKlineSize("1h"));
    List<KlinesNativeRow> klines = rows.getExchangeASpotKlines(hours, null, null, null).getKlinesNative().getRows();
    ExportRequest wanted = new ExportRequest()
        .format(ExportRequest.FormatEnum.CSV).dataset(DatasetKey.EXCHANGE_A_SPOT_TRADES).nRows(3L);
    AcceptedExport accepted = exports.createExport(wanted, null, null);
    ExportStatus done;
    do {
      Thread.sleep(50);
      done = exports.getExport(accepted.getExportId(), null);
    } while (done.getStatus() != ExportState.SUCCEEDED && done.getStatus() != ExportState.FAILED);
    String file = Files.readString(
        exports.downloadExport(accepted.getExportId(), null, null, null, null, null, null, null).toPath());
    System.out.println(client.getObjectMapper().writeValueAsString(Map.of(
        "trades", trades.stream().map(row -> pair(row.getTradeId(), row.getPrice())).toList(),
        "blocks", blocks.stream().map(row -> pair(row.getHeight(), row.getDifficulty())).toList(),
        "metrics", metrics.stream().map(row -> pair(row.getMetricId(), row.getMetricValueFloat())).toList(),
        "klines", klines.stream().map(row -> pair(row.getOpen(), row.getNoOfTrades())).toList(),
        "bytes", done.getArtifact().getBytes(),
        "file", file)));
  }
}
