/** A Bitcoin node from the distribution's backports, for samples and tests: got only when one is wanted. */
import { join } from 'node:path';
import { ensurePackages, type InstallOptions, type Recipe } from './packages.ts';
import { run } from './run.ts';

const BITCOIND = 'usr/bin/bitcoind';

const NODE: Recipe = {
  name: 'bitcoin',
  what: 'a Bitcoin node',
  names: ['bitcoin-knots', 'patchelf'],
  backports: true,
  unused: ['usr/share/bash-completion', 'usr/lib/systemd', 'usr/share/fish'],
  programs: async (root) => [join(root, BITCOIND), join(root, 'usr/bin/bitcoin-cli')],
  async smokeTest(prefix) {
    await run(join(prefix, BITCOIND), ['--version']);
  },
};

/** Path of the program, installing it first if needed. @throws TidemarkError as `ensurePackages`. */
export async function ensureBitcoind(options: InstallOptions): Promise<string> {
  return join(await ensurePackages(NODE, options), BITCOIND);
}
