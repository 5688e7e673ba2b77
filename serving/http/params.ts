/** What a request says in its URL: the dataset of its path, and parameters behind the question mark. */
import type { z } from 'zod';
import { DATASET_KEYS, DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { type ContractFault, MAX_FAULTS, Problem, type ProblemCode } from '../contract/problems.ts';

/** @throws Problem DATASET_NOT_FOUND */
export function datasetParam(key: string): DatasetDefinition & { readonly key: DatasetKey } {
  const dataset = DATASETS.get(key) as (DatasetDefinition & { readonly key: DatasetKey }) | undefined;
  if (!dataset) throw new Problem('DATASET_NOT_FOUND', `The datasets are ${DATASET_KEYS.join(', ')}.`);
  return dataset;
}

/** The parameters as the schema has them. @throws Problem QUERY_CONTRACT_ERROR with every fault, `?name` for a pointer. */
export function queryParams<S extends z.ZodObject>(url: URL, schema: S): z.output<S> {
  const given: Record<string, string> = Object.create(null);
  const faults: ContractFault[] = [];
  for (const [name, value] of url.searchParams) {
    if (name in given) faults.push({ pointer: pointerOf(name), message: 'is given twice' });
    given[name] = value;
  }
  const known = Object.keys(schema.shape);
  const outcome = schema.safeParse(given);
  for (const issue of outcome.success ? [] : outcome.error.issues) {
    if (issue.code === 'unrecognized_keys') {
      const message =
        known.length === 0 ? 'is no parameter: this path takes none' : `is no parameter; known: ${known.join(', ')}`;
      faults.push(...issue.keys.map((name) => ({ pointer: pointerOf(name), message })));
    } else faults.push({ pointer: pointerOf(String(issue.path[0] ?? '')), message: issue.message });
  }
  if (faults.length === 0 && outcome.success) return outcome.data;
  throw contractProblem(faults);
}

const pointerOf = (name: string) => `?${name}`;

export function contractProblem(errors: readonly ContractFault[], code: ProblemCode = 'QUERY_CONTRACT_ERROR'): Problem {
  const [first] = errors;
  const others = errors.length > MAX_FAULTS ? 'more' : `${errors.length - 1} more`;
  const more = errors.length > 1 ? ` (and ${others})` : '';
  return new Problem(code, `${first.pointer || 'The body'} ${first.message}${more}.`, { errors });
}
