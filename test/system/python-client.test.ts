/** The Python client against a service with rows of every dataset: what needs no log and no exports. */

import { pythonTests } from '../support/python-tests.ts';
import { servedEnv } from '../support/served-env.ts';
import { API_KEY } from '../support/serving.ts';
import { clientPython } from '../support/tools.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const served = servedEnv(createWorldsEnv);

await pythonTests('the Python client', {
  python: await clientPython(),
  files: ['test_units.py', 'test_proof_formats.py', 'test_answers.py', 'test_manners.py'],
  environment: () => ({ TIDEMARK_URL: served.serving.url, TIDEMARK_KEY: API_KEY }),
});
