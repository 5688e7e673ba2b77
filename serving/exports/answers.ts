/** The answers about exports. A schema describes its answer completely. */
import { z } from 'zod';
import { COMPRESSIONS, EXPORT_FORMATS } from '../contract/export.ts';
import { Problem } from '../contract/problems.ts';
import { MODES } from '../contract/shapes.ts';
import {
  count,
  datasetKey,
  flag,
  grantedRights,
  instrumentName,
  sha256,
  textField,
  utc,
  warning,
} from '../discovery/schemas.ts';
import { datasetsOf, type ExportRow, type StoredFile } from './rows.ts';
import { EXPORT_STATES } from './states.ts';

export const PREFIX = '/v1/raw/export';

const view = { view_id: textField('The view that the export reads.'), view_version: count('Version of the view.') };

const common = {
  export_id: z.uuid().describe('Id of the export.'),
  status: z.enum(EXPORT_STATES).meta({ id: 'ExportState' }).describe('`succeeded` and `failed` are final.'),
  api_key: textField('Name of the key that submitted it; `owner` for the configured one.'),
  submitted_at: utc('Time at which the service accepted it.'),
  ...grantedRights,
  ...view,
  warnings: z.array(warning).describe('Warnings of the submission, later those of the run.'),
  as_of_utc: utc('End of coverage at that time.').nullable(),
};

export const acceptedAnswer = z
  .strictObject({
    ...common,
    status_path: textField('Path of its status.'),
  })
  .meta({ id: 'AcceptedExport' });

const fileAnswer = z
  .strictObject({
    name: textField('Name of the file, also in `Content-Disposition`.'),
    uri: textField('Path of the file.'),
    day: z.string().nullable().describe('The UTC day of its rows, if the artifact is split by day.'),
    row_count: count('Rows of the file.'),
    bytes: count('Size of the file.'),
    checksum_sha256: sha256('Digest of the file; also the ETag of its download.'),
  })
  .meta({ id: 'ExportFile' });

const artifactAnswer = z
  .strictObject({
    format: z.enum(EXPORT_FORMATS),
    uri: textField('Path of the file. Of an artifact that is split by day, see `files`.'),
    manifest_uri: textField('Path of the manifest: schema, window, proof.'),
    row_count: count('Rows of the artifact.'),
    bytes: count('Size of the artifact.'),
    checksum_sha256: sha256(
      'Digest of the file; if it is split by day, of the lines that `sha256sum` prints for its files.',
    ),
    expires_at: utc('Time at which the service deletes it.'),
    expired: flag('Whether that time has passed.'),
    synthetic: flag('Whether the rows belong to the sample: no vendor published them.'),
    files: z.array(fileAnswer),
  })
  .meta({ id: 'ExportArtifact' });

export const statusAnswer = z
  .strictObject({
    ...common,
    mode: z.enum(MODES),
    format: z.enum(EXPORT_FORMATS),
    dataset: datasetKey,
    instrument: instrumentName,
    datasets: z
      .array(datasetKey)
      .describe('The datasets that it reads; a frame may have several, of which `dataset` is the first.'),
    compression: textField('How the files are compressed; `none` where they are not.'),
    source: textField('Sources of the datasets in the registry, separated by commas.'),
    updated_at: utc('Time of the last change, including progress.'),
    progress: z.strictObject({
      rows: count('Rows that this run has written so far.'),
      bytes: count('Bytes that this run has written so far.'),
      attempt: count('Number of runs so far. A new run begins when a worker was stopped or died.'),
    }),
    artifact: artifactAnswer.optional().describe('The artifact of a `succeeded` export.'),
    error_code: textField('Code of the fault; it does not change.')
      .optional()
      .describe('Code of the fault of a `failed` export.'),
    error_message: textField('Text for people.').optional(),
  })
  .meta({ id: 'ExportStatus' });

export const listAnswer = z
  .strictObject({
    exports: z.array(statusAnswer).describe('Newest first.'),
    next_cursor: textField('The `cursor` of the next page; null on the last page.').nullable(),
  })
  .meta({ id: 'ExportList' });

type ExportStatusAnswer = z.output<typeof statusAnswer>;

const statusPath = (exportId: string): string => `${PREFIX}/${exportId}`;

function commonOf(row: ExportRow) {
  return {
    export_id: row.exportId,
    status: row.state,
    api_key: row.apiKey,
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

/** @throws Problem EXPORT_STATUS_METADATA_ERROR if the row is invalid. */
export function statusOf(row: ExportRow): ExportStatusAnswer {
  const datasets = datasetsOf(row);
  const answer = {
    ...commonOf(row),
    mode: row.mode,
    format: row.format,
    dataset: row.dataset,
    ...(typeof row.request.instrument === 'string' && { instrument: row.request.instrument }),
    datasets: datasets.map(({ key }) => key),
    compression: row.request.compression ?? COMPRESSIONS[row.format][0],
    source: [...new Set(datasets.flatMap(({ sources }) => sources))].join(','),
    updated_at: row.updatedAt.toISOString(),
    progress: { rows: row.progress.rows, bytes: row.progress.bytes, attempt: row.fence },
    ...(row.artifact && { artifact: artifactOf(row) }),
    ...(row.errorCode !== null && { error_code: row.errorCode }),
    ...(row.errorMessage !== null && { error_message: row.errorMessage }),
  };
  const outcome = statusAnswer.safeParse(answer);
  if (outcome.success) return outcome.data;
  throw new Problem(
    'EXPORT_STATUS_METADATA_ERROR',
    'The stored status of the export is invalid. The operator has to repair it.',
    { cause: outcome.error },
  );
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
