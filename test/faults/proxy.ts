/** A TCP proxy that cuts, delays, half-opens and refuses connections, and delivers messages of the log twice. */
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

type Side = 'client' | 'server';

export interface LinkProxy extends AsyncDisposable {
  readonly port: number;
  readonly name: string;
  /** Where connections go to; it may change. */
  target: { readonly host: string; readonly port: number };
  cut(): void;
  /** Bytes of both sides arrive so much later. */
  delay(ms: number): void;
  /** What this side says is lost, until `heal`. */
  silence(side: Side): void;
  refuse(): void;
  duplicate(): void;
  /** Ends every fault. Connections that lost something break. */
  heal(): void;
  connections(): number;
}

interface Pair {
  readonly client: Socket;
  readonly server: Socket;
  hasLost: boolean;
}

export async function startProxy(
  name: string,
  target: { readonly host: string; readonly port: number },
  { isLog = false } = {},
): Promise<LinkProxy> {
  const pairs = new Set<Pair>();
  const state = { delayMs: 0, silent: undefined as Side | undefined, isRefusing: false, isDoubling: false };
  const cut = (which: (pair: Pair) => boolean = () => true) => {
    for (const pair of pairs) {
      if (!which(pair)) continue;
      pair.client.destroy();
      pair.server.destroy();
    }
  };
  const listener = createServer((client) => {
    if (state.isRefusing) return void client.destroy();
    const server = connect(proxy.target);
    const pair: Pair = { client, server, hasLost: false };
    pairs.add(pair);
    const doubled = isLog ? doubler() : (bytes: Buffer) => bytes;
    carry(pair, client, server, (bytes) => (state.silent === 'client' ? undefined : bytes));
    carry(pair, server, client, (bytes) => {
      if (state.silent === 'server') return undefined;
      return doubled(bytes, state.isDoubling);
    });
  });
  const carry = (pair: Pair, from: Socket, to: Socket, passed: (bytes: Buffer) => Buffer | undefined) => {
    from.setNoDelay(true);
    let last = Promise.resolve();
    from.on('data', (chunk) => {
      const bytes = passed(chunk);
      if (bytes === undefined) {
        pair.hasLost = true;
        return;
      }
      const until = performance.now() + state.delayMs;
      const send = () => {
        if (!to.destroyed && !to.write(bytes)) {
          from.pause();
          to.once('drain', () => from.resume());
        }
      };
      // In order: what comes later waits for what came before.
      last = last.then(async () => {
        const waitMs = until - performance.now();
        if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
        send();
      });
    });
    from.on('error', () => {});
    from.on('end', () => void last.then(() => to.end()));
    from.on('close', () => {
      pairs.delete(pair);
      void last.then(() => to.destroySoon());
    });
  };
  const proxy: LinkProxy = {
    name,
    target,
    port: 0,
    cut: () => cut(),
    delay: (ms) => {
      state.delayMs = ms;
    },
    silence: (side) => {
      state.silent = side;
    },
    refuse: () => {
      state.isRefusing = true;
      cut();
    },
    duplicate: () => {
      state.isDoubling = true;
    },
    heal: () => {
      Object.assign(state, { delayMs: 0, silent: undefined, isRefusing: false, isDoubling: false });
      cut(({ hasLost }) => hasLost);
    },
    connections: () => pairs.size,
    async [Symbol.asyncDispose]() {
      cut();
      await new Promise((resolve) => listener.close(resolve));
    },
  };
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  return Object.assign(proxy, { port: (listener.address() as AddressInfo).port });
}

/**
 * Passes on what nats-server says and, while it is asked to, says each message of a stream twice (`MSG` and `HMSG` with the
 * reply subject of an acknowledgement). The framing is followed all the time, so that doubling may begin at any message.
 */
export function doubler(): (bytes: Buffer, isDoubling: boolean) => Buffer {
  let rest = Buffer.alloc(0);
  return (bytes, isDoubling) => {
    const data = Buffer.concat([rest, bytes]);
    const out: Buffer[] = [];
    let at = 0;
    while (at < data.length) {
      const end = data.indexOf('\r\n', at);
      if (end < 0) break;
      const words = data.toString('latin1', at, end).split(' ');
      const isMessage = words[0] === 'MSG' || words[0] === 'HMSG';
      const size = isMessage ? Number(words.at(-1)) + 2 : 0;
      const next = end + 2 + size;
      if (next > data.length) break;
      const whole = data.subarray(at, next);
      out.push(whole);
      if (isDoubling && isMessage && words.some((word) => word.startsWith('$JS.ACK.'))) out.push(whole);
      at = next;
    }
    rest = Buffer.from(data.subarray(at));
    return Buffer.concat(out);
  };
}
