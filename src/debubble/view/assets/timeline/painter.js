// Drawing: every rank is a few lines of pixels, worked out column by column and copied down its row.
// A column in which at most one action begins shows what runs at its middle; a fuller one, or one of thin
// actions, shows the shares of all kinds, stacked in a fixed order, idle time at the bottom. So a frame
// costs as much as it has pixels, however many actions there are.

const BAR = 0, GAP = 1, DENSE = 2;
const GLYPHS = "0123456789.FIWBROPTS";

class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.scratch = { width: 0 };
  }

  /** Size in device pixels. */
  resize(width, height, scale) {
    if (this.canvas.width !== width || this.canvas.height !== height || this.scale !== scale) {
      Object.assign(this.canvas, { width, height });
      this.image = this.context.createImageData(Math.max(1, width), Math.max(1, height));
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.scale = scale;
      this.glyphs = null;
    }
    if (this.scratch.width !== width) {
      const lines = Array.from({ length: 4 }, () => new Uint32Array(width));
      this.scratch = { width, lines, mode: new Uint8Array(width), cause: new Uint8Array(width), ink: new Uint8Array(width) };
    }
  }

  /** Colours of a theme as pixels; styles of a run get theirs on first use. */
  setTheme(theme) {
    this.theme = theme;
    this.paper = pixel(theme.paper);
    this.ink = pixel(theme.ink);
    this.plain = [pixel(theme.idle), pixel(theme.idle)];
    this.causes = theme.causes.map((pair) => pair.map(pixel));
    this.memory = pixel(theme.memory);
    this.limit = pixel(theme.limit);
  }

  colors(run) {
    if (!run.colors) {
      const { kind, shade } = run.styles;
      const pick = (tone) => Uint32Array.from(kind, (k, s) => pixel(run.palette[k][shade[s]][tone]));
      const stripe = (edge) => Uint32Array.from(kind, (k) => (run.kinds[k].edge === edge ? pixel(run.kinds[k].stripe) : 0));
      run.colors = {
        fill: pick(0), dark: Uint8Array.from(kind, (k, s) => run.palette[k][shade[s]][1] === "#000000"),
        top: stripe("top"), bottom: stripe("bottom"),
        classes: run.classes.map((k) => pixel(run.kinds[k].color)), kinds: run.kinds.map((k) => pixel(k.color)),
      };
    }
    return run.colors;
  }

  clear() { this.pixels.fill(this.paper); }
  flush() { this.context.putImageData(this.image, 0, 0); }

  /**
   * One rank.
   * @param {Run} run what
   * @param {number} rank which
   * @param {{from: number, perPixel: number, left: number, right: number, coarse: number}} span time of
   *   the column `left`, time of a pixel, first and past the last column, and pixels per column
   * @param {{y: number, bar: number, p2p: number, memory: number}} box pixel row, and heights
   * @param {{bubbles: boolean, critical: boolean, labels: boolean}} layers what
   */
  row(run, rank, span, box, layers) {
    const columns = (span.right - span.left) / span.coarse, [low] = run.row(rank);
    const first = Math.max(low, run.at(rank, span.from));
    const crowd = (run.at(rank, span.from + span.perPixel * (span.right - span.left)) - first) / columns;
    if (crowd >= 1) {
      const level = BLOCKS.findLastIndex((size) => crowd >= size);
      this.#fromAfar(run, rank, span, box, layers, run.blocks(level));
    } else {
      const dense = this.#columns(run, rank, span, layers);
      this.#copy(run, rank, span, box, layers, dense);
      if (layers.labels && box.bar >= 11 * this.scale) this.#labels(run, rank, span, box);
      if (box.memory) this.#memory(run, rank, span, box, layers);
    }
    if (box.p2p) this.#transfers(run, rank, span, box.y + box.bar + this.scale, box.p2p);
  }

  /** A row of crowded columns, out of blocks of actions: between their beginnings sums are straight lines. */
  #fromAfar(run, rank, { from, perPixel, left, right, coarse }, box, layers, blocks) {
    const { time, sums, memory, critical } = blocks, { width } = run;
    const begin = blocks.first[rank], end = blocks.first[rank + 1] - 1;
    const tones = this.#tones(run, layers);
    let now = new Float64Array(width), next = new Float64Array(width);
    const at = (b, moment, out) => {
      const share = b >= end ? 0 : Math.max(0, moment - time[b]) / (time[b + 1] - time[b]);
      for (let c = 0; c < width; c++) {
        const here = sums[b * width + c];
        out[c] = share ? here + share * (sums[(b + 1) * width + c] - here) : here;
      }
    };
    const seek = (b, moment) => { while (b < end && time[b + 1] <= moment) b++; return b; };
    let low = begin, high = end;
    while (high - low > 1) { const m = (low + high) >> 1; if (time[m] <= from) low = m; else high = m; }
    let b = low;
    at(b, from, now);
    const wide = coarse * perPixel, rest = tones.length - 1, drained = tones[rest];
    for (let x = left; x < right; x += coarse) {
      const moment = from + (x - left + coarse) * perPixel, middle = moment - wide / 2;
      const e = seek(b, moment), columns = Math.min(coarse, right - x);
      at(e, moment, next);
      if (middle >= 0 && middle <= run.makespan) {
        tones[rest] = layers.bubbles && middle < time[begin] ? this.causes[FILL][0] : drained;
        this.#pile(now, next, wide, x, columns, box, tones);
        let most = 0, marked = 0;
        for (let k = b; k <= e; k++) {
          if (memory[k] > most) most = memory[k];
          marked |= critical[k];
        }
        if (layers.critical && marked) this.#mark(x, columns, box);
        if (box.memory) this.#level(run, most, x, columns, box, layers);
      }
      b = e;
      [now, next] = [next, now];
    }
  }

  /** Colours of the classes of time, and of the rest of a column. */
  #tones(run, layers) {
    const gaps = [DATA, MEMORY, P2P].map((cause) => (layers.bubbles ? this.causes[cause][1] : this.plain[0]));
    return Uint32Array.from([...this.colors(run).classes, ...gaps, layers.bubbles ? this.causes[DRAIN][0] : this.plain[0]]);
  }

  /** Stack what happened between two moments into a column. */
  #pile(now, next, time, x, columns, box, tones) {
    const { pixels, canvas: { width, height } } = this, scale = box.bar / time;
    const last = Math.min(box.bar, height - box.y);
    let filled = 0, y = Math.max(0, -box.y);
    for (let c = 0; c < tones.length && y < last; c++) {
      filled = c < next.length ? filled + (next[c] - now[c]) * scale : box.bar;
      const until = Math.min(last, Math.round(filled)), tone = tones[c];
      for (; y < until; y++) {
        const at = (box.y + y) * width + x;
        for (let k = 0; k < columns; k++) pixels[at + k] = tone;
      }
    }
  }

  /** The line over critical actions. */
  #mark(x, columns, box) {
    const { pixels, canvas: { width, height } } = this, tall = Math.min(box.bar, Math.round(2 * this.scale));
    for (let y = Math.max(0, box.y); y < Math.min(height, box.y + tall); y++) {
      for (let k = 0; k < columns; k++) pixels[y * width + x + k] = this.ink;
    }
  }

  /** Fill the lines of the scratch: head, upper half, lower half and foot of the row. */
  #columns(run, rank, { from, perPixel, left, right, coarse }, layers) {
    const { lines: [head, upper, lower, foot], mode, cause, ink } = this.scratch;
    const { start, style, laneOf, durationOf, critical } = run;
    const { fill, top, bottom } = this.colors(run);
    const [low, high] = run.row(rank), { paper } = this;
    const tones = (kind) => (layers.bubbles ? this.causes[kind] : this.plain)[0];
    const wide = 5 * this.scale;
    let dense = false;
    let i = run.at(rank, from);
    for (let x = left; x < right; x += coarse) {
      const begin = from + (x - left) * perPixel, end = begin + perPixel * coarse;
      const j = run.seek(i, high, end), between = j - i;
      // The second half of a pair begins with the first. Of an action thinner than two columns both ends
      // could fall into columns whose middle shows another one.
      const thin = between > 0 && (durationOf[style[j]] < 2 * perPixel || (i >= low && durationOf[style[i]] < 2 * perPixel));
      if (thin || (between > 1 && (between > 2 || laneOf[style[j]] !== LOWER))) {
        mode[x] = DENSE;
        dense = true;
      } else {
        const middle = (begin + end) / 2;
        let k = j;
        while (k > i && start[k] > middle) k--;
        const s = k >= low ? style[k] : 0;
        if (k < low || middle >= start[k] + durationOf[s] || middle < start[k]) {
          mode[x] = GAP;
          cause[x] = middle < 0 || middle > run.makespan ? 255
            : k < low ? (high > low ? FILL : DRAIN)
            : k + 1 >= high ? DRAIN : layers.bubbles ? run.causeAt(k + 1, middle, start[k] + durationOf[s]) : DATA;
          // Where there is no room for a pattern its stronger tone stands for it.
          const narrow = layers.bubbles && k >= low && k + 1 < high && start[k + 1] - start[k] - durationOf[s] < 6 * perPixel;
          head[x] = upper[x] = lower[x] = foot[x] = cause[x] === 255 ? paper : narrow ? this.causes[cause[x]][1] : tones(cause[x]);
        } else {
          mode[x] = BAR;
          ink[x] = critical[k];
          const first = laneOf[s] === LOWER ? style[k - 1] : s;
          upper[x] = fill[first];
          lower[x] = fill[s];
          head[x] = top[first] || fill[first];
          foot[x] = bottom[s] || fill[s];
        }
        if (between > 0 && j > low && durationOf[style[j]] > wide * perPixel && durationOf[style[j - 1]] > wide * perPixel) {
          mode[x] = BAR;
          ink[x] = 0;
          head[x] = upper[x] = lower[x] = foot[x] = paper;
        }
      }
      for (let c = 1; c < coarse && x + c < right; c++) {
        mode[x + c] = mode[x];
        cause[x + c] = cause[x];
        ink[x + c] = ink[x];
        for (const line of this.scratch.lines) line[x + c] = line[x];
      }
      i = j;
    }
    return dense;
  }

  #copy(run, rank, span, box, layers, dense) {
    const { lines: [head, upper, lower, foot], mode, cause, ink } = this.scratch;
    const { left, right } = span, { pixels, canvas: { width, height } } = this;
    const stripe = box.bar >= 12 * this.scale ? Math.round(3 * this.scale) : box.bar >= 5 ? this.scale : 0;
    const first = Math.max(0, -box.y), last = Math.min(box.bar, height - box.y);
    for (let y = first; y < last; y++) {
      const line = y < stripe ? head : y >= box.bar - stripe ? foot : y < box.bar / 2 ? upper : lower;
      pixels.set(line.subarray(left, right), (box.y + y) * width + left);
    }
    if (dense) this.#stack(run, rank, span, box, layers);
    const line = layers.critical ? Math.max(1, Math.round(2 * this.scale)) : 0;
    for (let x = left; x < right; x++) {
      if (mode[x] === GAP && layers.bubbles && cause[x] > DRAIN && cause[x] < 255) {
        const dark = this.causes[cause[x]][1], marked = PATTERNS[cause[x]];
        for (let y = first; y < last; y++) if (marked(x, box.y + y)) pixels[(box.y + y) * width + x] = dark;
      }
      if (line && mode[x] === BAR && ink[x]) {
        for (let y = first; y < Math.min(line, last); y++) pixels[(box.y + y) * width + x] = this.ink;
      }
    }
  }

  /** The fuller ones among the columns: the share of every kind, idle time below. */
  #stack(run, rank, { from, perPixel, left, right, coarse }, box, layers) {
    const { mode } = this.scratch, [low, high] = run.row(rank), tones = this.#tones(run, layers);
    let now = new Float64Array(run.width), next = new Float64Array(run.width);
    let i = run.at(rank, from), known = -1;
    for (let x = left; x < right; x += coarse) {
      const begin = from + (x - left) * perPixel, end = begin + perPixel * coarse;
      const j = run.seek(i, high, end);
      if (mode[x] === DENSE) {
        const columns = Math.min(coarse, right - x);
        if (known !== x) run.sumsAt(i, low, high, begin, now);
        run.sumsAt(j, low, high, end, next);
        known = x + coarse;
        this.#pile(now, next, end - begin, x, columns, box, tones);
        if (layers.critical && run.criticalSum[j + 1] > run.criticalSum[Math.max(low, i + 1)]) this.#mark(x, columns, box);
        [now, next] = [next, now];
      }
      i = j;
    }
  }

  /** Microbatch numbers, with the kind where there is room, from ready-made glyphs. */
  #labels(run, rank, { from, perPixel, left, right }, box) {
    const { start, style, unit, laneOf, durationOf, kindOf } = run;
    const { dark } = this.colors(run), [, high] = run.row(rank);
    const glyphs = (this.glyphs ??= this.#glyphs());
    const digits = "0".repeat(String(run.period - 1).length);
    const least = 14 * this.scale, end = from + (right - left) * perPixel;
    for (let i = Math.max(run.at(rank, from), run.row(rank)[0]); i < high && start[i] < end; i++) {
      const s = style[i], room = durationOf[s] / perPixel;
      if (room < least) continue;
      const lane = laneOf[s];
      if (lane && box.bar < 22 * this.scale) continue;
      const x0 = left + (start[i] - from) / perPixel;
      let text = kindOf[s] === 5 ? "" : String(unit[i] % run.period);
      if (run.slices > 1 && text) text = `${Math.floor((unit[i] % run.period) / run.slices)}.${unit[i] % run.slices}`;
      if (glyphs.measure(`W${digits}`) + 6 * this.scale <= room) text = run.kinds[kindOf[s]].name + text;
      const span = glyphs.measure(text);
      if (!text || span + 3 * this.scale > room) continue;
      const height = lane ? box.bar / 2 : box.bar;
      const top = box.y + (lane === LOWER ? box.bar / 2 : 0) + (height - glyphs.height) / 2;
      let x = Math.round(x0 + (room - span) / 2);
      if (x < left && x0 + room > left + span + 4) x = left + 2;
      for (const letter of text) x += this.#glyph(glyphs, letter, x, Math.round(top), dark[s] ? 0 : 255, left, right);
    }
  }

  #glyph(glyphs, letter, x, y, tone, left, right) {
    const { alpha, width, height, stride } = glyphs.of(letter), bytes = this.image.data;
    const limit = this.canvas.height;
    for (let row = 0; row < height; row++) {
      if (y + row < 0 || y + row >= limit) continue;
      for (let column = 0; column < stride; column++) {
        const share = alpha[row * stride + column], at = x + column;
        if (!share || at < left || at >= right) continue;
        const p = 4 * ((y + row) * this.canvas.width + at);
        bytes[p] += ((tone - bytes[p]) * share) / 255;
        bytes[p + 1] += ((tone - bytes[p + 1]) * share) / 255;
        bytes[p + 2] += ((tone - bytes[p + 2]) * share) / 255;
      }
    }
    return width;
  }

  /** Transparency of every letter that labels are made of. */
  #glyphs() {
    const size = Math.round(11 * this.scale), height = Math.round(size * 1.25), stride = size + 2;
    const sheet = document.createElement("canvas");
    Object.assign(sheet, { width: stride * GLYPHS.length, height });
    const context = sheet.getContext("2d", { willReadFrequently: true });
    context.font = `500 ${size}px system-ui, "DejaVu Sans", sans-serif`;
    context.textBaseline = "middle";
    const found = new Map();
    [...GLYPHS].forEach((letter, index) => context.fillText(letter, index * stride + 1, height / 2 + this.scale * 0.5));
    [...GLYPHS].forEach((letter, index) => {
      const { data } = context.getImageData(index * stride, 0, stride, height);
      const alpha = new Uint8Array(stride * height);
      for (let k = 0; k < alpha.length; k++) alpha[k] = data[4 * k + 3];
      found.set(letter, { alpha, width: Math.round(context.measureText(letter).width), height, stride });
    });
    const of = (letter) => found.get(letter) ?? found.get("O");
    return { of, height, measure: (text) => [...text].reduce((sum, letter) => sum + of(letter).width, 0) };
  }

  #transfers(run, rank, { from, perPixel, left, right }, y, tall) {
    const sent = run.transfers(rank), { kinds } = this.colors(run);
    const count = sent.start.length;
    if (!count) return;
    const { pixels, canvas: { width, height } } = this;
    let k = 0;
    for (let x = left; x < right; x++) {
      const begin = from + (x - left) * perPixel, end = begin + perPixel;
      let low = k, high = count;
      while (low < high) { const m = (low + high) >> 1; if (sent.start[m] < end) low = m + 1; else high = m; }
      const last = low - 1;
      const covered = last < 0 ? 0
        : last >= k ? Math.max(sent.busy[last + 1] - sent.busy[k], sent.end[Math.max(k - 1, 0)] > begin ? perPixel : 0)
        : sent.end[last] > begin ? perPixel : 0;
      if (last >= 0 && covered > 0) {
        const rows = Math.max(1, Math.round(tall * Math.min(1, covered / perPixel)));
        for (let row = tall - rows; row < tall; row++) {
          if (y + row >= 0 && y + row < height) pixels[(y + row) * width + x] = kinds[sent.kind[last]];
        }
      }
      k = low;
    }
  }

  /** Memory as an area, column by column. */
  #memory(run, rank, { from, perPixel, left, right, coarse }, box, layers) {
    const [low, high] = run.row(rank);
    let i = run.at(rank, from);
    for (let x = left; x < right; x += coarse) {
      const begin = from + (x - left) * perPixel, j = run.seek(i, high, begin + perPixel * coarse);
      if (begin > run.makespan) break;
      let most = i < low ? 0 : begin < run.end(i) ? run.level[i] : run.levelAfter(i);
      if (j > i) most = Math.max(most, run.highest(Math.max(i + 1, low), j));
      i = j;
      if (begin + perPixel > 0) this.#level(run, most, x, Math.min(coarse, right - x), box, layers);
    }
  }

  /** One column of it: what is above the limit has the limit's colour, and the limit is a line. */
  #level(run, most, x, columns, box, { limit }) {
    const { pixels, canvas: { width, height } } = this, tall = box.memory;
    const foot = box.y + box.bar + (box.p2p ? box.p2p + this.scale : 0) + this.scale + tall;
    const full = Math.max(run.fullest, limit ?? 0) || 1, top = foot - Math.round((tall * most) / full);
    const line = limit == null ? -1 : foot - Math.round((tall * limit) / full);
    for (let k = 0; k < columns; k++) {
      for (let row = Math.max(0, top); row < Math.min(height, foot); row++) {
        pixels[row * width + x + k] = row < line ? this.limit : this.memory;
      }
      if (line >= 0 && line < height) pixels[line * width + x + k] = this.limit;
    }
  }
}
