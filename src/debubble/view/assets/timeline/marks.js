// Marks and differences of a run, from debubble.view.trace_view. A mark is a stretch of a
// rank's time with a name and a color. Over idle time it fills the row in place of the causes that follow from the
// schedule; over an action it is a strip at its foot. Differences are from the same actions of another run.

/** The part of a row that a mark over an action takes, and the pixels from one line over a difference to the next. */
const FOOT = 0.24, HATCH = 5;

/** Marks of one run, in order of time on every rank, none over another. */
class Marks {
  constructor(run, { counts }, bytes, looks) {
    const { ranks } = run, { buffer } = bytes.slice();
    this.offsets = new Uint32Array(ranks + 1);
    counts.forEach((count, rank) => { this.offsets[rank + 1] = this.offsets[rank] + count; });
    const count = this.offsets[ranks];
    this.start = new Float32Array(buffer, 0, count);
    this.end = new Float32Array(buffer, 4 * count, count);
    this.look = new Uint8Array(buffer, 8 * count, count);
    this.looks = looks;
    this.over = new Uint8Array(count);
    this.times = new Float64Array(looks.length);
    for (let rank = 0; rank < ranks; rank++) {
      const [low] = run.row(rank);
      for (let k = this.offsets[rank]; k < this.offsets[rank + 1]; k++) {
        const middle = (this.start[k] + this.end[k]) / 2, i = run.at(rank, middle);
        this.over[k] = i >= low && middle < run.end(i) ? 1 : 0;
        this.times[this.look[k]] += this.end[k] - this.start[k];
      }
    }
  }

  /** The first mark of a rank that ends after a time. */
  after(rank, time) { return firstOf(this.offsets[rank], this.offsets[rank + 1], (k) => this.end[k] > time); }

  /** The mark at a time: {look, start, end}; null for none. */
  at(rank, time) {
    const k = this.after(rank, time);
    return k < this.offsets[rank + 1] && this.start[k] <= time ? { look: this.looks[this.look[k]], start: this.start[k], end: this.end[k] } : null;
  }

  /** Time by look of marks over idle time (0) or over actions (1) on a rank within a stretch, added to what `sums` has. */
  within(rank, from, to, over, sums) {
    for (let k = this.after(rank, from); k < this.offsets[rank + 1] && this.start[k] < to; k++) {
      if (this.over[k] !== over) continue;
      const look = this.looks[this.look[k]];
      sums.set(look, (sums.get(look) ?? 0) + Math.min(to, this.end[k]) - Math.max(from, this.start[k]));
    }
  }

  /** Time of all marks that look like one of the causes of idle time. */
  like(cause) { return this.looks.reduce((sum, look, k) => (look.like === cause ? sum + this.times[k] : sum), 0); }
}

/** Delays of actions against another run, and how much longer they take. */
class Differences {
  constructor(run, { from, least }, bytes) {
    const { buffer } = bytes.slice(), { count } = run;
    Object.assign(this, { run, from, least });
    const late = new Float32Array(buffer, 0, count), longer = new Float32Array(buffer, 4 * count, count);
    this.late = Float32Array.from(late, (_, i) => late[run.place(i)]);
    this.longer = Float32Array.from(longer, (_, i) => longer[run.place(i)]);
  }

  /** Additional idle time of the rank before an action. */
  waited(i) {
    const [low] = this.run.row(this.run.rowOf(i));
    return i > low ? this.late[i] - this.late[i - 1] - this.longer[i - 1] : this.late[i];
  }

  /** Call `shade(start, end)` for the shaded parts of an action and of the idle time before it. */
  around(i, shade) {
    const { run, least, longer } = this, half = run.halfOf[run.style[i]];
    if (longer[i] > least) shade(run.end(i) - longer[i], run.end(i));
    if (half === LOWER) return;
    const waited = this.waited(i);
    if (waited > least) shade(run.start[i] - waited, run.start[i]);
  }
}

/** Decode the marks and differences of a run. */
async function decodeMarks(run, meta, payload) {
  const looks = payload.marks?.map((look) => ({ ...look, like: look.like == null ? null : payload.causes.indexOf(look.like) }));
  run.marks = meta.marks ? new Marks(run, meta.marks, await inflate(bytesOf(meta.marks.data)), looks) : null;
  run.differs = meta.differs ? new Differences(run, meta.differs, await inflate(bytesOf(meta.differs.data))) : null;
}

/** Marks of a rank into a picture whose idle time has one plain tone. */
class MarkPainter {
  constructor({ pixels, image, run, span, box, plain, paper, ink, causes, scale }) {
    Object.assign(this, { pixels, width: image.width, height: image.height, run, span, box, idle: plain[0], paper, ink, scale });
    const { marks } = run;
    if (!marks) return;
    // Two tones and a pattern, as causes of idle time have.
    this.tones = marks.looks.map(({ like, color }) => (like == null ? [pixel(color), pixel(color)] : causes[like]));
    this.patterns = marks.looks.map(({ like }) => (like == null ? null : PATTERNS[like]));
    this.weights = new Float64Array(marks.looks.length);
  }

  row(rank, top) {
    if (this.run.marks) this.#marks(rank, top);
  }

  #marks(rank, top) {
    const { run: { marks }, span: { from, perPixel, left, right }, weights } = this, last = marks.offsets[rank + 1];
    let k = marks.after(rank, from);
    for (let x = left; x < right && k < last; x++) {
      const begin = from + (x - left) * perPixel, end = begin + perPixel;
      if (marks.start[k] >= end) { x = Math.max(x, left + Math.floor((marks.start[k] - from) / perPixel) - 1); continue; }
      let idle = 0, over = 0, strongest = -1, most = 0, wide = 0;
      weights.fill(0);
      for (; k < last && marks.start[k] < end; k++) {
        const time = Math.min(end, marks.end[k]) - Math.max(begin, marks.start[k]);
        if (marks.over[k]) { over += time; if (time > most) { most = time; strongest = marks.look[k]; } }
        else { idle += time; weights[marks.look[k]] += time; wide = Math.max(wide, marks.end[k] - marks.start[k]); }
        if (marks.end[k] > end) break;
      }
      if (idle > 0) this.#idle(x, top, idle, wide >= 6 * perPixel || this.#stretch(rank, (begin + end) / 2) >= 6 * perPixel);
      if (over > 0.5 * perPixel) this.#foot(x, top, this.tones[strongest][1]);
    }
  }

  /** Length of the idle time of a rank around a time. */
  #stretch(rank, time) {
    const { run } = this, { bar, before, from } = run.stateAt(rank, time);
    return bar != null ? 0 : (before >= 0 ? run.start[before] : run.makespan) - from;
  }

  /** The idle pixels of a column, shared among its marks; never one of an action. */
  #idle(x, top, total, wide) {
    const { pixels, width, height, box: { bar }, idle, weights, tones, patterns } = this;
    let count = 0;
    for (let y = Math.max(0, top); y < Math.min(height, top + bar); y++) if (pixels[y * width + x] === idle) count++;
    let look = 0, until = (weights[0] / total) * count, seen = 0;
    for (let y = Math.max(0, top); seen < count; y++) {
      if (pixels[y * width + x] !== idle) continue;
      while (look + 1 < weights.length && seen + 0.5 > until) until += (weights[++look] / total) * count;
      const pattern = patterns[look], dark = pattern && wide ? y % pattern.down === 0 && (x + pattern.slant * y) % pattern.across === 0 : true;
      pixels[y * width + x] = tones[look][dark ? 1 : 0];
      seen++;
    }
  }

  #foot(x, top, tone) {
    const { pixels, width, height, box: { bar }, scale, idle, paper } = this, tall = Math.max(Math.round(2 * scale), Math.round(FOOT * bar));
    if (bar < 6) return;
    for (let y = Math.max(0, top + bar - tall); y < Math.min(height, top + bar); y++) {
      const under = pixels[y * width + x];
      if (under !== idle && under !== paper) pixels[y * width + x] = tone;
    }
  }

  /** Slanted lines over all time that the other run does not have, of actions first..last. */
  differences(first, last, top) {
    const { pixels, width, height, run: { differs }, span: { from, perPixel, left, right }, box: { bar }, ink, scale } = this;
    if (bar < 6 * scale) return;
    const across = Math.round(HATCH * scale), line = Math.max(1, Math.round(scale));
    const shade = (start, end) => {
      const a = Math.max(left, left + Math.round((start - from) / perPixel)), b = Math.min(right, left + Math.round((end - from) / perPixel));
      for (let y = Math.max(0, top); y < Math.min(height, top + bar); y++) {
        for (let x = a; x < b; x++) if ((x + y) % across < line) pixels[y * width + x] = ink;
      }
    };
    for (let i = first; i <= last; i++) differs.around(i, shade);
  }
}

const FEW = 2; // runs up to which the legend has their shares

/** Text of a cause with the share of every run; of many runs, the shares are shown on hover. */
function withShares(name, runs, shares) {
  const all = shares.map((share, k) => `${runs[k].name} ${percent(share)}`).join(", ");
  if (runs.length === 1) return { text: `${name} ${percent(shares[0])}` };
  return runs.length <= FEW ? { text: `${name} (${all})` } : { text: name, title: all };
}

/** Legend of marks that look like no cause of idle time, and of differences. */
function markLegend(runs, theme) {
  const items = [], marked = runs.filter((run) => run.marks), differing = runs.find((run) => run.differs);
  marked[0]?.marks.looks.forEach(({ title, color, like }, k) => {
    const shares = marked.map(({ marks, makespan, ranks }) => marks.times[k] / (makespan * ranks || 1));
    if (like == null && shares.some((share) => share >= 1e-9)) items.push({ color, ...withShares(title, marked, shares) });
  });
  if (differing) items.push({ color: theme.ink, hatched: true, text: `longer than ${differing.differs.from}` });
  return items;
}
