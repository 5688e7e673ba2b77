import { expect, test } from 'vitest';
import { logsInWords, TERMINAL_VARIABLE } from '../../pipelines/cli/terminal-log.ts';

const asked = (
  name: string,
  more: { json?: boolean; isTTY?: boolean; values?: object; env?: NodeJS.ProcessEnv } = {},
) => {
  const stream = { isTTY: more.isTTY, write: () => {} };
  const io = { env: more.env ?? {}, stdout: stream, stderr: stream, onStop: () => () => {} };
  return logsInWords({ json: more.json === true, io, values: { ...more.values } }, name);
};

test('commands that end by themselves log in words, services off a terminal in JSON, and with --json everything is JSON', () => {
  expect(['status', 'lake', 'backfill', 'verify', 'doctor'].map((name) => asked(name))).toEqual(Array(5).fill(true));
  expect(['up', 'follow', 'export-worker'].map((name) => asked(name))).toEqual(Array(3).fill(false));
  expect(asked('lake', { values: { follow: true } })).toBe(false);
  expect(asked('verify', { values: { every: '60' } })).toBe(false);
  expect(['up', 'lake'].map((name) => asked(name, { isTTY: true }))).toEqual([true, true]);
  expect(['up', 'lake'].map((name) => asked(name, { isTTY: true, json: true }))).toEqual([false, false]);
  // The parent shows them.
  expect(asked('follow', { env: { [TERMINAL_VARIABLE]: '1' } })).toBe(false);
});
