/** What a test file needs that only asks: a database of its own, and the service over it. */
import { afterAll, beforeAll } from 'vitest';
import { type Serving, type ServingOptions, startServing } from './serving.ts';
import type { TestEnv } from './stack.ts';

export interface ServedEnv {
  readonly env: TestEnv;
  readonly serving: Serving;
}

/** Made before the first test of the file and gone after its last; its members may be read in between. */
export function servedEnv(create: () => Promise<TestEnv>, options: Pick<ServingOptions, 'now'> = {}): ServedEnv {
  let env: TestEnv | undefined;
  let serving: Serving | undefined;
  beforeAll(async () => {
    env = await create();
    serving = await startServing({ databaseUrl: env.databaseUrl, ...options });
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
  });
  return {
    get env() {
      return env!;
    },
    get serving() {
      return serving!;
    },
  };
}
