/** The statements that the service in this process sends to its database. */
import { vi } from 'vitest';
import { PgConnection } from '../../serving/db/pg-connection.ts';

/** How many of those that the work sends hold a text. */
export async function statementsWith(text: string, work: () => Promise<unknown>): Promise<number> {
  const run = vi.spyOn(PgConnection.prototype, 'run');
  try {
    await work();
    return run.mock.calls.flat(2).filter(({ statement }) => statement.text.includes(text)).length;
  } finally {
    run.mockRestore();
  }
}
