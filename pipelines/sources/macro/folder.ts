/** The provider's answers in a folder, one file a question, each about everything there is: a sample's. */
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { MacroApi } from './api.ts';

export const answerFile = (path: string, seriesId: string): string => `${seriesId}.${path.replaceAll('/', '.')}.json`;

export function folderApi(folder: URL): MacroApi {
  return {
    async ask(path, { series_id: seriesId }) {
      const bytes = await readFile(fileURLToPath(new URL(answerFile(path, seriesId), folder)));
      return { bytes, atMs: Date.now() };
    },
  };
}
