/** Child processes, found in /proc. */
import { readdirSync, readFileSync } from 'node:fs';

/** The processes below `parent` whose command line has `words`. */
export function childrenOf(parent: number, words: string): number[] {
  return readdirSync('/proc')
    .filter((name) => {
      try {
        const [, , ppid] = readFileSync(`/proc/${name}/stat`, 'utf8')
          .replace(/^.*\) /, 'x ')
          .split(' ');
        return Number(ppid) === parent && readFileSync(`/proc/${name}/cmdline`, 'utf8').includes(words);
      } catch {
        return false;
      }
    })
    .map(Number);
}
