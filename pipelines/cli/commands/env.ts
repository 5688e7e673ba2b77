/** `env`: the address and the key of the service that runs here, as lines for a shell. */
import { TidemarkError } from '../../../shared/errors.ts';
import { loadSecrets, secretsPath } from '../../../shared/stack/state.ts';
import { settingsOf } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';
import { provenService, sha256Of } from '../running.ts';

/**
 * Writes the key to a pipe, too: that is what it is asked for, `eval "$(./tidemark env)"`. It opens no store, so that it answers
 * at once.
 */
export async function runEnv(command: ParsedCommand): Promise<number> {
  const { settings } = settingsOf(command);
  const stateDir = settings.SVC_STATE_DIR;
  const running = await provenService(stateDir);
  const { url } = running;
  const key = settings.SVC_INTERNAL_API_KEY ?? (await loadSecrets(stateDir)).apiKey;
  if (sha256Of(key) !== running.keySha256) {
    const given = settings.SVC_INTERNAL_API_KEY === undefined ? secretsPath(stateDir) : 'SVC_INTERNAL_API_KEY';
    const message = `The service at ${url} was started with another key than ${given} has here`;
    throw new TidemarkError('CONFIGURATION_INVALID', message, {
      remedy: 'Set SVC_INTERNAL_API_KEY here as it was set where the service was started, or start the service again.',
    });
  }
  createOutput(command).answer({ command: 'env', ok: true, url, key }, () =>
    [`export TIDEMARK_URL=${quoted(url)}`, `export TIDEMARK_KEY=${quoted(key)}`].join('\n'),
  );
  return EXIT.DONE;
}

/** A word of the shell, whatever it holds. */
export const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;
