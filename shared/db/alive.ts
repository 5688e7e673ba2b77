/**
 * Health check for containers whose process listens on no port: it passes when this machine has a database connection
 * whose name begins with the arguments. Projectors, followers and workers hold one for as long as they work. Each word of the
 * name is an argument, because some engines split arguments at blanks.
 *
 *     node shared/db/alive.ts tidemark projector
 */
import { loadSettings } from '../config/load.ts';
import { explain } from '../errors.ts';
import { connect } from './connect.ts';

const TIMEOUT_MS = 4000;

async function isConnected(prefix: string): Promise<boolean> {
  const { SVC_DATABASE_URL } = loadSettings({ cwd: process.cwd(), required: () => ['SVC_DATABASE_URL'] });
  const url = SVC_DATABASE_URL!.href;
  await using client = await connect({ url, name: 'tidemark health', connectTimeoutMs: TIMEOUT_MS });
  const { rows } = await client.query(
    `select 1 from pg_stat_activity where client_addr is not distinct from inet_client_addr()
       and starts_with(application_name, $1) and pid <> pg_backend_pid() and datname = current_database() limit 1`,
    [prefix],
  );
  return rows.length > 0;
}

try {
  const prefix = process.argv.slice(2).join(' ');
  if (!(await isConnected(prefix))) {
    process.stderr.write(`no process of this machine has a database connection named ${prefix}\n`);
    process.exitCode = 1;
  }
} catch (error) {
  process.stderr.write(`${explain(error)}\n`);
  process.exitCode = 1;
}
