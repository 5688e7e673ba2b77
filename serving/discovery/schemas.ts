/** Schemas that the answers of several routes share. */
import { z } from 'zod';
import { RIGHTS_STATES } from '../../shared/rights/matrix.ts';
import { PROBLEMS, type ProblemCode } from '../contract/problems.ts';
import { datasetKey } from '../contract/shapes.ts';

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

/** An object with the same schema for each name. Unlike a record, it states which members there are. */
export const membersOf = <Name extends string, S extends z.ZodType>(names: readonly Name[], schema: S) =>
  Object.fromEntries(names.map((name) => [name, schema])) as Record<Name, S>;

export { datasetKey };

/** Of answers for another instrument than the default. */
export const instrumentName = textField('The instrument, where it is not the default.').optional();

export const rightsState = z.enum(RIGHTS_STATES).meta({ id: 'RightsState' });

export const problemCode = z.enum(Object.keys(PROBLEMS) as [ProblemCode, ...ProblemCode[]]);

/** The rights that an answer was given under. */
export const grantedRights = {
  rights_state: rightsState.describe('The right under which the dataset is served.'),
  rights_provisional: flag('Whether the right is temporary.'),
};

export const warning = z
  .strictObject({
    code: textField('Code of the warning; it does not change.'),
    message: textField('Text for people.'),
    details: z.record(z.string(), z.unknown()),
  })
  .meta({ id: 'Warning' });

export const document = z.looseObject({
  name: textField('Name of the document.'),
  sha256: sha256('Digest of its bytes.'),
  bytes: count('Size of the document.'),
  granularity: textField('Period that one document covers: a day, a month.').optional(),
  etag: textField('As the vendor stated it.').optional(),
  last_modified: textField('As the vendor stated it.').optional(),
  fetched_ms: count('When it was fetched, epoch ms.').optional(),
});
