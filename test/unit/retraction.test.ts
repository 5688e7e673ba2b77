/** A feed's retractions are carried out between its documents, and the feed learns of one that fails. */
import { expect, test } from 'vitest';
import { documentsOf } from '../../pipelines/cli/retraction.ts';
import type {
  AvailabilityEvent,
  DocumentEvent,
  FeedEvents,
  RetractionEvent,
} from '../../pipelines/sources/feed-types.ts';
import { bitcoinBlockHeaders as dataset } from '../../shared/registry/datasets/bitcoin_block_headers.ts';

const document = (period: string): DocumentEvent => ({ kind: 'document', request: { period, partitions: [] } });
const retraction = (from: number): RetractionEvent => ({
  kind: 'retraction',
  dataset,
  span: { from, to: from + 1 },
  code: 'CHAIN_REORGANISED',
  reason: 'other blocks',
});

/** Keeps what happens in order: `steps` of a feed and of its consumer. */
async function stepsOf(
  feed: (steps: string[]) => FeedEvents,
  retract: (from: number, steps: string[]) => Promise<void>,
): Promise<string[]> {
  const steps: string[] = [];
  try {
    for await (const { period } of documentsOf(feed(steps), ({ span }) => retract(span.from, steps)))
      steps.push(period);
  } catch (error) {
    steps.push(`thrown: ${(error as Error).message}`);
  }
  return steps;
}

test('a retraction is carried out before the feed goes on', async () => {
  const feed = async function* (steps: string[]): FeedEvents {
    yield document('a');
    yield retraction(7);
    steps.push('the feed goes on');
    yield retraction(8);
    yield document('b');
  };
  const retract = async (from: number, steps: string[]) => {
    steps.push(`begin ${from}`);
    await new Promise(setImmediate);
    steps.push(`end ${from}`);
  };
  expect(await stepsOf(feed, retract)).toEqual([
    ...['a', 'begin 7', 'end 7', 'the feed goes on'],
    ...['begin 8', 'end 8', 'b'],
  ]);
});

test('the consumer learns between documents whether the source answers', async () => {
  const steps: string[] = [];
  const feed = async function* (): FeedEvents {
    yield { kind: 'availability', failures: 1, fault: 'refused' };
    yield { kind: 'availability', failures: 0, fault: null };
    yield document('a');
  };
  const note = ({ failures, fault }: AvailabilityEvent) => steps.push(`${failures} ${fault}`);
  for await (const { period } of documentsOf(feed(), async () => {}, note)) steps.push(period);
  expect(steps).toEqual(['1 refused', '0 null', 'a']);
});

test('one that fails is thrown into the feed, which may go on or not', async () => {
  const feed = (isPatient: boolean) =>
    async function* (steps: string[]): FeedEvents {
      try {
        yield retraction(7);
        steps.push('not reached');
      } catch (error) {
        if (!isPatient) throw error;
        steps.push((error as Error).message);
      }
      yield document('a');
    };
  const retract = async () => {
    throw new Error('the log is away');
  };
  expect(await stepsOf(feed(true), retract)).toEqual(['the log is away', 'a']);
  expect(await stepsOf(feed(false), retract)).toEqual(['thrown: the log is away']);
});

test('a consumer that stops ends the feed', async () => {
  const steps: string[] = [];
  const feed = async function* (): FeedEvents {
    try {
      yield document('a');
      yield document('b');
    } finally {
      steps.push('ended');
    }
  };
  for await (const { period } of documentsOf(feed(), async () => {})) {
    steps.push(period);
    break;
  }
  expect(steps).toEqual(['a', 'ended']);
});
