/** What the ledger records: deliberate changes to partitions by operators and the service, refusals, and losses of the log. */
export const LEDGER_KINDS = [
  'late_arrival_refused',
  'reingest_started',
  'revision_proved',
  'quarantined',
  'sample_retired',
  'replaced',
  'replay_replaced',
  'released',
  'log_recovered',
  'log_lost',
] as const;
export type LedgerKind = (typeof LEDGER_KINDS)[number];
