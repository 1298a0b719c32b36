// Undo and redo: what a page looked like before the last changes.

const MOST = 100;

export class Undo {
  /** `apply` shows a state again; `same` says whether two states look alike. */
  constructor(apply, same) {
    Object.assign(this, { apply, same, past: [], future: [], told: () => {} });
  }

  get canUndo() { return this.past.length > 1; }

  /** Remember a state. One with the `key` of the last change takes its place: a number that is being typed is one change. */
  record(state, key = null) {
    const last = this.past.at(-1);
    if (last && this.same(last.state, state)) return;
    this.future = [];
    const recent = performance.now() - (last?.time ?? 0) < 1500;
    if (key && recent && last.key === key) this.past.pop();
    this.past.push({ state, key, time: performance.now() });
    if (this.past.length > MOST) this.past.shift();
    this.told();
  }

  undo() {
    if (!this.canUndo) return;
    this.future.push(this.past.pop());
    this.#show();
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.future.pop());
    this.#show();
  }

  #show() {
    const last = this.past.at(-1);
    last.time = 0;
    this.apply(last.state);
    this.told();
  }
}
