/** The files of an export: its artifact, whole or one of several, and its manifest. Ranges let a client resume a download. */
import { COMPRESSIONS, EXPORT_FORMATS } from '../contract/export.ts';
import { Problem } from '../contract/problems.ts';
import { PREFIX } from '../exports/answers.ts';
import { formatOf } from '../exports/artifact/write.ts';
import type { ProvedFiles } from '../exports/files.ts';
import { datasetsOf, type ExportRow, type StoredFile } from '../exports/rows.ts';
import { exportRights, requireGrants } from '../exports/states.ts';
import { requireAccept } from '../http/answer.ts';
import { NO_PARAMETERS } from '../http/request.ts';
import type { Exchange, Route } from '../http/routes.ts';
import { fileContent, type RouteDoc, type SegmentDoc, SYNTHETIC_HEADER, VALIDATOR_HEADERS } from '../http/routes.ts';
import { sendFile } from '../http/send-file.ts';
import {
  EXPORT_ID,
  EXPORT_RIGHTS_PROBLEMS,
  type ExportRouteDeps,
  exportOf,
  exportParams,
  exportSegment,
  factsOf,
} from './exports.ts';

export interface ExportFileDeps extends ExportRouteDeps {
  readonly files: ProvedFiles;
  readonly stallTimeoutMs: number;
}

/** Chooses the file of an export that the path asks for. @throws Problem */
type FileChoice = (row: ExportRow, params: Exchange['params']) => StoredFile;

interface FileRoute {
  readonly path: string;
  readonly pick: FileChoice;
  readonly isManifest?: boolean;
  readonly doc: Pick<RouteDoc, 'operation' | 'summary' | 'doc'> & { readonly content: readonly string[] };
  readonly segments?: Readonly<Record<string, SegmentDoc>>;
  readonly problems?: RouteDoc['problems'];
  readonly example?: Readonly<Record<string, string>>;
}

const MANIFEST_TYPE = 'application/json';
/** Of each format in each compression. A media type in OpenAPI has no parameters. */
const FILE_TYPES = [
  ...new Set(
    EXPORT_FORMATS.flatMap((format) =>
      COMPRESSIONS[format].map((compression) => formatOf(format, compression).mediaType.split(';')[0]),
    ),
  ),
];

const ROUTES: readonly FileRoute[] = [
  {
    path: `${PREFIX}/:export_id/artifact`,
    pick: ({ exportId, artifact }) => {
      const { files, split } = artifact!;
      if (split === 'none') return files[0];
      throw new Problem(
        'EXPORT_ARTIFACT_SPLIT',
        'The artifact is split by day. Read the names of its files from the manifest or the status.',
        {
          headers: { Location: `${PREFIX}/${exportId}/manifest` },
        },
      );
    },
    problems: ['EXPORT_ARTIFACT_SPLIT'],
    doc: {
      operation: 'downloadExport',
      summary: 'The file of an export',
      doc: 'The service hashes the file before it sends any of it. To resume a download, send `Range: bytes=n-` and `If-Range` with the `ETag`, which is the checksum. `HEAD` returns only size and checksum. For an artifact that is split by day the answer is 303, and `Location` leads to the manifest, which lists them.',
      content: FILE_TYPES,
    },
  },
  {
    path: `${PREFIX}/:export_id/artifact/:file`,
    pick: ({ artifact }, { file: name }) => {
      const file = artifact!.files.find((one) => one.name === name);
      if (file) return file;
      throw new Problem(
        'EXPORT_NOT_FOUND',
        'The artifact has no file of this name. Read the names from the status of the export.',
      );
    },
    segments: { file: { doc: 'Name of the file, as the status lists it.', schema: { type: 'string' } } },
    example: { file: '$EXPORT_FILE' },
    doc: {
      operation: 'downloadExportFile',
      summary: 'One file of an export, by its name',
      doc: 'An artifact that was split by day has several files.',
      content: FILE_TYPES,
    },
  },
  {
    path: `${PREFIX}/:export_id/manifest`,
    pick: ({ artifact }) => artifact!.manifest,
    isManifest: true,
    doc: {
      operation: 'downloadExportManifest',
      summary: 'The manifest of an export',
      doc: 'What the file holds and what proves it: schema, window, rows, checksums, warnings, and the partitions with the digests that proved them.',
      content: [MANIFEST_TYPE],
    },
  },
];

export const exportFileRoutes = (deps: ExportFileDeps): Route[] => ROUTES.map((route) => fileRoute(route, deps));

function fileRoute(route: FileRoute, deps: ExportFileDeps): Route {
  const { store, directories, audit, rights, files, stallTimeoutMs } = deps;
  return {
    method: 'GET',
    path: route.path,
    access: 'export',
    keyRefused: (exchange, code) => audit.refusedKey({ ...factsOf(exchange), code }),
    doc: () => docOf(route),
    async handle(exchange) {
      const { request, params, url } = exchange;
      exportParams(url, NO_PARAMETERS);
      const row = await exportOf(store, exchange);
      // A right that was withdrawn also applies to earlier exports.
      const granted = exportRights(rights, datasetsOf(row));
      if (!row.artifact) {
        const why = row.errorCode === null ? '' : ` (${row.errorCode})`;
        throw new Problem(
          'EXPORT_ARTIFACT_NOT_READY',
          `The export is ${row.state}${why} and has no artifact. Read its status, or submit it again.`,
        );
      }
      requireGrants(granted, row.artifact);
      if (row.isExpired) {
        throw new Problem(
          'EXPORT_ARTIFACT_EXPIRED',
          `The artifact was kept until ${row.expiresAt!.toISOString()}. Submit the export again.`,
        );
      }
      const file = route.pick(row, params);
      const type = route.isManifest ? MANIFEST_TYPE : row.artifact.media_type;
      // The path of a split artifact redirects to the manifest, whatever type of file the client accepts.
      if (!route.isManifest) requireAccept(request, type.split(';')[0]);
      const handle = await files.open(directories.artifact(row.exportId, row.artifactFence!), file);
      try {
        await sendFile(exchange, {
          handle,
          etag: `"${file.sha256}"`,
          bytes: file.bytes,
          modifiedMs: file.modified_ms,
          stallTimeoutMs,
          onSent: (bytes) =>
            audit.downloaded({
              exportId: row.exportId,
              file: file.name,
              bytes,
              apiKey: exchange.caller.name,
              clientAddress: request.socket.remoteAddress ?? null,
              requestId: exchange.requestId,
            }),
          headers: {
            'Content-Type': type,
            'Content-Disposition': `attachment; filename="${route.isManifest ? `${row.exportId}.json` : file.name}"`,
            'X-Content-Type-Options': 'nosniff',
            'Cache-Control': 'private, no-cache',
            ...(row.artifact.synthetic && { 'X-Svc-Synthetic': 'true' }),
          },
        });
      } finally {
        await handle.close();
      }
    },
  };
}

function docOf({ doc: { content, ...doc }, segments, problems = [], example }: FileRoute): RouteDoc {
  const headers = {
    ...VALIDATOR_HEADERS,
    ETag: 'The sha256 of the file.',
    'Accept-Ranges': '`bytes`.',
  };
  const withContent = { ...headers, 'Content-Disposition': 'A file name.', ...SYNTHETIC_HEADER };
  return {
    tag: 'export',
    ...doc,
    segments: { ...exportSegment, ...segments },
    query: NO_PARAMETERS,
    headers: ['Range', 'If-Range', 'If-Match', 'If-None-Match', 'If-Modified-Since', 'If-Unmodified-Since'],
    answers: [
      { doc: 'The file.', content: fileContent(content), headers: withContent },
      {
        status: 206,
        doc: 'The part of the file that `Range` asks for.',
        content: fileContent(content, { isPart: true }),
        headers: { ...withContent, 'Content-Range': 'The part that the answer holds.' },
      },
      { status: 304, doc: 'The client already has the file.', content: {}, headers },
    ],
    problems: [
      'EXPORT_CONTRACT_ERROR',
      'EXPORT_NOT_FOUND',
      ...EXPORT_RIGHTS_PROBLEMS,
      'EXPORT_ARTIFACT_NOT_READY',
      'EXPORT_ARTIFACT_EXPIRED',
      'EXPORT_PRECONDITION_FAILED',
      'EXPORT_RANGE_NOT_SATISFIABLE',
      'EXPORT_STATUS_ERROR',
      'EXPORT_ARTIFACT_METADATA_ERROR',
      ...problems,
    ],
    examples: [{ title: 'One of your exports', path: { export_id: EXPORT_ID, ...example } }],
    hasHead: true,
  };
}
