#!/usr/bin/env bash
# Finds the largest trade of the last proved day, and the line of the vendor's file that it is. Needs curl and jq.
set -euo pipefail

: "${TIDEMARK_URL:=http://127.0.0.1:8080}" "${TIDEMARK_KEY:?is the key of the service}"
DATASET=exchange_a_spot_trades

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# ask FILE PATH [options of curl]: the answer goes to the file. What the service says against a request goes to stderr.
ask() {
  curl -sS --compressed --fail-with-body "$TIDEMARK_URL$2" -H "X-API-Key: $TIDEMARK_KEY" "${@:3}" -o "$work/$1" && return
  jq -r '"\(.code): \(.detail)"' "$work/$1" >&2 || true
  exit 1
}

# Which datasets there are, and what is proved of them.
ask datasets /v1/datasets
jq -r '.datasets[] | .key as $key | .rights.refused_with as $code | .availability
  | if $code then "\($key): refused with \($code)" elif .rows > 0 then
      # The end is exclusive: the last day is the one a millisecond before it.
      def last_day: .proved_through_utc as $until
        | ($until[0:19] + "Z" | fromdate) - (if $until[20:23] == "000" then 1 else 0 end) | todate[0:10];
      "\($key): \(.rows) rows from \(.proved_from_utc[0:10]) to \(last_day)"
    else "\($key): nothing proved" end' "$work/datasets" | tee "$work/proved"
day=$(sed -n "s/^$DATASET: .* to //p" "$work/proved")
[ -n "$day" ] || { echo "no proved rows of $DATASET are served" >&2; exit 1; }

# The day's rows, as CSV: large answers stream, and curl fails when one breaks off.
ask trades.csv /v1/historical/exchange_a/spot/trades -H 'Accept: text/csv' \
  -d "{\"start_date\": \"$day\", \"end_date\": \"$day\", \"fields\": [\"trade_id\", \"price\", \"quantity\"]}"
IFS=, read -r rows id price quantity < <(
  awk -F, 'NR > 1 && $3 + 0 > max + 0 { max = $3; row = $0 } END { print NR - 1 "," row }' "$work/trades.csv"
)
echo "$day: $rows trades; the largest, $id, is $quantity at $price"

# From the row to its event: the bytes that the vendor published.
ask event "/v1/lineage/$DATASET/$id"
jq -r '"\(.document.name), sha256 \(.document.sha256), has the line\n\(.payload_raw.utf8)"' "$work/event"
