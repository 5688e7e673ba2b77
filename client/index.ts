/** A client of the historical routes, of frames and of exports. It has no dependencies and runs in Node and in browsers. */
export { type Change, Changes, type ChangesRequest, type Revision } from './changes.ts';
export type { ConditionsRequest, DayCondition, Silence } from './conditions.ts';
export type * from './datasets.ts';
export * from './errors.ts';
export {
  type Artifact,
  type ArtifactFile,
  type ExportRequest,
  type ExportState,
  type ExportStatus,
  Exports,
  type SubmittedExport,
} from './exports.ts';
export type { Aggregate, FrameColumn, FrameRequest, FrameRow } from './frames.ts';
export { HistoricalData } from './historical-data.ts';
export type { Instrument, TradesKey } from './instruments.ts';
export type {
  Filter,
  KlinesOnly,
  Mode,
  OfInstrument,
  Operator,
  Options,
  TradesOnly,
  Window,
} from './requests.ts';
export { type Answer, type Dtype, type FrameAnswer, Rows, type StreamedAnswer } from './rows.ts';
export type { TransportOptions } from './transport.ts';
