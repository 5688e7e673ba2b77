/**
 * Settings that select what is read of a source, such as the symbol of an exchange; the registry names them. The first proof of
 * what a source published pins their values, in its transaction: with another value, rows of something else would be proved beside
 * it. A sample pins nothing. Where a source lies may change at any time.
 */

import type { ClientBase, Pool } from 'pg';
import { type SettingName, type Settings, settingValue } from '../config/settings.ts';
import { TidemarkError } from '../errors.ts';
import type { Manifest } from '../frame/manifest.ts';
import type { DatasetDefinition } from '../registry/index.ts';

/** Values by setting. */
export type PinnedValues = Readonly<Record<string, string>>;

export interface Pin {
  readonly setting: string;
  readonly value: string;
  /** The proof that pinned it. */
  readonly dataset: string;
  readonly partition: string;
}

/** A setting that was given another value than the pinned one. */
export interface PinConflict {
  readonly pin: Pin;
  readonly given: string;
}

type Datasets = readonly Pick<DatasetDefinition, 'pinned'>[];

const namesOf = (datasets: Datasets): string[] => [...new Set(datasets.flatMap(({ pinned = [] }) => pinned))];

/** What the settings select of the datasets' sources; a manifest states it. */
export const selectedValues = (settings: Settings, datasets: Datasets): PinnedValues =>
  Object.fromEntries(namesOf(datasets).map((name) => [name, String(settingValue(settings, name))]));

/** The pins of the settings that the datasets name. */
export async function readPins(client: ClientBase | Pool, datasets: Datasets): Promise<Pin[]> {
  const names = namesOf(datasets);
  if (names.length === 0) return [];
  const { rows } = await (client as Pool).query<Pin>(
    `select setting, value, key as dataset, partition_key as partition
     from pinned_settings join datasets using (dataset_id) where setting = any ($1) order by setting`,
    [names],
  );
  return rows;
}

/** @param given the names of the settings that were given; the others take the pinned value. */
export const conflictsWith = (
  pins: readonly Pin[],
  settings: Settings,
  given: Pick<ReadonlySet<SettingName>, 'has'>,
): PinConflict[] =>
  pins
    .filter(({ setting }) => given.has(setting as SettingName))
    .map((pin) => ({ pin, given: String(settingValue(settings, pin.setting)) }))
    .filter((one) => one.given !== one.pin.value);

/** Each in a sentence, with what to do. */
export const describeConflict = ({ pin: { setting, value, dataset, partition }, given }: PinConflict): string =>
  `${setting} is ${given}, but the proof of ${dataset} ${partition} pinned it to ${value}: set it back to ${value} or leave it unset, or read ${given} into another state folder`;

const OWN_STATE =
  'Set the setting back to the pinned value, or leave it unset. What is of another value needs a state folder (SVC_STATE_DIR), or a database and log, of its own.';

/**
 * The settings with the pinned values of those that were not given.
 * @throws TidemarkError CONFIGURATION_INVALID if one was given another value.
 */
export function withPins(
  pins: readonly Pin[],
  settings: Settings,
  given: Pick<ReadonlySet<SettingName>, 'has'>,
): Settings {
  const conflicts = conflictsWith(pins, settings, given);
  if (conflicts.length === 0)
    return { ...settings, ...Object.fromEntries(pins.map((pin) => [pin.setting, pin.value])) };
  const [{ pin, given: value }] = conflicts;
  throw new TidemarkError('CONFIGURATION_INVALID', conflicts.map(describeConflict).join('; '), {
    details: { setting: pin.setting, pinned: pin.value, given: value },
    remedy: OWN_STATE,
  });
}

/** What a manifest says of the settings that its document was selected by. */
export const statedValues = ({ pinned = [] }: Pick<DatasetDefinition, 'pinned'>, manifest: Manifest): PinnedValues =>
  Object.fromEntries(
    pinned.flatMap((name) => {
      const value = manifest.pinned?.[name];
      return value === undefined ? [] : [[name, value]];
    }),
  );

/**
 * Pins what the manifests state, in the transaction that proves their partitions. Another dataset of the same source may pin it at
 * the same time: then this waits for the end of that transaction.
 * @throws TidemarkError CONFIGURATION_INVALID if a manifest states another value than the pinned one.
 */
export async function pinSettings(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifests: readonly Manifest[],
): Promise<void> {
  const stated = manifests.flatMap((manifest) =>
    Object.entries(statedValues(dataset, manifest)).map(([setting, value]) => ({ setting, value, manifest })),
  );
  if (stated.length === 0) return;
  let pins = await readPins(client, [dataset]);
  const missing = stated.filter(({ setting }) => !pins.some((pin) => pin.setting === setting));
  if (missing.length > 0) {
    const first = missing.filter(({ setting }, index) => missing.findIndex((one) => one.setting === setting) === index);
    await client.query(
      `insert into pinned_settings (setting, value, dataset_id, partition_key, attempt)
       select setting, value, $1, partition_key, attempt
       from unnest($2::text[], $3::text[], $4::text[], $5::int4[]) p (setting, value, partition_key, attempt)
       order by setting on conflict (setting) do nothing`,
      [
        dataset.number,
        first.map(({ setting }) => setting),
        first.map(({ value }) => value),
        first.map(({ manifest }) => manifest.partition),
        first.map(({ manifest }) => manifest.attempt),
      ],
    );
    pins = await readPins(client, [dataset]);
  }
  for (const { setting, value, manifest } of stated) {
    const pin = pins.find((one) => one.setting === setting);
    if (pin === undefined || pin.value === value) continue;
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      `${manifest.document.name} is of ${setting} ${value}, but the proof of ${pin.dataset} ${pin.partition} pinned it to ${pin.value}: read it into another state folder`,
      { details: { setting, pinned: pin.value, given: value }, remedy: OWN_STATE },
    );
  }
}
