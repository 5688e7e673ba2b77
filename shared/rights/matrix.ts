/** The rights matrix: what each source's licence allows. One fault makes the whole matrix invalid. */

import { z } from 'zod';
import { DATASET_KEYS, DATASETS, type DatasetKey } from '../registry/index.ts';
import { type Json, JsonFault, JsonLimit, parseJson } from '../strict-json.ts';

/** The sources that feed a dataset, by the registry. Each must have a rights state. */
export const sourcesOf = (dataset: DatasetKey): readonly string[] => DATASETS.get(dataset)!.sources;

export const feeds = (source: string, dataset: DatasetKey): boolean => sourcesOf(dataset).includes(source);

export const isSource = (source: string): boolean =>
  [...DATASETS.values()].some((dataset) => dataset.sources.includes(source));

/** Most restrictive first. */
export const RIGHTS_STATES = ['Ingest Only', 'BYOK Required', 'Hosted Allowed'] as const;
export type RightsState = (typeof RIGHTS_STATES)[number];

export interface SourceRights {
  readonly source: string;
  readonly state: RightsState;
  readonly provisional: boolean;
  readonly datasets: readonly DatasetKey[];
  /** Path as the matrix gives it, relative to the matrix file. */
  readonly artifact: string | undefined;
  readonly artifactSha256: string | undefined;
}

export interface Matrix {
  readonly version: string;
  readonly sources: readonly SourceRights[];
}

/** The matrix is invalid; `faults` names every faulty member for the operator. */
export class MatrixInvalid extends Error {
  override readonly name = 'MatrixInvalid';
  readonly faults: readonly string[];

  constructor(faults: readonly string[]) {
    super(`The rights matrix is invalid: ${faults.join('; ')}`);
    this.faults = faults;
  }
}

const entrySchema = z.strictObject({
  rights_state: z.enum(RIGHTS_STATES),
  rights_provisional: z.boolean(),
  datasets: z.array(z.enum(DATASET_KEYS)).min(1),
  source_ids: z.array(z.string().min(1)).optional(),
  legal_signoff_artifact: z.string().min(1).optional(),
  legal_signoff_sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/i, 'must be 64 hexadecimal digits')
    .optional(),
});

const matrixSchema = z.strictObject({
  version: z.union([z.string().min(1), z.number()]),
  sources: z.record(z.string(), entrySchema),
});

/** @throws MatrixInvalid */
export function parseMatrix(bytes: Uint8Array, options: { readonly byokRole: string | undefined }): Matrix {
  const json = jsonOf(bytes);
  const outcome = matrixSchema.safeParse(json);
  if (!outcome.success) {
    throw new MatrixInvalid(outcome.error.issues.map((issue) => `${issue.path.join('.') || 'file'}: ${issue.message}`));
  }
  const faults: string[] = [];
  const sources = Object.entries(outcome.data.sources).map(([source, entry]): SourceRights => {
    if (!isSource(source)) faults.push(`sources.${source}: there is no such source`);
    for (const dataset of entry.datasets) {
      if (isSource(source) && !feeds(source, dataset))
        faults.push(`sources.${source}.datasets: the source does not feed ${dataset}`);
    }
    if (entry.rights_provisional && entry.rights_state !== 'Hosted Allowed') {
      faults.push(`sources.${source}.rights_provisional: allowed only with Hosted Allowed`);
    }
    if (entry.rights_state === 'BYOK Required' && options.byokRole === undefined) {
      faults.push(`sources.${source}: BYOK Required needs the setting SVC_BYOK_DATABASE_ROLE`);
    }
    if (entry.legal_signoff_sha256 !== undefined && entry.legal_signoff_artifact === undefined) {
      faults.push(`sources.${source}.legal_signoff_sha256: needs legal_signoff_artifact`);
    }
    return {
      source,
      state: entry.rights_state,
      provisional: entry.rights_provisional,
      datasets: entry.datasets,
      artifact: entry.legal_signoff_artifact,
      artifactSha256: entry.legal_signoff_sha256?.toLowerCase(),
    };
  });
  if (faults.length > 0) throw new MatrixInvalid(faults);
  return { version: String(outcome.data.version), sources };
}

/** Parses strictly: a source that is declared twice makes the matrix invalid. */
function jsonOf(bytes: Uint8Array): Json {
  try {
    return parseJson(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (error) {
    if (error instanceof JsonLimit) throw new MatrixInvalid([error.message]);
    throw new MatrixInvalid([`not JSON: ${error instanceof JsonFault ? error.message : 'not UTF-8 text'}`]);
  }
}
