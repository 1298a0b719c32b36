// Dependencies of actions, looked up from the rows of the table of kinds that come with the data. A need has the kinds
// of a producer, and in `of` the rule for its stage, microbatch and rank.

/** Needs and positions of one run. */
class Waits {
  constructor(run) {
    this.run = run;
    this.needs = run.kinds.map(() => []);
    for (const need of run.needs) this.needs[need.kind].push(need);
    this.cells = new Map();
    this.lists = new Map();
    this.joins = this.#joins();
  }

  /** Lines to actions of each kind on the way of a microbatch: 2 whole, 1 dashed, 0 none. */
  #joins() {
    const { run } = this, onward = new Set(), aside = new Set();
    for (const need of run.needs) {
      if (run.kinds[need.kind].counts !== "microbatch" || run.kinds[need.kind].stream) continue;
      for (const kind of need.kinds) (need.optional ? aside : onward).add(kind);
    }
    // Kinds that no other work waits for are ends; optional ones are off the way.
    return run.kinds.map((_, kind) => (onward.has(kind) ? 2 : aside.has(kind) ? 0 : 1));
  }

  /** The first action of some kinds with a stage and unit, −1 for none. */
  find(kinds, stage, unit) {
    const { run } = this, width = run.kinds.length;
    if (!this.cells.has(unit)) {
      if (this.cells.size > 8) this.cells.clear();
      const found = new Map();
      for (const i of run.ofUnit(unit)) {
        const key = run.stage(i) * width + run.kind(i), there = found.get(key);
        if (there === undefined || run.place(i) < run.place(there)) found.set(key, i);
      }
      this.cells.set(unit, found);
    }
    const cells = this.cells.get(unit);
    let first = -1;
    for (const kind of kinds) {
      const i = cells.get(stage * width + kind);
      if (i !== undefined && (first < 0 || run.place(i) < run.place(first))) first = i;
    }
    return first;
  }

  /** Actions of some kinds in the program of a rank, in its order. */
  program(rank, kinds) {
    const { run } = this, key = `${rank}:${kinds}`;
    if (!this.lists.has(key)) {
      const found = [], wanted = run.kinds.map((_, kind) => kinds.includes(kind));
      for (const row of [rank, run.ranks + rank]) {
        const [low, high] = run.row(row);
        for (let i = low; i < high; i++) if (wanted[run.kind(i)]) found.push(i);
      }
      this.lists.set(key, Uint32Array.from(found).sort((a, b) => run.place(a) - run.place(b)));
    }
    return this.lists.get(key);
  }

  /** Number of a program's actions before a place. */
  #before(list, place) { return firstOf(0, list.length, (k) => this.run.place(list[k]) >= place); }

  #last(list, place) { const count = this.#before(list, place); return count ? list[count - 1] : -1; }

  /** The actions that one need of action i means; `direct` leaves out the receive that a result comes through. */
  of(i, need, direct = false) {
    const { run } = this, { kinds } = need, stage = run.stage(i), unit = run.unit[i], rank = run.rank(i);
    if (need.last && stage !== run.stages - 1) return [];
    return this[need.of]({ i, need, kinds, stage, unit, rank, direct }).filter((j) => j >= 0);
  }

  STAGE(asked) {
    const { run } = this, { need, stage, unit } = asked, away = stage + need.stage, part = (unit % run.slices) + need.slice;
    if (away < 0 || away >= run.stages || part < 0 || part >= run.slices) return [];
    return this.#there(asked, away);
  }

  CARRIED_FROM(asked) { return this.#carried(asked, 1, 0); }

  CARRIED_TO(asked) { return this.#carried(asked, 0, 1); }

  /** The action at the other end of what is carried from or to a stage. */
  #carried(asked, own, other) {
    const pair = this.run.carries.find((stages) => stages[own] === asked.stage);
    return pair ? this.#there(asked, pair[other]) : [];
  }

  /** The action of another stage, or the receive that its result comes through. */
  #there({ need, kinds, stage, unit, rank, direct }, away) {
    const { run } = this, found = this.find(kinds, away, unit + need.slice);
    if (direct || found < 0 || need.through == null || run.rank(found) === rank) return [found];
    return [this.find([need.through], stage, unit)];
  }

  LAST_STAGE({ kinds, unit }) { return [this.find(kinds, this.run.stages - 1, unit)]; }

  EVERY_SHARD({ kinds, unit }) {
    // One answer for all ranks, and each of them asks.
    const key = `${kinds}:${unit}`;
    if (this.shards?.key !== key) this.shards = { key, found: this.run.shards.map((stage) => this.find(kinds, stage, unit)) };
    return this.shards.found;
  }

  LATEST({ i, kinds, stage, rank }) {
    const { run } = this, list = this.program(rank, kinds);
    let k = this.#before(list, run.place(i)) - 1;
    while (k >= 0 && run.stage(list[k]) !== stage) k--;
    return k < 0 ? [] : [list[k]];
  }

  ITERATION({ kinds, stage, unit, rank }) {
    const { run } = this;
    return [...this.program(rank, kinds)].filter((j) => run.stage(j) === stage && run.iterationOf(j) === unit);
  }

  OWN_RANK({ i, kinds, rank }) { return [this.#last(this.program(rank, kinds), this.run.place(i))]; }

  EVERY_RANK(asked) { return this.#steps(asked, this.run.ranks); }

  EARLIER_RANKS(asked) { return this.#steps(asked, asked.rank + 1); }

  /** Last action before the step of the same number, on each of the first `ranks` ranks. */
  #steps({ i, kinds, rank }, ranks) {
    const { run } = this, own = [run.kind(i)], number = this.#before(this.program(rank, own), run.place(i)), found = [];
    for (let other = 0; other < ranks; other++) {
      const steps = this.program(other, own);
      if (number < steps.length) found.push(this.#last(this.program(other, kinds), run.place(steps[number])));
    }
    return found;
  }

  /** Actions that an action waits for other than by its turn. */
  producers(i) {
    const found = new Set();
    for (const need of this.needs[this.run.kind(i)]) for (const j of this.of(i, need)) found.add(j);
    return [...found];
  }

  /** Actions that wait for an action other than by its turn. */
  consumers(i) {
    const { run } = this, kind = run.kind(i), found = new Set();
    for (const need of run.needs) {
      if (!need.kinds.includes(kind) && need.through !== kind) continue;
      for (const j of this.#candidates(i, need)) if (run.kind(j) === need.kind && this.of(j, need).includes(i)) found.add(j);
    }
    return [...found];
  }

  /** Actions among which are those that may need action i in one way. */
  #candidates(i, need) {
    const { run } = this, unit = run.unit[i], rank = run.rank(i), of = [need.kind];
    if (["STAGE", "CARRIED_FROM", "CARRIED_TO", "LAST_STAGE", "EVERY_SHARD"].includes(need.of)) return unit >= need.slice ? run.ofUnit(unit - need.slice) : [];
    if (["LATEST", "ITERATION"].includes(need.of)) return this.program(rank, of);
    // Steps that follow it on its rank, and those of the same number.
    const number = this.#before(this.program(rank, of), run.place(i));
    return Array.from({ length: run.ranks }, (_, other) => this.program(other, of)[number] ?? -1).filter((j) => j >= 0);
  }

  /** Actions of a rank on the stream of action i. */
  #stream(i) {
    const { run } = this, { stream } = run.kinds[run.kind(i)];
    return this.program(run.rank(i), run.kinds.flatMap((kind, k) => (kind.stream === stream ? [k] : [])));
  }

  #half(i) { return this.run.halfOf[this.run.style[i]]; }

  /** Actions whose turn is just before an action: on its stream, and off the compute stream also the work it is issued after. */
  before(i) {
    const { run } = this, list = this.#stream(i), at = this.#before(list, run.place(i)), found = [];
    const previous = at - (this.#half(i) === LOWER ? 2 : 1);
    if (previous >= 0) found.push(list[previous]);
    if (previous > 0 && this.#half(list[previous]) === LOWER) found.push(list[previous - 1]);
    if (run.rowOf(i) >= run.ranks) {
      const [low, high] = run.row(run.rank(i)), work = this.#last(Array.from({ length: high - low }, (_, k) => low + k), run.place(i));
      if (work >= 0) found.push(work);
    }
    return found;
  }

  /** Actions whose turn is just after an action. */
  after(i) {
    const { run } = this, list = this.#stream(i), at = this.#before(list, run.place(i)), found = [];
    const next = at + (this.#half(i) === UPPER ? 2 : 1);
    if (next < list.length) found.push(list[next]);
    if (next + 1 < list.length && this.#half(list[next]) === UPPER) found.push(list[next + 1]);
    if (run.rowOf(i) < run.ranks) {
      const until = at + 1 < list.length ? run.place(list[at + 1]) : Infinity, [low, high] = run.row(run.ranks + run.rank(i));
      for (let j = low; j < high; j++) if (run.place(j) > run.place(i) && run.place(j) < until) found.push(j);
    }
    return found;
  }

  /** The line of the way of a microbatch to an action, {from, dashed}; null for none. Of several it waits for the last. */
  way(i) {
    const { run } = this, join = this.joins[run.kind(i)];
    if (!join) return null;
    for (const need of this.needs[run.kind(i)]) {
      const found = this.of(i, need, true);
      if (!found.length) continue;
      const from = found.reduce((last, j) => (run.end(j) > run.end(last) ? j : last));
      return run.unit[from] === run.unit[i] ? { from, dashed: join === 1 } : null;
    }
    return null;
  }
}
