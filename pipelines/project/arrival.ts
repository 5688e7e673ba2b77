/** Messages of the log as they arrive: unpacked ahead of their turn, or with what is wrong with them. */
import type { JsMsg } from '@nats-io/jetstream';
import { explain } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type Header } from '../../shared/frame/codec.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/** Which attempt a message is of. */
export type Name = Pick<Header, 'partition' | 'attempt'>;

export interface Readable<H extends Header = Header> {
  readonly message: JsMsg;
  readonly header: H;
  readonly body: Promise<Buffer>;
}

export type Arrived = Readable | { readonly message: JsMsg; readonly fault: string };

export function unpack(dataset: DatasetDefinition, message: JsMsg): Arrived {
  const place = `${dataset.key} sequence ${message.seq}`;
  try {
    const header = decodeHeader(message.data, place);
    const body = decodeBody(message.data, header, place);
    body.catch(() => {}); // surfaces when the frame's turn comes
    return { message, header, body };
  } catch (error) {
    return { message, fault: explain(error) };
  }
}
