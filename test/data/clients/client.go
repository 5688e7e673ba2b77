// Asks a service through the client that oapi-codegen made of its document. Prints what it was told, as JSON.
package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"time"

	"client/api"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	client := must(api.NewClientWithResponses(os.Getenv("TIDEMARK_URL"),
		api.WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
			request.Header.Set("X-API-Key", os.Getenv("TIDEMARK_KEY"))
			return nil
		})))
	two, three := int64(2), int64(3)
	latest := func(dataset api.DatasetKey) any {
		body := api.QueryRequest{Sources: []api.DatasetKey{dataset}, NRows: &two}
		answer := must(client.QueryRowsWithResponse(ctx, &api.QueryRowsParams{}, body))
		return must(answer.JSON200.ValueByDiscriminator())
	}
	type pairs = [][2]any
	trades, blocks, metrics, klines := pairs{}, pairs{}, pairs{}, pairs{}
	ofTrades := must(latest("exchange_a_spot_trades").(api.ExchangeASpotTradesRows).ValueByDiscriminator())
	for _, row := range ofTrades.(api.ExchangeASpotTradesNativeRows).Rows {
		trades = append(trades, [2]any{row.TradeId, row.Price})
	}
	ofBlocks := must(latest("bitcoin_block_headers").(api.BitcoinBlockHeadersRows).ValueByDiscriminator())
	for _, row := range ofBlocks.(api.BitcoinBlockHeadersNativeRows).Rows {
		blocks = append(blocks, [2]any{row.Height, row.Difficulty})
	}
	ofMetrics := must(latest("etf_daily_metrics").(api.EtfDailyMetricsRows).ValueByDiscriminator())
	for _, row := range ofMetrics.(api.EtfDailyMetricsNativeRows).Rows {
		metrics = append(metrics, [2]any{row.MetricId, row.MetricValueFloat})
	}
	size := api.KlinesRequest_KlineSize{}
	if err := size.FromKlinesRequestKlineSize1("1h"); err != nil {
		panic(err)
	}
	candles := must(client.GetExchangeASpotKlinesWithResponse(ctx, &api.GetExchangeASpotKlinesParams{},
		api.KlinesRequest{NLatestRows: &two, KlineSize: &size}))
	for _, row := range must(candles.JSON200.ValueByDiscriminator()).(api.KlinesNative).Rows {
		klines = append(klines, [2]any{row.Open, row.NoOfTrades})
	}
	dataset := api.DatasetKey("exchange_a_spot_trades")
	accepted := must(client.CreateExportWithResponse(ctx, &api.CreateExportParams{},
		api.ExportRequest{Dataset: &dataset, Format: "csv", NRows: &three})).JSON202
	var done *api.ExportStatus
	for done == nil || (done.Status != "succeeded" && done.Status != "failed") {
		time.Sleep(50 * time.Millisecond)
		done = must(client.GetExportWithResponse(ctx, accepted.ExportId, &api.GetExportParams{})).JSON200
	}
	file := must(client.DownloadExportWithResponse(ctx, accepted.ExportId, &api.DownloadExportParams{})).Body
	told := map[string]any{
		"trades": trades, "blocks": blocks, "metrics": metrics, "klines": klines,
		"bytes": done.Artifact.Bytes, "file": string(file),
	}
	os.Stdout.Write(must(json.Marshal(told)))
}
