/**
 * Own code beside the library that could replace it: the read connection and `pg`'s own interface (read-connection.ts), the
 * reading of a node's blocks and `JSON.parse` (block-json.ts). docs/dependencies.md quotes the figures and the decisions.
 *
 * Options: --rows N (500,000), --transactions N (2,000), --rounds N (7), --only connection|json, --json.
 */
import { type BlockJsonFigures, measureBlockJson } from './block-json.ts';
import { benchHarness } from './harness.ts';
import { optionsOf } from './options.ts';
import { measureReadConnection, type ReadConnectionFigures } from './read-connection.ts';

const PARTS = ['connection', 'json'] as const;

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, transactions, rounds, only, json } = optionsOf(argv, {
    counts: { rows: [500_000, 1], transactions: [2000, 1], rounds: [7, 1] },
    choices: { only: PARTS },
  });
  const wants = (part: string) => only === undefined || only === part;
  await using harness = await benchHarness('libraries');
  const { stack, note } = harness;
  let connection: ReadConnectionFigures | undefined;
  let blocks: BlockJsonFigures | undefined;
  if (wants('connection')) connection = await measureReadConnection(stack.databaseUrl, rows, rounds, note);
  if (wants('json')) blocks = await measureBlockJson(harness, transactions, rounds);
  const result = { bench: 'libraries', connection, block_json: blocks };
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${linesOf(result).join('\n')}\n`);
}

function linesOf(value: object, indent = ''): string[] {
  return Object.entries(value).flatMap(([name, member]) => {
    if (member === undefined) return [];
    if (typeof member !== 'object') return [`${indent}${name.padEnd(32 - indent.length)} ${member}`];
    return [`${indent}${name}`, ...linesOf(member, `${indent}  `)];
  });
}
