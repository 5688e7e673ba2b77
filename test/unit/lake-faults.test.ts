/** What the process of a lake says of a fault: the code that an operator looks up, and that decides whether the lake is tried again. */
import { describe, expect, test } from 'vitest';
import { ConnectionLost } from '../../serving/db/pg-connection.ts';
import { ServerFault } from '../../serving/db/pg-messages.ts';
import { lakeFaultCode } from '../../serving/lake/lake.ts';
import { ReadFault } from '../../serving/read/read-model.ts';
import { TidemarkError } from '../../shared/errors.ts';

describe('the code of a fault', () => {
  test.each([
    ['a connection of the plan that was lost', new ConnectionLost('closed'), 'DATABASE_UNAVAILABLE'],
    ['a server that shuts down', new ServerFault({ C: '57P01', M: 'terminating' }), 'DATABASE_UNAVAILABLE'],
    ['a read without its backend', new ReadFault('backend', 'the read is lost'), 'DATABASE_UNAVAILABLE'],
    ['a read that took too long', new ReadFault('timeout', 'no row came in time'), 'DATABASE_UNAVAILABLE'],
    [
      'a socket that was reset',
      Object.assign(new Error(), { code: 'ECONNRESET', syscall: 'read' }),
      'DATABASE_UNAVAILABLE',
    ],
    ['a full disk', new TidemarkError('DISK_UNUSABLE', 'full'), 'DISK_UNUSABLE'],
    ['a statement of the lake that is wrong', new ServerFault({ C: '42P01', M: 'no such table' }), undefined],
    ['a mistake of the lake', new TypeError('x is undefined'), undefined],
  ])('%s', (_, error, code) => {
    expect(lakeFaultCode(error)).toBe(code);
  });
});
