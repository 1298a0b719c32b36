// Data: what debubble.view.timeline_data wrote, as typed arrays that are sorted per rank, with running
// sums of time by kind and by cause of idleness, so that any stretch of a rank costs two look-ups.

const WHOLE = 0, UPPER = 1, LOWER = 2;
const FILL = 0, DRAIN = 1, DATA = 2, P2P = 3, MEMORY = 4;

/** The memory limit of a rank, null for none; a list has one for each. */
const limitOf = (limit, rank) => (Array.isArray(limit) ? limit[rank] : limit) ?? null;

/** The first of low … high − 1 that passes a test, which all behind it pass, too; high for none. */
function firstOf(low, high, passes) {
  while (low < high) { const middle = (low + high) >> 1; if (passes(middle)) high = middle; else low = middle + 1; }
  return low;
}

/** [top, height] of one of so many lanes that share a height, with a line between two. */
function laneOf(lane, lanes, tall) {
  const top = Math.round((lane * tall) / lanes), next = Math.round(((lane + 1) * tall) / lanes);
  return [top, next - top - (lane + 1 < lanes ? 1 : 0)];
}

/** One simulated schedule. */
class Run {
  constructor(meta, columns, { kinds, stacked, streams }) {
    Object.assign(this, meta);
    delete this.data;
    const { count, style } = columns;
    Object.assign(this, { kinds, stacked, streams });
    this.count = count;
    this.style = style;
    this.slackTicks = columns.slack;
    this.critical = columns.critical;
    this.heldTicks = columns.held;
    this.waitTicks = columns.wait;
    this.queuedTicks = [columns.queued, columns.delayed];
    this.levels = columns.level;
    this.period = meta.microbatches * meta.slices;
    const s = meta.styles;
    this.kindOf = Uint8Array.from(s.kind);
    this.halfOf = Uint8Array.from(s.half);
    this.durationOf = Float64Array.from(s.duration);
    this.linkOf = [s.link, s.carry ?? []];
    this.stepOf = Uint8Array.from(s.kind, (kind) => !kinds[kind].stream && kinds[kind].counts === "iteration");
    this.stepped = this.stepOf.includes(1);
    this.shortest = s.duration.reduce((least, time, k) => (this.labelled(s.kind[k]) && !kinds[s.kind[k]].stream && time > 0 ? Math.min(least, time) : least), Infinity);

    this.offsets = new Uint32Array(2 * meta.ranks + 1);
    meta.counts.forEach((rows, row) => { this.offsets[row + 1] = this.offsets[row] + rows; });
    this.start = new Float64Array(count);
    this.unit = new Uint32Array(count);
    const last = Float64Array.from(s.unit);
    for (let i = 0, tick = 0; i < count; i++) {
      tick = (tick + columns.start[i]) >>> 0;
      this.start[i] = tick * meta.tick;
      this.unit[i] = last[style[i]] += columns.unit[i];
    }
    if (columns.place) {
      this.places = new Uint32Array(count);
      for (let i = 0, place = -1; i < count; i++) this.places[i] = place += 1 + columns.place[i];
    }
    this.#sum();
  }

  /** Running sums, and the memory during every action. */
  #sum() {
    const used = new Set(this.kindOf);
    this.classes = this.stacked.filter((kind) => used.has(kind));
    this.classOf = Uint8Array.from(this.kindOf, (kind) => this.classes.indexOf(kind));
    const idle = this.classes.length, size = idle + 3;
    this.idleClass = idle; // data, then memory, then p2p
    this.width = size; // of these, only `used` are ever more than nothing
    this.sums = new Float64Array(this.count * size); // one after the other for each action
    this.level = new Float32Array(this.count);
    this.criticalSum = new Uint32Array(this.count + 1);
    const { sums, style, start, durationOf, halfOf } = this;
    const seen = new Set(), { add, free } = this.styles, total = new Float64Array(size), gaps = new Float64Array(3);
    for (let rank = 0; rank < this.ranks; rank++) {
      let end = 0, held = 0, freed = 0;
      total.fill(0);
      const [low, high] = this.row(rank);
      for (let i = low; i < high; i++) {
        const s = style[i], half = halfOf[s];
        if (half === LOWER) {
          for (let c = 0; c < size; c++) sums[i * size + c] = sums[(i - 1) * size + c];
        } else {
          if (i > low) {
            this.#gapParts(i, start[i] - end, gaps);
            for (let c = 0; c < 3; c++) total[idle + c] += gaps[c];
          }
          for (let c = 0; c < size; c++) sums[i * size + c] = total[c];
        }
        total[this.classOf[s]] += half ? durationOf[s] / 2 : durationOf[s];
        end = Math.max(end, start[i] + durationOf[s]);
        held += add[s];
        freed += free[s];
        this.level[i] = held;
        if (half === LOWER) this.level[i - 1] = held;
        if (half !== UPPER) { held += freed; freed = 0; }
      }
      total.forEach((time, c) => { if (time > 0) seen.add(c); });
    }
    this.used = [...seen].sort((a, b) => a - b);
    if (this.levels) this.level = this.levels;
    for (let i = 0; i < this.count; i++) this.criticalSum[i + 1] = this.criticalSum[i] + this.critical[i];
    this.fullest = Math.max(...this.peak, 0);
  }

  /** Idle time before action i: for data, for memory, for p2p; in that order of time. */
  #gapParts(i, gap, parts) {
    if (gap < this.rounding) { parts[0] = parts[1] = parts[2] = 0; return; }
    const p2p = this.waitTicks ? Math.min(gap, this.waitTicks[i] * this.tick) : 0;
    const memory = this.heldTicks ? Math.min(gap - p2p, this.heldTicks[i] * this.tick) : 0;
    const data = gap - p2p - memory;
    parts[0] = data < 1.5 * this.rounding && p2p + memory > 0 ? 0 : data;
    parts[1] = memory;
    parts[2] = gap - parts[0] - memory;
  }

  row(row) { return [this.offsets[row], this.offsets[row + 1]]; }
  end(i) { return this.start[i] + this.durationOf[this.style[i]]; }
  duration(i) { return this.durationOf[this.style[i]]; }
  kind(i) { return this.kindOf[this.style[i]]; }
  stage(i) { return this.styles.stage[this.style[i]]; }
  slack(i) { return this.slackTicks[i] * this.tick; }
  rank(i) { return this.rowOf(i) % this.ranks; }
  /** Position in the schedule. */
  place(i) { return this.places ? this.places[i] : i; }
  get waits() { return (this.lookup ??= new Waits(this)); }

  /** Return whether any action of a kind can be seen. */
  shows(kind) {
    if (this.kindOf.some((other, s) => other === kind && (this.durationOf[s] > 0 || this.stepOf[s]))) return true;
    // Transfers that are no actions begin when what they move is there.
    return this.offsets[this.ranks] === this.count && this.linkOf.some((link, lane) => link.some((time, s) => time >= 0 && this.kinds[this.kindOf[s]].sends[lane] === kind));
  }

  /** Return whether actions of a kind are for a microbatch, or slice of one. */
  labelled(kind) { return this.kinds[kind].counts === "microbatch"; }

  /** Name of an action, as in files: 0F3, 0F3.1 where there are slices. */
  actionName(i) { return `${this.stage(i)}${this.kinds[this.kind(i)].name}${this.number(i)}`; }

  /** Its microbatch, or microbatch.slice, where the first microbatch has a number; or what else it counts. */
  number(i, first = 0) {
    const unit = this.unit[i], { slices } = this;
    return slices > 1 && this.labelled(this.kind(i)) ? `${Math.floor(unit / slices) + first}.${unit % slices}` : String(unit + first);
  }

  /** The action of a name, −1 for none. */
  named(text) {
    const [, stage, name, number, slice] = /^(\d+)([A-Z_]+)(\d+)(?:\.(\d+))?$/.exec(text) ?? [];
    const kind = this.kinds.findIndex((one) => one.name === name);
    if (kind < 0) return -1;
    if (this.labelled(kind)) return this.waits.find([kind], Number(stage), slice ? number * this.slices + Number(slice) : Number(number));
    for (let i = 0; i < this.count; i++) if (this.kind(i) === kind && this.stage(i) === Number(stage) && this.unit[i] === Number(number)) return i;
    return -1;
  }

  /** Iteration of an action. */
  iterationOf(i) { return this.kinds[this.kind(i)].counts === "iteration" ? this.unit[i] : Math.floor(this.unit[i] / this.period); }

  /** The microbatch, or microbatch.slice, counted on through all iterations; nothing on an optimizer stride. */
  label(i) { return this.labelled(this.kind(i)) ? this.number(i, this.first) : ""; }

  rowOf(i) { return firstOf(1, this.offsets.length - 1, (row) => this.offsets[row] > i) - 1; }

  /** The last action of a row that starts by a time, one less than the row's first when none does. */
  at(row, time) { return firstOf(this.offsets[row], this.offsets[row + 1], (i) => this.start[i] > time) - 1; }

  /** `at` from an action on that starts by then: strides that double, then halves. */
  seek(i, high, time) {
    const { start } = this;
    let stride = 1;
    while (i + stride < high && start[i + stride] <= time) { i += stride; stride *= 2; }
    for (; stride >= 1; stride >>= 1) if (i + stride < high && start[i + stride] <= time) i += stride;
    return i;
  }

  /** State of a rank at a time: {bar}, or {cause, before}; before is the action the wait ends with. */
  stateAt(rank, time) {
    const [low, high] = this.row(rank);
    const i = this.at(rank, time);
    if (i < low) return { cause: high > low ? FILL : DRAIN, before: high > low ? low : -1, from: 0 };
    if (time < this.end(i)) return { bar: i };
    if (i + 1 >= high) return { cause: DRAIN, before: -1, from: this.end(i) };
    return { cause: this.causeAt(i + 1, time, this.end(i)), before: i + 1, from: this.end(i) };
  }

  /** Time of one cause in the idle time before an action. */
  gapTime(i, gap, cause) {
    this.#gapParts(i, gap, gapBuffer);
    return gapBuffer[{ [DATA]: 0, [MEMORY]: 1, [P2P]: 2 }[cause]];
  }

  causeAt(next, time, from) {
    const gaps = gapBuffer;
    this.#gapParts(next, this.start[next] - from, gaps);
    if (time < from + gaps[0]) return DATA;
    return time < from + gaps[0] + gaps[1] ? MEMORY : P2P;
  }

  /** Time of every class from the rank's first start to a time; i is the action at that time. */
  sumsAt(i, low, high, time, out) {
    const { sums, width, style, durationOf, idleClass } = this;
    if (i < low) { out.fill(0); return; }
    for (let c = 0, at = i * width; c < width; c++) out[c] = sums[at + c];
    const s = style[i], past = time - this.start[i], length = durationOf[s];
    const part = past < length ? past : length;
    if (this.halfOf[s] === LOWER) {
      out[this.classOf[s]] += part / 2;
      out[this.classOf[style[i - 1]]] += part / 2;
    } else {
      out[this.classOf[s]] += part;
    }
    if (past > length && i + 1 < high) {
      const gaps = gapBuffer;
      this.#gapParts(i + 1, this.start[i + 1] - this.start[i] - length, gaps);
      let rest = past - length;
      for (let c = 0; c < 3 && rest > 0; c++) {
        const piece = Math.min(rest, gaps[c]);
        out[idleClass + c] += piece;
        rest -= piece;
      }
    }
  }

  /** Positions of the actions of a microbatch: work rank by rank, then transfers and copies. */
  ofUnit(unit) {
    if (!this.byUnit) {
      const members = [];
      let most = 0;
      for (let i = 0; i < this.count; i++) {
        if (!this.labelled(this.kind(i))) continue;
        members.push(i);
        if (this.unit[i] > most) most = this.unit[i];
      }
      this.unitFrom = new Uint32Array(most + 2);
      for (const i of members) this.unitFrom[this.unit[i] + 1]++;
      for (let u = 0; u <= most; u++) this.unitFrom[u + 1] += this.unitFrom[u];
      const next = this.unitFrom.slice();
      this.byUnit = new Uint32Array(members.length);
      for (const i of members) this.byUnit[next[this.unit[i]]++] = i;
    }
    if (unit + 1 >= this.unitFrom.length) return new Uint32Array(0);
    return this.byUnit.subarray(this.unitFrom[unit], this.unitFrom[unit + 1]);
  }

  /** The work among them. */
  workOf(unit) { const last = this.offsets[this.ranks]; return this.ofUnit(unit).filter((i) => i < last); }

  /** Actions that an action waits for: producers of its input, and those with an earlier turn. */
  waitsFor(i) { return [...new Set([...this.waits.producers(i), ...this.waits.before(i)])]; }

  /** Actions that wait for an action. */
  waitedForBy(i) { return [...new Set([...this.waits.consumers(i), ...this.waits.after(i)])]; }

  /** Number of lanes of transfers: another one for what stages carry, which is under way at the same time. */
  get lanes() { return this.carries.length ? 2 : 1; }

  /** Transfers that a rank sends, by lane: to neighbors, then what stages carry. */
  transfers(rank) {
    this.sent ??= [];
    return this.sent[rank] ??= Array.from({ length: this.lanes }, (_, lane) => this.#sends(rank, lane));
  }

  /** Transfers of a lane in order of their start: {count, start, end, kind, busy, by}. */
  #sends(rank, lane) {
    const [low, high] = this.row(rank), [first, last] = this.row(this.ranks + rank), own = last > first;
    const queued = this.queuedTicks[lane], link = this.linkOf[lane];
    const begins = (i) => (own ? this.start[i] : this.end(i) + (queued ? queued[i] * this.tick : 0));
    const lasts = (i) => (own ? this.duration(i) : link[this.style[i]]);
    const elsewhere = ({ receives, carried }) => receives || (own && carried !== (lane > 0));
    const from = own ? first : low, members = new Uint32Array((own ? last : high) - from);
    let count = 0, sorted = true;
    for (let i = from; i < from + members.length; i++) {
      if (lasts(i) < 0 || elsewhere(this.kinds[this.kind(i)])) continue;
      if (count && begins(members[count - 1]) > begins(i)) sorted = false;
      members[count++] = i;
    }
    const order = members.subarray(0, count);
    if (!sorted) order.sort((a, b) => begins(a) - begins(b) || a - b);
    const sent = { count, start: new Float64Array(count), end: new Float64Array(count), kind: new Uint8Array(count), busy: new Float64Array(count + 1) };
    order.forEach((i, k) => {
      sent.start[k] = begins(i);
      sent.end[k] = sent.start[k] + lasts(i);
      sent.kind[k] = own ? this.kind(i) : this.kinds[this.kind(i)].sends[lane];
      sent.busy[k + 1] = sent.busy[k] + lasts(i);
    });
    /** Number of transfers that have begun by a time. */
    sent.by = (time) => firstOf(0, count, (k) => sent.start[k] > time);
    return sent;
  }

  /** The highest memory among actions from..to: whole blocks first, then what is left. */
  highest(from, to) {
    let most = 0;
    if (to - from > 8 * BLOCKS[0]) {
      const { size, first, memory } = this.blocks(0), [low] = this.row(this.rowOf(from)), at = first[this.rowOf(from)];
      const a = Math.ceil((from - low) / size), b = Math.floor((to + 1 - low) / size);
      for (let k = a; k < b; k++) if (memory[at + k] > most) most = memory[at + k];
      return Math.max(most, this.highest(from, low + a * size - 1), this.highest(low + b * size, to));
    }
    for (let i = from; i <= to; i++) if (this.level[i] > most) most = this.level[i];
    return most;
  }

  /** So many actions of a rank together: when they begin, sums up to then, and their most memory. */
  blocks(level) {
    const { start: time, sums, level: memory, critical, offsets: first } = this;
    if (level < 0) return { time, sums, memory, critical, first };
    this.pyramid ??= [];
    if (!this.pyramid[level]) this.pyramid[level] = new Blocks(this, BLOCKS[level]);
    return this.pyramid[level];
  }

  /** Memory after an action, until the next one starts. */
  levelAfter(i) {
    if (this.levels) return this.levels[i];
    const s = this.style[i];
    const partner = this.halfOf[s] === LOWER ? this.styles.free[this.style[i - 1]] : 0;
    return this.level[i] + this.styles.free[s] + partner;
  }
}

const BLOCKS = [4, 16, 64, 256, 1024];

/** Actions of every rank in blocks of one size; from afar a column of pixels is a few of these. */
class Blocks {
  constructor(run, size) {
    const { width } = run, ends = new Float64Array(width);
    this.size = size;
    this.first = new Uint32Array(run.ranks + 1);
    for (let rank = 0; rank < run.ranks; rank++) {
      const [low, high] = run.row(rank);
      this.first[rank + 1] = this.first[rank] + Math.ceil((high - low) / size) + 1;
    }
    const count = this.first[run.ranks];
    this.time = new Float64Array(count);
    this.sums = new Float64Array(count * width);
    this.memory = new Float32Array(count);
    this.critical = new Uint8Array(count);
    for (let rank = 0; rank < run.ranks; rank++) {
      const [low, high] = run.row(rank);
      let b = this.first[rank];
      for (let i = low; i < high; i += size, b++) {
        this.time[b] = run.start[i];
        for (let c = 0; c < width; c++) this.sums[b * width + c] = run.sums[i * width + c];
        const end = Math.min(high, i + size);
        for (let k = i; k < end; k++) if (run.level[k] > this.memory[b]) this.memory[b] = run.level[k];
        this.critical[b] = run.criticalSum[end] > run.criticalSum[i] ? 1 : 0;
      }
      // One more, at the end of the rank's work, holds the totals.
      if (high > low) {
        this.time[b] = run.end(high - 1);
        run.sumsAt(high - 1, low, high, this.time[b], ends);
        this.sums.set(ends, b * width);
      }
    }
  }
}

const gapBuffer = new Float64Array(3);
