/** The provider's answers in a folder, one file a question, each about everything there is: a sample's. */
import { fileURLToPath } from 'node:url';
import { readBelow } from '../documents/below.ts';
import type { MacroApi } from './api.ts';

export const answerFile = (path: string, seriesId: string): string => `${seriesId}.${path.replaceAll('/', '.')}.json`;

export function folderApi(folder: URL): MacroApi {
  return {
    async ask(path, { series_id: seriesId }) {
      const file = new URL(answerFile(path, seriesId), folder);
      const bytes = await readBelow(fileURLToPath(folder), fileURLToPath(file));
      return { bytes, atMs: Date.now() };
    },
  };
}
