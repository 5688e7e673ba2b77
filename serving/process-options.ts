/** How a process of ours is told what to do: on standard input, in the environment and in `.env`; and when to stop. */

import { text } from 'node:stream/consumers';
import { parseArgs } from 'node:util';
import { readSettings, settingsInvalid } from '../shared/config/load.ts';
import type { SettingName, Settings } from '../shared/config/settings.ts';
import { SAMPLE_MATRIX_PATH } from '../shared/rights/store.ts';
import { findFaults } from './startup.ts';

export interface ProcessOptions {
  readonly cwd?: string;
  /** Process id of who gave the order: it may be gone by the time it is looked for. */
  readonly parent?: number;
  readonly settings?: Partial<Record<SettingName, string>>;
  /** Use the sample rights matrix where no other is set: for the embedded stack alone. */
  readonly sample_rights?: boolean;
}

/** @returns also the process whose end is ours, where one gave the order. */
export async function readProcessOptions(): Promise<{
  readonly order: ProcessOptions;
  readonly parent: number | undefined;
}> {
  const { values } = parseArgs({ options: { stdin: { type: 'boolean', default: false } } });
  if (!values.stdin) return { order: {}, parent: undefined };
  const order = JSON.parse(await text(process.stdin)) as ProcessOptions;
  return { order, parent: order.parent ?? process.ppid };
}

const REQUIRED = ['SVC_DATABASE_URL', 'SVC_INTERNAL_API_KEY'] as const satisfies readonly SettingName[];

/**
 * The settings, if all of them can be used.
 * @throws TidemarkError CONFIGURATION_INVALID naming every one that cannot, and what else would keep reads from being
 * served: an operator who starts the service at night is to learn everything at once.
 */
export async function usable(order: ProcessOptions) {
  const { settings, faults } = readSettings({
    cwd: order.cwd,
    flags: order.settings,
    required: () => (order.sample_rights ? REQUIRED : [...REQUIRED, 'SVC_SOURCE_RIGHTS_MATRIX_PATH']),
  });
  const databaseUrl = settings.SVC_DATABASE_URL?.href;
  const rightsMatrixPath =
    settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (order.sample_rights ? SAMPLE_MATRIX_PATH : undefined);
  if (faults.length > 0) {
    const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
    throw settingsInvalid([...faults, ...(await findFaults({ databaseUrl, rightsMatrixPath, byokRole }))]);
  }
  return {
    settings: settings as Settings,
    databaseUrl: databaseUrl!,
    apiKey: settings.SVC_INTERNAL_API_KEY!,
    rightsMatrixPath: rightsMatrixPath!,
  };
}

/** A signal, or the end of the process that gave the work order. */
export function untilStopped(parent: number | undefined): Promise<void> {
  return new Promise((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve());
    if (parent === undefined) return;
    setInterval(() => {
      if (process.ppid !== parent) resolve();
    }, 1000).unref();
  });
}
