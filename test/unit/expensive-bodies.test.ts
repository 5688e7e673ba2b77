/** Bodies whose faults cost more than their requests: work on them ends at the limits that are documented. */
import { expect, test } from 'vitest';
import { parseExport } from '../../serving/contract/export.ts';
import { historicalParser } from '../../serving/contract/historical.ts';
import { type ContractFault, MAX_FAULTS, Problem } from '../../serving/contract/problems.ts';
import { parseQuery } from '../../serving/contract/query.ts';
import { contractProblem } from '../../serving/http/request.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { type Json, JsonFault, parseJson } from '../../shared/strict-json.ts';

const list = (length: number, of: (index: number) => string) =>
  `[${Array.from({ length }, (_, n) => of(n)).join(',')}]`;
const keys = (length: number, name = 'k') => `{${Array.from({ length }, (_, n) => `"${name}${n}":1`).join(',')}}`;
const SOURCES = '"sources":["exchange_a_spot_trades"]';

const faultsOf = (parse: (body: Json) => object, body: string): readonly ContractFault[] =>
  (parse(parseJson(body)) as { readonly faults: readonly ContractFault[] }).faults;

test('a body of 95,000 unknown keys was kept whole and each of them made a fault', () => {
  for (const body of [keys(95_000), `{${SOURCES},"filters":${list(64, (n) => keys(1500, `${n}k`))}}`]) {
    expect(() => parseJson(body)).toThrow(JsonFault);
    expect(() => parseJson(body)).toThrow(/^more than 1000 keys, at offset \d+$/);
  }
  expect(Object.keys(parseJson(keys(1000)) as object)).toHaveLength(1000);
});

test('faults are collected as far as an answer names them, and no further', () => {
  const historical = historicalParser(datasetOf('exchange_a_spot_trades'), 'rows');
  const values = `${SOURCES},"filters":${list(52, () => `{"field":"price","op":"in","value":${list(9000, () => '""')}}`)}`;
  for (const [parse, body] of [
    [parseQuery, keys(1000)],
    [parseExport, keys(1000)],
    [historical, keys(1000)],
    [parseQuery, `{${values}}`],
  ] as const) {
    const faults = faultsOf(parse, body);
    expect(faults.length).toBeGreaterThan(MAX_FAULTS);
    expect(faults.length).toBeLessThan(2 * MAX_FAULTS);
  }
});

test('the answer names a hundred faults, says that there are more, and does not say how many it did not look for', () => {
  const faults = faultsOf(parseQuery, keys(1000));
  const problem = contractProblem(faults);
  expect(problem).toBeInstanceOf(Problem);
  expect(problem.message).toMatch(/\(and more\)\.$/);
  const { errors } = problem.body('id') as { errors: ContractFault[] };
  expect(errors).toHaveLength(MAX_FAULTS + 1);
  expect(errors.at(-1)).toEqual({ pointer: '', message: 'and more' });
  expect(contractProblem(faults.slice(0, 3)).message).toMatch(/\(and 2 more\)\.$/);
});
