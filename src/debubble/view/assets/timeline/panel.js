// Actions of the user: selection, details, search, areas, layers, help, and the state as text.

Object.assign(DebubbleTimeline.prototype, {
  hover(hit, at = null) {
    this.pointer = at && hit ? at : null;
    this.hovered = hit;
    this.parts.surface.style.cursor = hit?.bar != null ? "pointer" : "crosshair";
    if (!this.hovering) {
      this.hovering = true;
      requestAnimationFrame(() => { this.hovering = false; if (this.view) this.overlay(); });
    }
  },

  /** Place of the pointer as a share of the width; the middle when it is elsewhere. */
  pointerPlace() {
    const { view, pointer } = this;
    return pointer ? Math.min(1, Math.max(0, (pointer.x - view.left) / view.plot)) : 0.5;
  },

  select(selection, hit = null) {
    this.view.selected = selection;
    this.area = null;
    this.gap = selection ? null : hit;
    this.showDetails();
    this.changed();
  },

  /** Select an action and bring it into view. */
  go(panel, index) {
    const { view } = this, run = this.data.runs[panel];
    const begin = view.axis(run, run.start[index]), end = view.axis(run, run.end(index)), length = Math.max(end - begin, 0);
    if (begin < view.from || end > view.to) {
      const span = Math.max(view.span, length * 1.5), middle = (begin + end) / 2;
      view.show(middle - span / 2, middle + span / 2);
    }
    this.scrollToRank(view.panels[panel], run.rank(index));
    // A pointer that rests somewhere does not hide what the keys select.
    this.hovered = this.pointer = null;
    this.select({ panel, index });
  },

  /** Scroll to a rank, unless it can be seen. */
  scrollToRank(panel, rank) {
    const { pitch } = this.view.rows, y = panel.y + rank * pitch, { scroll } = this.parts;
    if (y < scroll.scrollTop || y + pitch > scroll.scrollTop + this.tall) scroll.scrollTop = y - this.tall / 2;
  },

  /** The next or previous action on the rank of the selection. */
  advance(by) {
    const { view } = this, at = view.selected;
    if (!at) { this.go(0, this.data.runs[0].offsets[0]); return; }
    const run = this.data.runs[at.panel], [low, high] = run.row(run.rowOf(at.index));
    const index = Math.min(high - 1, Math.max(low, at.index + by));
    this.go(at.panel, index);
  },

  /** Select the action at the same time on the rank above or below, also in another panel. */
  cross(by) {
    const { view } = this, at = view.selected;
    if (!at) { this.advance(0); return; }
    let { panel } = at;
    const from = this.data.runs[panel], time = from.start[at.index];
    let rank = from.rank(at.index) + by;
    if (rank < 0 || rank >= from.ranks) {
      panel += by;
      if (!this.data.runs[panel]) return;
      rank = by > 0 ? 0 : this.data.runs[panel].ranks - 1;
    }
    const run = this.data.runs[panel], [low, high] = run.row(rank);
    if (high > low) this.go(panel, Math.max(low, run.at(rank, view.time(run, view.axis(from, time)))));
  },

  focusSelection() {
    const { view } = this, at = view.selected;
    if (!at) { view.fit(); this.changed(); return; }
    const run = this.data.runs[at.panel], begin = view.axis(run, run.start[at.index]);
    const length = Math.max(view.axis(run, run.duration(at.index)), view.total * 1e-7);
    const middle = begin + length / 2;
    view.show(middle - 6 * length, middle + 6 * length);
    this.changed();
  },

  toggle(layer) {
    const { view } = this;
    if (!view) return;
    const { from, to, total } = view;
    this.layers[layer] = !this.layers[layer];
    if (layer === "normalize") view.show((from / total) * view.total, (to / total) * view.total);
    this.drawLegend();
    this.layout();
    this.changed();
  },

  setAreaMode(on) {
    this.areaMode = on;
    this.parts.tools.querySelector('[data-do="area"]').setAttribute("aria-pressed", String(on));
    this.parts.surface.style.touchAction = on ? "none" : "pan-y";
  },

  /** Mark the area between two points, or none. */
  setArea(a, b) {
    const { view } = this;
    if (!a) { this.area = null; this.showDetails(); this.overlay(); return; }
    const panel = view.panels.find((p) => a.y >= p.head && a.y < p.y + p.height) ?? view.panels[0], { run } = panel;
    const rank = (y) => Math.min(run.ranks - 1, Math.max(0, Math.floor((y - panel.y) / view.rows.pitch)));
    const times = [a.x, b.x].map((x) => Math.min(run.makespan, Math.max(0, view.time(run, view.place(x))))).sort((x, y) => x - y);
    const ranks = [rank(a.y), rank(b.y)].sort((x, y) => x - y);
    this.area = { panel, from: times[0], to: times[1], first: ranks[0], last: ranks[1] };
    this.showDetails();
    this.overlay();
  },

  /** Mark what can be seen of the selection's schedule, or of the first one. */
  areaOfView() {
    const { view } = this, panel = view.panels[view.selected?.panel ?? 0];
    this.setArea({ x: view.left, y: panel.y }, { x: view.left + view.plot, y: panel.y + panel.height - 1 });
  },

  startSearch() { this.parts.search.querySelector("input").focus(); },

  /** The actions that the search text names: schedule by schedule, in order of time. */
  matches(text) {
    const wanted = /^\s*(?:([rms])\s*(\d+)|(\d*)\s*([a-z_]*)\s*(\d*)(?:\.(\d+))?)\s*$/i.exec(text);
    if (!text.trim() || !wanted) return [];
    const [, field, value, stage, kind, unit, slice] = wanted, found = [];
    if (!field && stage && !kind && !unit) return this.matches(`m${stage}`);
    this.data.runs.forEach((run, panel) => {
      const kindIndex = kind ? run.kinds.findIndex((k) => k.name === kind.toUpperCase()) : -1;
      if (kind && kindIndex < 0) return;
      const number = field === undefined ? Number(unit || -1) : field.toLowerCase() === "m" ? Number(value) : -1;
      const rank = field?.toLowerCase() === "r" ? Number(value) : -1;
      const level = field?.toLowerCase() === "s" ? Number(value) : stage ? Number(stage) : -1;
      const consider = (i) => {
        if ((level < 0 || run.stage(i) === level) && (kindIndex < 0 || run.kind(i) === kindIndex)) found.push({ panel, index: i });
      };
      if (number >= 0 && (kindIndex < 0 || run.labelled(kindIndex))) {
        const members = (u) => (kindIndex < 0 ? run.workOf(u) : run.ofUnit(u)), { slices } = run;
        for (let part = slice ? Number(slice) : 0; part < (slice ? Number(slice) + 1 : slices); part++) if (part < slices) members(number * slices + part).forEach(consider);
      }
      else {
        const [low, high] = rank >= 0 ? (rank < run.ranks ? run.row(rank) : [0, 0]) : [0, run.count];
        for (let i = low; i < high; i++) if (number < 0 || run.unit[i] === number) consider(i);
      }
    });
    return found.sort((a, b) => a.panel - b.panel || this.data.runs[a.panel].start[a.index] - this.data.runs[b.panel].start[b.index]);
  },

  next(by) {
    const field = this.parts.search.querySelector("input"), said = this.parts.search.querySelector("output");
    if (!this.found) { this.found = this.matches(field.value); this.place = by > 0 ? -1 : 0; }
    const { found } = this;
    if (!field.value.trim()) { said.textContent = ""; return; }
    if (!found.length) { said.textContent = "none"; return; }
    this.place = (this.place + by + found.length) % found.length;
    said.textContent = `${(this.place + 1).toLocaleString("en-US")} of ${found.length.toLocaleString("en-US")}`;
    this.go(found[this.place].panel, found[this.place].index);
  },

  help() { this.parts.help.showModal(); },

  showDetails() {
    const { details } = this.parts;
    const content = this.area ? this.areaText() : this.view.selected ? this.actionText() : this.gap ? this.gapText() : null;
    details.hidden = !content;
    details.replaceChildren(...(content ?? []));
  },

  /** An amount of activation memory, in the unit of all of them: without its name, and with it. */
  level(value) {
    const { size } = this.data.memory;
    return number(size > 1 ? Number((value / size).toPrecision(4)) : value);
  },
  amount(value) { return `${this.level(value)} ${this.data.memory.unit}`.trim(); },
  time(value) { return `${number(value)}${this.data.unit ? ` ${this.data.unit}` : ""}`; },

  fields(title, pairs) {
    const items = pairs.filter(Boolean).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...[value].flat())));
    return [make("h3", {}, title), make("dl", {}, ...items)];
  },

  link(panel, index) {
    const run = this.data.runs[panel];
    return make("button", { class: "link", title: `rank ${run.rank(index)}`, onclick: () => this.go(panel, index) },
      `${run.actionName(index)}${run.ranks > 1 ? ` (rank ${run.rank(index)})` : ""}`);
  },

  actionText() {
    const { panel, index: i } = this.view.selected, run = this.data.runs[panel];
    const kind = run.kinds[run.kind(i)], rank = run.rank(i);
    const listed = (indices) => (indices.length ? indices.map((j) => this.link(panel, j)) : "nothing");
    const [low] = run.row(run.rowOf(i)), half = run.halfOf[run.style[i]];
    const before = i - (half === LOWER ? 2 : 1), gap = before >= low ? run.start[i] - run.end(before) : run.start[i];
    const waited = before >= low ? [["data", DATA], ["memory", MEMORY], ["p2p", P2P]]
      .map(([name, cause]) => [name, run.gapTime(i, gap, cause)]).filter(([, t]) => t > 0)
      .map(([name, t]) => `${this.time(t)} for ${name}`).join(", ") : gap > 0 ? `${this.time(gap)} for the first data` : "";
    return this.fields(`${run.actionName(i)} on rank ${rank}${this.data.runs.length > 1 ? ` of ${run.name}` : ""}`, [
      ["kind", `${kind.name}, ${kind.title}`], ["stage", String(run.stage(i))],
      run.copies > 1 && ["copy", String(run.styles.copy[run.style[i]])],
      kind.counts && [kind.counts, run.number(i).split(".")[0]],
      run.number(i).includes(".") && ["slice", run.number(i).split(".")[1]],
      ["start", this.time(run.start[i])], ["end", this.time(run.end(i))], ["duration", this.time(run.duration(i))],
      ["slack", `${this.time(run.slack(i))}${run.critical[i] ? ", on the critical path" : ""}`],
      ["idle before", (run.marks && gap > 0 ? this.marksWithin(run, rank, run.start[i] - gap, run.start[i]) : waited) || "no"],
      this.lostIn(run, rank, run.start[i], run.end(i)),
      this.differenceOf(run, i),
      ["waits for", listed(run.waitsFor(i))], ["waited for by", listed(run.waitedForBy(i))],
      ["memory", `${this.amount(run.level[i])} while it runs`],
    ]);
  },

  gapText() {
    const { panel, rank, cause, before, from, mark } = this.gap, { run } = panel;
    const until = before >= 0 ? run.start[before] : run.makespan;
    const why = mark ? `${mark.look.title}, ${this.time(mark.end - mark.start)}` : CAUSE_TITLES[this.data.causes[cause]];
    return this.fields(`Idle on rank ${rank}: ${why}`, [
      ["from", this.time(from)], ["to", this.time(until)], ["idle", this.time(until - from)],
      run.marks && ["causes", this.marksWithin(run, rank, from, until)],
      before >= 0 && this.differenceOf(run, before),
      before >= 0 && ["until", this.link(panel.index, before)],
    ]);
  },

  areaText() {
    const { panel, from, to, first, last } = this.area, { run } = panel, found = summarize(run, from, to, first, last);
    const share = ([name, time]) => `${name} ${this.time(time)} (${percent(time / (found.whole || 1))})`;
    return this.fields(`Area: ${this.time(to - from)} on ${first === last ? `rank ${first}` : `ranks ${first}–${last}`} of ${run.name}`, [
      ["from, to", `${this.time(from)}, ${this.time(to)}`], ["actions", found.actions.toLocaleString("en-US")],
      ["busy", found.kinds.map(share).join(", ") || "never"], ["idle", (run.marks ? this.marksWithin(run, first, from, to, last, 0) : found.causes.map(share).join(", ")) || "never"],
      ["peak activation", this.amount(found.memory)],
      this.lostIn(run, first, from, to, last),
    ]);
  },

  /** Causes of marks within a stretch on ranks, the longest first: over idle time, or with 1 over actions. */
  marksWithin(run, first, from, to, last = first, over = 0) {
    const sums = new Map();
    for (let rank = first; rank <= last; rank++) run.marks.within(rank, from, to, over, sums);
    const least = 1e-5 * (to - from);
    return [...sums].filter(([, time]) => time > least).sort((a, b) => b[1] - a[1]).map(([look, time]) => `${look.title} ${this.time(time)}`).join(", ");
  },

  /** Time that causes took of the actions of a stretch. */
  lostIn(run, first, from, to, last = first) {
    const text = run.marks ? this.marksWithin(run, first, from, to, last, 1) : "";
    return text && ["lost while busy", text];
  },

  /** Difference of an action from the same one of another run. */
  differenceOf(run, i) {
    if (!run.differs) return null;
    const { late, longer, from } = run.differs, by = (value, more, fewer) => `${this.time(Math.abs(value))} ${value < 0 ? fewer : more}`;
    return [`than ${from}`, `${by(late[i], "later", "earlier")}, ${by(longer[i], "longer", "shorter")}`];
  },

  /** Bring a stretch of a rank into view, and mark it. */
  reveal(index, rank, from, to) {
    const { view } = this, panel = view.panels[index], { run } = panel;
    const [begin, end] = [view.axis(run, from), view.axis(run, to)], middle = (begin + end) / 2, span = Math.max(5 * (end - begin), view.total / 20);
    view.show(middle - span / 2, middle + span / 2);
    this.scrollToRank(panel, rank);
    view.selected = this.gap = null;
    this.area = { panel, from, to, first: rank, last: rank };
    this.showDetails();
    this.changed();
    this.scrollIntoView({ block: "nearest", behavior: "smooth" });
  },
});

/** The view as text for a URL: t=0.25-0.5&a=0.3F7&l=bubbles,memory. */
Object.defineProperty(DebubbleTimeline.prototype, "state", {
  get() {
    const { view, data } = this, parts = [];
    if (!view) return "";
    const share = (t) => String(Number((t / view.total).toFixed(9)));
    if (view.from !== 0 || view.to !== view.total) parts.push(`t=${share(view.from)}_${share(view.to)}`);
    const at = view.selected;
    if (at) parts.push(`a=${at.panel}.${data.runs[at.panel].actionName(at.index)}`);
    parts.push(`l=${Object.keys(LAYERS).filter((name) => this.layers[name]).join(",")}`);
    return parts.join("&");
  },
  set(text) {
    if (!this.view) { this.wanted = text; return; }
    const values = new URLSearchParams(text), { view } = this;
    if (values.has("l")) {
      const on = values.get("l").split(",");
      for (const name of Object.keys(LAYERS)) this.layers[name] = on.includes(name);
      view.fit();
      this.drawLegend();
      this.layout();
    }
    const [, from, to] = /^(-?[\d.e-]+)_(-?[\d.e-]+)$/.exec(values.get("t") ?? "") ?? [];
    if (Number(to) > Number(from)) view.show(from * view.total, to * view.total);
    const [, panel, name] = /^(\d+)\.(.+)$/.exec(values.get("a") ?? "") ?? [];
    const index = this.data.runs[panel]?.named(name) ?? -1;
    if (index >= 0) view.selected = { panel: Number(panel), index };
    this.showDetails();
    this.draw();
  },
});

if (!customElements.get("debubble-timeline")) customElements.define("debubble-timeline", DebubbleTimeline);
