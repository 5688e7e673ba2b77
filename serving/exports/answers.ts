/** What callers are told of an export. The schemas are what the answers are, to the key. */
import { z } from 'zod';
import { DATASETS } from '../../shared/registry/index.ts';
import { EXPORT_FORMATS } from '../contract/export.ts';
import { Problem } from '../contract/problems.ts';
import { MODES } from '../contract/shapes.ts';
import { count, datasetKey, flag, grantedRights, sha256, textField, utc, warning } from '../discovery/schemas.ts';
import type { ExportRow, StoredFile } from './rows.ts';
import { EXPORT_STATES } from './states.ts';

export const PREFIX = '/v1/raw/export';

const view = { view_id: textField('The view that is read.'), view_version: count('Its version.') };

const common = {
  export_id: z.uuid().describe('Names the export from here on.'),
  status: z.enum(EXPORT_STATES).describe('`succeeded` and `failed` are final.'),
  submitted_at: utc('When it was accepted.'),
  ...grantedRights,
  ...view,
  warnings: z.array(warning).describe('As judged at submit, then as the run found them.'),
  as_of_utc: utc('End of what was proved then.').nullable(),
};

export const acceptedAnswer = z.strictObject({
  ...common,
  status_path: textField('Where its status is.'),
});

const fileAnswer = z.strictObject({
  name: textField('Its name, also in `Content-Disposition`.'),
  uri: textField('Path of its bytes.'),
  day: z.string().nullable().describe('The UTC day whose rows it holds, of an artifact split by day.'),
  row_count: count('Its rows.'),
  bytes: count('Its size.'),
  checksum_sha256: sha256('Of its bytes; the ETag of its download.'),
});

const artifactAnswer = z.strictObject({
  format: z.enum(EXPORT_FORMATS),
  uri: textField('Path of its bytes; of an artifact of several files, see `files`.'),
  manifest_uri: textField('Path of its manifest: schema, window, proof.'),
  row_count: count('Its rows.'),
  bytes: count('Its size.'),
  checksum_sha256: sha256('Of the file; of several, of the lines that `sha256sum` prints of them.'),
  expires_at: utc('When it is deleted.'),
  expired: flag('That time is over.'),
  synthetic: flag('Rows of the sample: no vendor published them.'),
  files: z.array(fileAnswer),
});

export const statusAnswer = z.strictObject({
  ...common,
  mode: z.enum(MODES),
  format: z.enum(EXPORT_FORMATS),
  dataset: datasetKey,
  source: textField('Its sources in the registry, with commas between.'),
  updated_at: utc('Of the last change, progress included.'),
  progress: z.strictObject({
    rows: count('Written so far, by this run.'),
    bytes: count('Their size.'),
    attempt: count('Runs so far: another one begins where a worker was stopped or died.'),
  }),
  artifact: artifactAnswer.optional().describe('Of `succeeded`.'),
  error_code: textField('Stable.').optional().describe('Of `failed`.'),
  error_message: textField('For people.').optional(),
});

export const listAnswer = z.strictObject({
  exports: z.array(statusAnswer).describe('Newest first.'),
  next_cursor: textField('Of the next page; null on the last.').nullable(),
});

export type StatusAnswer = z.output<typeof statusAnswer>;

const statusPath = (exportId: string): string => `${PREFIX}/${exportId}`;

function commonOf(row: ExportRow) {
  return {
    export_id: row.exportId,
    status: row.state,
    submitted_at: row.submittedAt.toISOString(),
    rights_state: row.rightsState,
    rights_provisional: row.rightsProvisional,
    view_id: row.viewId,
    view_version: row.viewVersion,
    warnings: [...row.warnings] as z.output<typeof warning>[],
    as_of_utc: row.asOf?.toISOString() ?? null,
  };
}

export const acceptedOf = (row: ExportRow): z.output<typeof acceptedAnswer> => ({
  ...commonOf(row),
  status_path: statusPath(row.exportId),
});

/** @throws Problem EXPORT_STATUS_METADATA_ERROR where the row is not one of ours. */
export function statusOf(row: ExportRow): StatusAnswer {
  const dataset = DATASETS.get(row.dataset);
  const answer = {
    ...commonOf(row),
    mode: row.mode,
    format: row.format,
    dataset: row.dataset,
    source: dataset?.sources.join(','),
    updated_at: row.updatedAt.toISOString(),
    progress: { rows: row.progress.rows, bytes: row.progress.bytes, attempt: row.fence },
    ...(row.artifact && { artifact: artifactOf(row) }),
    ...(row.errorCode !== null && { error_code: row.errorCode }),
    ...(row.errorMessage !== null && { error_message: row.errorMessage }),
  };
  const outcome = statusAnswer.safeParse(answer);
  if (outcome.success) return outcome.data;
  throw new Problem('EXPORT_STATUS_METADATA_ERROR', 'The operator has to look at it.', { cause: outcome.error });
}

function artifactOf({ exportId, format, artifact, expiresAt, isExpired }: ExportRow) {
  const { row_count, bytes, sha256: digest, synthetic, files, split } = artifact!;
  const uri = `${statusPath(exportId)}/artifact`;
  return {
    format,
    uri,
    manifest_uri: `${statusPath(exportId)}/manifest`,
    row_count,
    bytes,
    checksum_sha256: digest,
    expires_at: expiresAt?.toISOString(),
    expired: isExpired,
    synthetic,
    files: files.map((file) => ({ ...fileOf(file), uri: split === 'none' ? uri : `${uri}/${file.name}` })),
  };
}

const fileOf = ({ name, day, row_count, bytes, sha256: checksum_sha256 }: StoredFile) => ({
  name,
  day,
  row_count,
  bytes,
  checksum_sha256,
});
