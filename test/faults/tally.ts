/** What a campaign counted, and its failures. */
export class CampaignFailure extends Error {
  override readonly name = 'CampaignFailure';
}

export class Tally {
  readonly faults = new Map<string, number>();
  readonly operations = new Map<string, number>();
  readonly oracles = new Map<string, number>();
  /** Faults that met nothing to strike: a process on its way up, a node that is not there. */
  readonly misses = new Map<string, number>();
  answers = 0;
  rounds = 0;
  readonly failures: string[] = [];

  static count(map: Map<string, number>, key: string, by = 1): void {
    map.set(key, (map.get(key) ?? 0) + by);
  }

  operation(name: string, by = 1): void {
    Tally.count(this.operations, name, by);
  }

  /** Notes a failure; the round ends with it. */
  fail(message: string): void {
    this.failures.push(message);
  }

  /** Runs an oracle, and counts that it held. */
  async oracle(name: string, check: () => Promise<string | undefined>): Promise<void> {
    let fault: string | undefined;
    try {
      fault = await check();
    } catch (error) {
      fault = error instanceof Error ? (error.stack ?? error.message) : String(error);
    }
    if (fault === undefined) Tally.count(this.oracles, name);
    else this.fail(`${name}: ${fault}`);
  }

  get faultCount(): number {
    return [...this.faults.values()].reduce((sum, count) => sum + count, 0);
  }

  json(seed: number, seconds: number): object {
    const plain = (map: Map<string, number>) => Object.fromEntries([...map].sort(([a], [b]) => (a < b ? -1 : 1)));
    return {
      ...{
        seed,
        seconds: Math.round(seconds),
        rounds: this.rounds,
        faults_total: this.faultCount,
        answers: this.answers,
      },
      faults: plain(this.faults),
      missed: plain(this.misses),
      operations: plain(this.operations),
      oracles: plain(this.oracles),
      failures: this.failures,
    };
  }

  table(): string {
    const rows = (title: string, map: Map<string, number>) => [
      title,
      ...[...map]
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([key, count]) => `  ${key.padEnd(44)} ${String(count).padStart(8)}`),
    ];
    return [
      ...rows('faults', this.faults),
      ...(this.misses.size > 0 ? rows('faults that met nothing to strike', this.misses) : []),
      ...rows('operations', this.operations),
      ...rows('oracles that held', this.oracles),
      `answers checked ${this.answers}, rounds ${this.rounds}`,
    ].join('\n');
  }
}
