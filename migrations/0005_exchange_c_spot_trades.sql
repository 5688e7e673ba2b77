-- Native rows of exchange C. `timestamp` is epoch ms. No index is declared: the loader builds the unique
-- (timestamp, trade_id) of each chunk after loading it. The quote quantity is foreign_notional, stored once.
create table if not exists exchange_c_spot_trades (
  "timestamp" int8 not null,
  trade_id int8 not null,
  price float8 not null,
  size float8 not null,
  gross_value float8 not null,
  home_notional float8 not null,
  foreign_notional float8 not null,
  side text not null,
  tick_direction text not null,
  symbol text not null,
  trd_match_id text not null
);
select create_hypertable('exchange_c_spot_trades', by_range('timestamp', 86400000),
  create_default_indexes => false, if_not_exists => true);
