/** Holds rows back as long as any of several has a reason to. */
import type { Flow } from '../../read/answer.ts';

export class Brake {
  #flow: Flow | undefined;
  #reasons = 0;

  /** What is held back. */
  set flow(flow: Flow) {
    this.#flow = flow;
    if (this.#reasons > 0) flow.pause();
  }

  /** One reason: paused and resumed in turn. */
  lever(): Flow {
    let isOn = false;
    return {
      pause: () => {
        if (isOn) return;
        isOn = true;
        if (this.#reasons++ === 0) this.#flow?.pause();
      },
      resume: () => {
        if (!isOn) return;
        isOn = false;
        if (--this.#reasons === 0) this.#flow?.resume();
      },
    };
  }
}
