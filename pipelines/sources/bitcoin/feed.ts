/** Bitcoin, by a node: its adapter. Blocks feed six datasets together, snapshots of the mempool one. */
import type { Adapter } from '../feed-types.ts';
import { chainFeed } from './chain-feed.ts';
import { NODE_PROJECTIONS } from './datasets.ts';
import { mempoolFeed } from './mempool-feed.ts';

export const bitcoin: Adapter = { feeds: [chainFeed, mempoolFeed], projections: NODE_PROJECTIONS };
