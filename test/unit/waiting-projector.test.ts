/** A projector's process that starts before its command knows its servers. */
import { expect, test } from 'vitest';
import { PROCESS_IO } from '../../pipelines/cli/io.ts';
import { WaitingProjector } from '../../pipelines/cli/projector.ts';
import { childrenOf } from '../support/command.ts';

const start = () => new WaitingProjector(PROCESS_IO, false);

test('ends without a fault when its command ends before it has options', async () => {
  const { child, exited } = start().take()!;
  // What the end of the command's process does, whatever ended it.
  child.stdin!.end();
  expect(await exited).toEqual([0, null]);
});

test('is ended by a command that needs no projector', async () => {
  const before = childrenOf(process.pid, 'projector/main.ts');
  await using projector = start();
  const during = childrenOf(process.pid, 'projector/main.ts');
  expect(during).toHaveLength(before.length + 1);
  await projector[Symbol.asyncDispose]();
  expect(childrenOf(process.pid, 'projector/main.ts')).toEqual(before);
});

test('becomes the projector of one feed alone', async () => {
  await using projector = start();
  const first = projector.take()!;
  expect(projector.take()).toBeUndefined();
  await projector[Symbol.asyncDispose]();
  expect(first.child.signalCode).toBeNull();
  first.child.kill('SIGKILL');
  await first.exited;
});
