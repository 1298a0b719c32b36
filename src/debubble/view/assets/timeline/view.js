// Layout: the stretch of time on show, the rows of every schedule, and the frames that draw them.

const LAYERS = {
  bubbles: ["Bubbles", "idle time by cause", "KeyB"],
  memory: ["Memory", "activation memory under every rank, with the limit", "KeyM"],
  p2p: ["Transfers", "results on their way to another rank", "KeyP"],
  critical: ["Critical path", "a line over the actions that decide the makespan", "KeyC"],
  normalize: ["Normalize", "every schedule as wide as its own makespan", "KeyN"],
};
const HEADER = 42, GAP_Y = 12, LEFT = 40, RIGHT = 96;
// Of many schedules headings are closer to their rows, so that five are seen at once.
const MANY = 4, LOW_HEADER = 30, LOW_GAP_Y = 6;
const LEAST_PITCH = 17, MOST_RANKS = 64; // rows of more ranks may be lower

class View {
  constructor(data, layers) {
    this.data = data;
    this.layers = layers;
    this.scroll = 0;
    this.selected = null; // {panel, index}
    this.fit();
  }

  get longest() { return Math.max(...this.data.runs.map((run) => run.makespan), 1e-300); }
  get total() { return this.layers.normalize ? 1 : this.longest; }
  get span() { return this.to - this.from; }

  fit() { this.from = 0; this.to = this.total; }

  /** Show a stretch, within reason: never less than four ticks, never far beyond the ends. */
  show(from, to) {
    const { total } = this, run = this.data.runs[0];
    const least = Math.min(total, (4 * run.tick) * (this.layers.normalize ? 1 / run.makespan : 1));
    const span = Math.min(Math.max(to - from, least, total * 1e-9), total * 1.04);
    const start = (from + to) / 2 - span / 2, margin = 0.04 * span;
    this.from = span >= total ? (total - span) / 2 : Math.min(Math.max(start, -margin), total + margin - span);
    this.to = this.from + span;
  }

  pan(share) { const by = share * this.span; this.show(this.from + by, this.to + by); }

  /** Zoom about a place between 0 and 1 of the width. */
  zoom(factor, place = 0.5) {
    const about = this.from + place * this.span, span = this.span * factor;
    this.show(about - place * span, about + (1 - place) * span);
  }

  /** Time of a run, as a place on the axis. */
  axis(run, time) { return this.layers.normalize ? time / run.makespan : time; }
  time(run, place) { return this.layers.normalize ? place * run.makespan : place; }

  /** Rows of all panels in CSS pixels for a plot `width` wide, within `room` of height where rows can be. */
  layout(width, narrow, room = Infinity) {
    const { runs } = this.data;
    this.left = LEFT;
    // As wide as the longest peak.
    const digits = Math.max(...runs.flatMap((run) => run.peak.map((peak) => number(peak).length)), 4);
    this.right = narrow ? 8 : Math.max(RIGHT, 66 + 6.8 * digits);
    this.plot = Math.max(20, width - this.left - this.right);
    const low = runs.length >= MANY && !narrow, header = low ? LOW_HEADER : HEADER, gap = low ? LOW_GAP_Y : GAP_Y;
    const ranks = runs.reduce((sum, run) => sum + run.ranks, 0);
    const target = Math.min(runs.length > 1 ? 560 : 460, Math.max(240, room - 6 - runs.length * (header + gap)));
    const least = ranks <= MOST_RANKS ? LEAST_PITCH : 0;
    let share = Math.max(target / ranks, least);
    this.rows = this.#rows(share);
    while (share > least && this.rows.pitch * ranks > target) this.rows = this.#rows(share = Math.max(least, share - 0.5));
    let y = 0;
    this.panels = runs.map((run, index) => {
      const panel = { run, index, y: y + header, head: y, height: run.ranks * this.rows.pitch };
      y = panel.y + panel.height + gap;
      return panel;
    });
    this.height = y - gap + 6;
    this.low = low;
  }

  /** Heights of a rank's parts, from about `share` for all of them. */
  #rows(share) {
    const bar = Math.max(4, Math.min(this.data.runs.length > 1 ? 24 : 28, Math.floor(0.62 * share)));
    const memory = this.layers.memory ? Math.max(3, Math.min(14, Math.round(0.3 * share))) : 0;
    const lanes = Math.max(...this.data.runs.map((run) => run.lanes));
    const p2p = this.layers.p2p ? (share >= 16 ? 6 : 3) * lanes : 0;
    return { bar, memory, p2p, pitch: bar + (p2p ? p2p + 1 : 0) + (memory ? memory + 1 : 0) + (bar >= 10 ? 4 : bar >= 6 ? 2 : 1) };
  }

  /** x in CSS pixels of a time of a run. */
  x(run, time) { return this.left + ((this.axis(run, time) - this.from) / this.span) * this.plot; }
  place(x) { return this.from + ((x - this.left) / this.plot) * this.span; }

  /** Object at a point of the content: {panel, rank, bar or cause}; null outside all rows. */
  hit(x, y) {
    const panel = this.panels.find((p) => y >= p.y && y < p.y + p.height);
    if (!panel || x < this.left || x > this.left + this.plot) return null;
    const { run } = panel, rank = Math.floor((y - panel.y) / this.rows.pitch);
    const time = this.time(run, this.place(x));
    if (time < 0 || time > run.makespan) return null;
    const state = run.stateAt(rank, time);
    if (state.bar != null) {
      const half = run.halfOf[run.style[state.bar]];
      const inUpper = y - panel.y - rank * this.rows.pitch < this.rows.bar / 2;
      if (half === LOWER && inUpper) state.bar--;
    }
    return { panel, rank, time, mark: run.marks?.at(rank, time) ?? null, ...state };
  }

  /** Draw the rows that can be seen; returns the milliseconds it took. */
  paint(painter, height, coarse = 1) {
    const begin = performance.now(), { scale } = painter, { rows } = this, { pitch } = rows;
    painter.clear();
    const left = Math.round(this.left * scale), right = Math.min(Math.round((this.left + this.plot) * scale), painter.canvas.width);
    const box = { bar: Math.round(rows.bar * scale), p2p: Math.round(rows.p2p * scale), memory: Math.round(rows.memory * scale) };
    const layers = { ...this.layers, labels: true, limit: this.data.limit };
    for (const { run, y } of this.panels) {
      const first = Math.max(0, Math.floor((this.scroll - y) / pitch));
      const last = Math.min(run.ranks, Math.ceil((this.scroll + height - y) / pitch));
      if (last <= first) continue;
      const from = this.time(run, this.from), perPixel = (this.time(run, this.to) - from) / (right - left);
      painter.open(run, { from, perPixel, left, right, coarse }, box, layers);
      for (let rank = first; rank < last; rank++) painter.row(rank, Math.round((y + rank * pitch - this.scroll) * scale));
    }
    painter.flush();
    return performance.now() - begin;
  }

  /** All of all runs, a few lines of pixels for every rank, for the overview. */
  paintAll(painter, bar) {
    painter.clear();
    const right = painter.canvas.width, box = { bar, p2p: 0, memory: 0 };
    let y = 0;
    for (const run of this.data.runs) {
      const perPixel = this.time(run, this.total) / right;
      painter.open(run, { from: 0, perPixel, left: 0, right, coarse: 1 }, box, { bubbles: this.layers.bubbles });
      for (let rank = 0; rank < run.ranks; rank++, y += bar) painter.row(rank, y);
    }
    painter.flush();
  }
}

/** Summary of a stretch of time on some ranks: time by kind and by cause, actions, memory. */
function summarize(run, from, to, firstRank, lastRank) {
  const size = run.width, a = new Float64Array(size), b = new Float64Array(size);
  const total = new Float64Array(size), idle = run.idleClass;
  let actions = 0, memory = 0, fill = 0, drain = 0;
  from = Math.max(0, from);
  to = Math.min(run.makespan, to);
  for (let rank = firstRank; rank <= lastRank; rank++) {
    const [low, high] = run.row(rank), i = run.at(rank, from), j = run.at(rank, to);
    run.sumsAt(i, low, high, from, a);
    run.sumsAt(j, low, high, to, b);
    for (let c = 0; c < size; c++) total[c] += b[c] - a[c];
    actions += j - i + (i >= low && run.end(i) > from ? 1 : 0);
    if (j >= low) memory = Math.max(memory, run.highest(Math.max(i, low), j));
    const begins = high > low ? run.start[low] : run.makespan, ends = high > low ? run.end(high - 1) : 0;
    fill += Math.max(0, Math.min(to, begins) - from);
    drain += high > low ? Math.max(0, to - Math.max(from, ends)) : 0;
  }
  const whole = Math.max(0, to - from) * (lastRank - firstRank + 1);
  const kinds = run.classes.map((kind, c) => [run.kinds[kind].name, total[c]]).filter(([, time]) => time > 1e-9 * whole);
  const causes = [["fill", fill], ["drain", drain], ["data", total[idle]], ["p2p", total[idle + 2]], ["memory", total[idle + 1]]]
    .filter(([, time]) => time > 1e-9 * whole);
  return { from, to, actions, memory, whole, kinds, causes };
}
