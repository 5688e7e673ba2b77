/** Pieces that the answers of several routes have in common. */
import { z } from 'zod';
import { DATASET_KEYS } from '../../shared/registry/index.ts';
import { RIGHTS_STATES } from '../../shared/rights/matrix.ts';
import { PROBLEMS, type ProblemCode } from '../contract/problems.ts';

export const utc = (doc: string) =>
  z
    .string()
    .regex(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
    .describe(doc);

export const sha256 = (doc: string) =>
  z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .describe(doc);

export const count = (doc: string) => z.int().min(0).describe(doc);

export const textField = (doc: string) => z.string().describe(doc);

export const flag = (doc: string) => z.boolean().describe(doc);

/** The same for each name. An object of these members says more than a record: which of them there are. */
export const membersOf = <Name extends string, S extends z.ZodType>(names: readonly Name[], schema: S) =>
  Object.fromEntries(names.map((name) => [name, schema])) as Record<Name, S>;

export const datasetKey = z.enum(DATASET_KEYS);

export const rightsState = z.enum(RIGHTS_STATES);

export const problemCode = z.enum(Object.keys(PROBLEMS) as [ProblemCode, ...ProblemCode[]]);

/** The rights an answer was given under. */
export const grantedRights = {
  rights_state: rightsState.describe('Under what right it is served.'),
  rights_provisional: flag('A temporary hosted path.'),
};

export const warning = z.strictObject({
  code: textField('Stable.'),
  message: textField('For people.'),
  details: z.record(z.string(), z.unknown()),
});

export const document = z.looseObject({
  name: textField('Name of the document.'),
  sha256: sha256('Of its bytes.'),
  bytes: count('Its size.'),
  granularity: textField('What one document holds: a day, a month.').optional(),
});
