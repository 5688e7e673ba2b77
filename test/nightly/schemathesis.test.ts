/**
 * Every operation of the OpenAPI document, asked by schemathesis: requests that the document allows, and requests that it does not.
 * The program shares nothing with the service and its tests. The seed is fixed: a failure is found again by the same command.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { startExports } from '../support/exports.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { API_KEY } from '../support/serving.ts';
import { createMigratedEnv } from '../support/stack.ts';
import { schemathesisPython } from '../support/tools.ts';

const SEED = 20_261;
/** Requests of each kind and operation, and the seconds that all of them may take. */
const EXAMPLES = 15;
const MAX_SECONDS = 80;

/** Operations whose schemas the program cannot draw from: it asks their examples and the bounds of their members. */
const UNDRAWN = '^/v1/raw/(query|estimate|export)$';
const RUNS = [
  ['--phases', 'examples,coverage,fuzzing', '--exclude-path-regex', UNDRAWN],
  ['--phases', 'examples,coverage', '--include-path-regex', UNDRAWN],
] as const;

/** What it takes for faults, and why these are none. */
const NOT_FAULTS = [
  // A request that the schema allows may still be refused: for rights, for a window that is not proved, for a form of answer.
  'positive_data_acceptance',
  // The service takes JSON whatever its Content-Type says, and reads `Accept` by preference: their schemas cannot say so.
  'negative_data_rejection',
  // Without a key, or with a wrong one, the answer is 409 by contract, where the program expects 401.
  'ignored_auth',
  'missing_required_header',
];

const tool = await schemathesisPython();

test.skipIf(tool.missing !== undefined).for(RUNS)(
  `no operation breaks its document: %j${tool.missing === undefined ? '' : ` (skipped: ${tool.missing})`}`,
  { timeout: 600_000 },
  async (which) => {
    await using env = await createMigratedEnv();
    await loadDays(env.databaseUrl, [randomDay('2024-03-01', 200, 1000, 1)]);
    await using exports = await startExports(env);
    const { serving } = exports;
    const folder = await mkdtemp(join(tmpdir(), 'tidemark-schemathesis-'));
    // One worker: with several, Python 3.11 fails while it describes a generator ("AST constructor recursion depth mismatch").
    const args = [
      ...['-m', 'schemathesis.cli', 'run', `${serving.url}/openapi.json`, '--header', `X-API-Key: ${API_KEY}`],
      ...['--seed', String(SEED), '--max-examples', String(EXAMPLES), '--max-time', String(MAX_SECONDS)],
      ...[...which, '--generation-database', 'none', '--request-timeout', '20'],
      ...['--exclude-checks', NOT_FAULTS.join(','), '--continue-on-failure', '--no-color', '--workers', '1'],
    ];
    const child = spawn(tool.path, args, { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] });
    const [said, complained, code] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      new Promise<number | null>((resolve) => child.once('exit', resolve)),
    ]);
    await rm(folder, { recursive: true });
    expect(code, `${said.slice(-20_000)}\n${complained.slice(-2000)}`).toBe(0);
  },
);
