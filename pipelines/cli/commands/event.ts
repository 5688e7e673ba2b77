import { datasetOf } from '../../../shared/registry/index.ts';
import { storedEvent } from '../../prove/event.ts';
import { openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';

export async function runEvent(command: ParsedCommand): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  await using context = await openContext(command, 'event');
  const needs = { pool: context.pool, connection: await context.nats(), dataset };
  const event = await storedEvent(needs, command.positionals[1], command.values.partition as string | undefined);
  context.output.answer({ command: 'event', ok: true, ...event }, () =>
    [
      event.payload_raw,
      '',
      `payload_sha256_raw  ${event.payload_sha256_raw}`,
      `event_id            ${event.event_id}`,
      `partition           ${event.partition}${event.synthetic ? ' (synthetic sample)' : ''}`,
      `stream_sequence     ${event.stream_sequence}`,
      `document            ${event.document.name}  sha256 ${event.document.sha256}`,
      `ingested_at_utc     ${event.ingested_at_utc}`,
    ].join('\n'),
  );
  return 0;
}
