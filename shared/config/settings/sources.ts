/** Settings of the Bitcoin node. */
import type { Setting } from './setting.ts';

export const BITCOIN = {
  SVC_BITCOIN_RPC_URL: {
    group: 'Sources',
    kind: 'url',
    schemes: ['http:', 'https:'],
    doc: 'RPC endpoint of the unpruned Bitcoin node to read instead of the embedded one.',
  },
  SVC_BITCOIN_RPC_USER: { group: 'Sources', kind: 'string', doc: "User of the node's RPC." },
  SVC_BITCOIN_RPC_PASSWORD: { group: 'Sources', kind: 'string', secret: true, doc: "Password of the node's RPC." },
  SVC_BITCOIN_NETWORK: {
    group: 'Sources',
    kind: 'choice',
    choices: ['main', 'test', 'testnet4', 'signet', 'regtest'],
    default: 'main',
    doc: 'Chain that the node must be on, by the name that the node gives it.',
  },
  SVC_BITCOIN_RPC_TIMEOUT_SECONDS: {
    group: 'Sources',
    kind: 'integer',
    unit: 's',
    default: '60',
    min: 1,
    max: 3600,
    doc: 'Longest wait for one whole answer of the node; after it the call is retried.',
  },
  SVC_BITCOIN_CONFIRMATION_DEPTH: {
    group: 'Sources',
    kind: 'integer',
    unit: 'blocks',
    min: 0,
    max: 10_000,
    doc: 'Blocks that must follow a block before it is ingested. Unset: 6, on regtest 0.',
  },
  SVC_BITCOIN_HEADERS_START_HEIGHT: {
    group: 'Sources',
    kind: 'integer',
    default: '0',
    min: 0,
    max: 100_000_000,
    doc: 'First height that is ingested, for all six chain datasets.',
  },
  SVC_BITCOIN_HEADERS_END_HEIGHT: {
    group: 'Sources',
    kind: 'integer',
    min: 0,
    max: 100_000_000,
    doc: 'Last height that is ingested, for all six chain datasets. Unset: as far as the chain goes.',
  },
  SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: {
    group: 'Sources',
    kind: 'integer',
    unit: 's',
    default: '600',
    min: 0,
    max: 86_400,
    doc: '`follow bitcoin` takes a mempool snapshot this often; 0: never.',
  },
} as const satisfies Record<string, Setting>;
