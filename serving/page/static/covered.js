/** The coverage of a dataset, asked for again when the status says that it is another. */
import { ask } from './api.js';
import { instrumentOf } from './request.js';
import { Asking, html, Problem } from './view.js';

/** @param {any} facts @param {any} dataset */
const revisionOf = ({ status }, { key, instrument }) => {
  const { coverage_version: version, partitions } = status.datasets.find(({ dataset }) => dataset === key);
  // The status counts no other instruments than the default, and their unproved partitions together with its own.
  const others = instrument ? `${instrument} ${status.changes.last} ` : '';
  return {
    partitions,
    revision: `${others}${version} ${partitions.quarantined} ${partitions.published} ${partitions.publishing}`,
  };
};

/** @param {{ key: string, instrument?: string }} dataset @param {Record<string, string>} query */
export const coveragePath = (dataset, query) =>
  `/v1/coverage/${dataset.key}?${new URLSearchParams({ ...instrumentOf(dataset), ...query })}`;

export class Covered extends Asking {
  #revision = '';
  /** After a fault the next look at the service asks again. */
  #failedAt;
  state = { coverage: undefined, fault: undefined };

  async look() {
    const { facts, dataset } = this.props;
    const { revision, partitions } = revisionOf(facts, dataset);
    if (revision === this.#revision || facts === this.#failedAt) return;
    this.#revision = revision;
    // The answer states proved partitions as stretches. The page asks for the few others by state.
    const states = ['quarantined', 'published', 'publishing'].filter((state) => partitions[state] > 0);
    const asked = states.length === 0 ? ['quarantined'] : states;
    const end = await this.latest.ask((signal) =>
      Promise.all(asked.map((state) => ask(coveragePath(dataset, { state, limit: '1000' }), { signal }))),
    );
    if (!end) return;
    const answers = end.value;
    if (answers)
      this.setState({
        coverage: { ...answers[0], partitions: answers.flatMap((one) => one.partitions) },
        fault: undefined,
      });
    else {
      this.#revision = '';
      this.#failedAt = facts;
      this.setState({ fault: end.fault });
    }
  }

  render() {
    const { coverage, fault } = this.state;
    if (coverage) return this.props.view(coverage);
    return fault ? html`<${Problem} fault=${fault} />` : html`<p class="faint">Looking…</p>`;
  }
}
