/** A real Bitcoin node for tests, in a folder of its own; it ends with its test, or with the next run. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { RpcClient, type RpcOptions } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import { type Bitcoind, type BitcoindOptions, startBitcoind } from '../../shared/stack/bitcoind.ts';
import { remember, temporaryDir, testLogger } from './stack.ts';

/** Use as `await using node = await createNode()`, or dispose in afterAll. */
export async function createNode(
  options: Partial<Pick<BitcoindOptions, 'chain' | 'configuration'>> = {},
): Promise<Bitcoind & { readonly dir: string }> {
  const dir = await temporaryDir();
  const forget = await remember(dir);
  const remove = async () => {
    await rm(dir, { recursive: true, force: true });
    await forget();
  };
  try {
    const node = await startBitcoind({ chain: 'regtest', log: testLogger(), ...options, dir: join(dir, 'node') });
    return Object.assign(Object.create(node) as Bitcoind, {
      dir,
      async [Symbol.asyncDispose]() {
        await node[Symbol.asyncDispose]();
        await remove();
      },
    });
  } catch (error) {
    await remove();
    throw error;
  }
}

/** The wrapped client of a node, numbers as texts. */
export async function rpcOf(
  node: Pick<Bitcoind, 'url' | 'user' | 'password'>,
  options: Partial<RpcOptions> = {},
): Promise<RpcClient> {
  return await RpcClient.open({
    url: new URL(node.url),
    user: node.user,
    password: node.password,
    timeoutMs: 30_000,
    maxAttempts: 1,
    parallel: 4,
    ...options,
  });
}
