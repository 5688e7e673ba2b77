/** Checks of rights: what is proved may be served, or is kept back on purpose. */
import { createLogger } from '../../../shared/log/logger.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import type { SourceRights } from '../../../shared/rights/matrix.ts';
import { RightsStore, SAMPLE_MATRIX_PATH } from '../../../shared/rights/store.ts';
import { type Check, type Finding, fault, type Patient, warning } from './types.ts';

const OWN_MATRIX =
  './tidemark rights init, fill in the forms it makes, and name the matrix in SVC_SOURCE_RIGHTS_MATRIX_PATH';
const FORMAT = 'see docs/security.md, rights';

const rights: Check = {
  name: 'rights',
  doc: 'the rights matrix can be used, and covers the rows that sources published',
  needs: ['database'],
  async run({ settings, database, datasets }) {
    // With a database of the operator's own the service may be told elsewhere which matrix it uses.
    const isEmbedded = settings.SVC_DATABASE_URL === undefined;
    const path = settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (isEmbedded ? SAMPLE_MATRIX_PATH : undefined);
    if (path === undefined) return [];
    const log = createLogger('silent', 'doctor');
    const store = new RightsStore(path, { byokRole: settings.SVC_BYOK_DATABASE_ROLE, log });
    const current = store.current();
    if ('faults' in current) return current.faults.map((what) => fault(path, what, `correct it; ${FORMAT}`));
    const real = await realDatasets(database);
    return datasets
      .filter(({ number }) => real.has(number))
      .flatMap((dataset) => findingsOf(dataset, store, current.matrix.sources));
  },
};

/** Numbers of datasets that hold rows which a source published. */
async function realDatasets(database: Patient['database']): Promise<ReadonlySet<number>> {
  const { rows } = await database.query(
    `select dataset_id from coverage c where proved <> '{}' and not synthetic
       or exists (select from partitions p where p.dataset_id = c.dataset_id and state = 'proved' and not synthetic)`,
  );
  return new Set(rows.map(({ dataset_id }) => Number(dataset_id)));
}

function findingsOf(dataset: DatasetDefinition, store: RightsStore, declared: readonly SourceRights[]): Finding[] {
  const sources = declared.filter(({ datasets }) => (datasets as readonly string[]).includes(dataset.key));
  const undeclared = dataset.sources.filter((key) => !sources.some(({ source }) => source === key));
  if (undeclared.length > 0) {
    const what = `is proved and refused: the matrix does not declare ${undeclared.join(', ')}`;
    return [warning(dataset.key, what, `declare every source of it; ${FORMAT}`)];
  }
  // Kept back on purpose, whatever the artifacts say.
  if (sources.some(({ state }) => state === 'Ingest Only')) return [];
  const hosted = sources.filter(({ state }) => state === 'Hosted Allowed');
  const reasons = Map.groupBy(hosted, (source) => {
    const { fault: missing, syntheticOnly } = store.signoff(source);
    return missing === undefined ? (syntheticOnly ?? '') : `not to be shown: ${missing}`;
  });
  reasons.delete('');
  return [...reasons].map(([why, of]) => {
    const names = of.map(({ source }) => source).join(', ');
    return fault(dataset.key, `rows that were published are refused; the sign-off of ${names} is ${why}`, OWN_MATRIX);
  });
}

export const RIGHTS_CHECKS: readonly Check[] = [rights];
