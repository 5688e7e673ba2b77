/**
 * Whether anything goes on where the log is projected. The checkpoint moves only when a partition is proved, which may
 * take a while; so the connection that projects is looked at, too: what it does, and how far its COPY is.
 */
import type { Catalog, ProjectorActivity } from '../../shared/db/catalog.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

export class ProjectorWatch {
  readonly #catalog: Catalog;
  readonly #dataset: DatasetDefinition;
  #last: ProjectorActivity | undefined;
  #steppedAt = performance.now();
  #movedAt = this.#steppedAt;

  constructor(catalog: Catalog, dataset: DatasetDefinition) {
    this.#catalog = catalog;
    this.#dataset = dataset;
  }

  /** @returns the checkpoint. */
  async look(): Promise<number> {
    const now = await this.#catalog.projectorActivity(this.#dataset);
    const last = this.#last;
    this.#last = now;
    if (last?.sequence !== now.sequence) this.stepped();
    if (last?.mark !== now.mark || now.isBusy) this.#movedAt = performance.now();
    return now.sequence;
  }

  /** Something was proved, or there was nothing to be: counted from now. */
  stepped(): void {
    this.#steppedAt = performance.now();
    this.#movedAt = this.#steppedAt;
  }

  /** How long nothing has come to its end. */
  get sinceStepMs(): number {
    return performance.now() - this.#steppedAt;
  }

  /** How long there has been no sign of life. */
  get stillMs(): number {
    return performance.now() - this.#movedAt;
  }

  /** Who is waited for, as an operator would look for it. */
  describe(): string {
    const still = `nothing has moved for ${Math.round(this.stillMs / 1000)} s`;
    const holder = this.#last?.holder;
    if (!holder) return `nobody projects ${this.#dataset.key}, ${still}`;
    const { name, pid, since } = holder;
    return `the lock of its projector is held by "${name}" (server process ${pid}, since ${since.toISOString()}), ${still}`;
  }
}
