// Drawing: every rank is a band of pixels, worked out column by column. A column in which at most one action
// begins shows what runs at its middle; a fuller one, or one of thin actions, shows the shares of all kinds, stacked
// in a fixed order, idle time at the bottom. So a frame costs as much as it has pixels, however many actions there are.

class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.before = this.after = this.tones = new Uint32Array(0);
    this.gaps = { count: 0, from: [], to: [], cause: [] };
  }

  /** Size in device pixels. */
  resize(width, height, scale) {
    if (this.canvas.width === width && this.canvas.height === height && this.scale === scale) return;
    Object.assign(this.canvas, { width, height });
    this.image = this.context.createImageData(Math.max(1, width), Math.max(1, height));
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.scale = scale;
    this.glyphs = this.strip = null;
  }

  /** Colors of a theme as pixels. */
  setTheme(theme) {
    this.paper = pixel(theme.paper);
    this.ink = pixel(theme.ink);
    this.plain = [pixel(theme.idle), pixel(theme.idle)];
    this.causes = theme.causes.map((pair) => pair.map(pixel));
    this.memory = pixel(theme.memory);
    this.limit = pixel(theme.limit);
    this.iterations = theme.iterations.map(pixel);
  }

  clear() { this.pixels.fill(this.paper); }
  flush() { this.context.putImageData(this.image, 0, 0); }

  /**
   * What the next rows show.
   * @param {Run} run what
   * @param {{from: number, perPixel: number, left: number, right: number, coarse: number}} span time of
   *   the column `left`, time of a pixel, first and past the last column, and pixels per column
   * @param {{bar: number, p2p: number, memory: number}} box heights
   * @param {{bubbles: boolean, critical: boolean, labels: boolean, limit: number}} layers what
   */
  open(run, span, box, layers) {
    Object.assign(this, { run, span, box, layers });
    // Marks are causes of idle time in place of those that follow from the schedule.
    this.bubbles = layers.bubbles && !run.marks;
    this.beside = run.marks || run.differs ? new MarkPainter(this) : null;
    const { scale } = this, columns = span.right - span.left;
    this.columns = columns;
    if (this.strip?.line.length !== columns) {
      this.strip = new Strip(columns, this.image.height);
      this.area = new Uint16Array(columns);
    }
    this.levels = box.memory ? this.area : null;
    this.mark = layers.critical ? Math.min(box.bar, Math.max(1, Math.round(2 * scale))) : 0;
    this.edge = box.bar >= 12 * scale ? Math.round(3 * scale) : box.bar >= 5 ? Math.round(scale) : 0;
    this.half = Math.ceil(box.bar / 2);
    this.unit = box.memory / (Math.max(run.fullest, ...[layers.limit ?? 0].flat()) || 1);
    this.band = run.iterations > 1 && box.bar >= 10 * scale ? Math.round(2.5 * scale) : 0;
    const gaps = [DATA, MEMORY, P2P].map((cause) => (this.bubbles ? this.causes[cause][1] : this.plain[0]));
    if (this.tones.length < run.width) {
      this.before = new Float64Array(run.width);
      this.after = new Float64Array(run.width);
      this.tones = new Uint32Array(run.width);
    }
    this.tones.set([...colorsOf(run).classes, ...gaps]);
  }

  /** One rank, from a line of the picture on. */
  row(rank, y) {
    const { run, span, box, strip, pixels, layers, image: { width, height } } = this;
    const [low, high] = run.row(rank), { from } = span, to = from + this.columns * span.perPixel;
    const i = run.at(rank, from), last = run.seek(i, high, to);
    const crowd = ((last - Math.max(low, i)) * span.coarse) / this.columns;
    strip.begin(box.bar);
    this.gaps.count = 0;
    if (this.levels) this.levels.fill(0);
    if (crowd >= 1) this.#fromAfar(run.blocks(BLOCKS.findLastIndex((size) => crowd >= size)), rank);
    else this.#near(i, low, high);
    strip.copy(pixels, width, height, span.left, y, this.paper);
    this.#patterns(y);
    if (this.beside && layers.bubbles) {
      this.beside.row(rank, y);
      if (crowd < 1 && run.differs) this.beside.differences(Math.max(i, low), Math.min(last + 1, high - 1), y);
    }
    if (crowd < 1 && run.stepped) this.#steps(Math.max(i, low), last, y);
    if (crowd < 1 && layers.labels && box.bar >= 11 * this.scale) this.#labels(Math.max(i, low), last, y);
    y += box.bar + Math.round(this.scale);
    if (box.p2p) {
      run.transfers(rank).forEach((sent, lane, { length }) => {
        const [top, tall] = laneOf(lane, length, box.p2p);
        this.#transfers(sent, y + top, tall);
      });
      y += box.p2p + Math.round(this.scale);
    }
    if (box.memory) this.#memory(y, rank);
  }

  /** A row of crowded columns, out of blocks of actions: between their beginnings sums are straight lines. */
  #fromAfar({ time, sums, memory, critical, first }, rank) {
    const { run, columns, strip, tones, before, levels, mark, box: { bar }, span: { from, perPixel, coarse } } = this;
    const { width, used } = run, begin = first[rank], end = first[rank + 1] - 1, count = used.length;
    const [fill, drain] = this.bubbles ? [this.causes[FILL][0], this.causes[DRAIN][0]] : this.plain;
    const wide = coarse * perPixel, tall = bar / wide, { makespan } = run, unit = this.unit;
    let b = firstOf(begin + 1, end, (k) => time[k] > from) - 1, share = b >= end ? 0 : Math.max(0, from - time[b]) / (time[b + 1] - time[b]);
    for (let u = 0; u < count; u++) {
      const at = b * width + used[u];
      before[u] = share ? sums[at] + share * (sums[at + width] - sums[at]) : sums[at];
    }
    for (let x = 0; x < columns; x += coarse) {
      const moment = from + (x + coarse) * perPixel, middle = moment - wide / 2, past = Math.min(columns, x + coarse);
      let most = memory[b], marked = critical[b];
      while (b < end && time[b + 1] <= moment) {
        b++;
        if (memory[b] > most) most = memory[b];
        marked |= critical[b];
      }
      share = b >= end ? 0 : Math.max(0, moment - time[b]) / (time[b + 1] - time[b]);
      const shown = middle >= 0 && middle <= makespan;
      let y = 0, filled = 0;
      if (shown && marked && mark) { strip.put(0, x, past, this.ink); y = mark; }
      for (let u = 0; u < count; u++) {
        const at = b * width + used[u];
        const here = share ? sums[at] + share * (sums[at + width] - sums[at]) : sums[at];
        filled += (here - before[u]) * tall;
        before[u] = here;
        const until = (filled + 0.5) | 0;
        if (until > y && shown && y < bar) { strip.put(y, x, past, tones[used[u]]); y = until; }
      }
      if (!shown) continue;
      if (y < bar) strip.put(y, x, past, middle < time[begin] ? fill : drain);
      if (levels) for (let c = x; c < past; c++) levels[c] = (most * unit + 0.5) | 0;
    }
  }

  /** A row of columns that mostly show one action or one cause of idle time each. */
  #near(i, low, high) {
    const { run, columns, strip, levels, unit, span: { from, perPixel, coarse } } = this;
    const { start, style, halfOf, durationOf, makespan, level } = run, wide = coarse * perPixel;
    const line = 5 * this.scale * perPixel;
    let x = 0;
    while (x < columns) {
      const begin = from + x * perPixel, ahead = i + 1 < high ? start[i + 1] : Infinity;
      if (ahead > begin + wide) {
        // Until the next action begins, columns show the same as long as it lasts.
        const middle = begin + wide / 2, cause = this.#causeAt(i, low, high, middle), leaves = begin < this.ended && cause !== -1;
        const same = leaves ? 1 : Math.max(1, Math.min(Math.ceil((ahead - begin) / wide) - 1, Math.ceil((this.until - begin) / wide - 0.5)));
        const past = Math.min(columns, x + same * coarse);
        this.#state(x, past, i, low, high, cause);
        if (levels && i >= low && middle <= makespan) levels.fill(((begin < this.ended ? level[i] : run.levelAfter(i)) * unit + 0.5) | 0, x, past);
        x = past;
        continue;
      }
      const end = begin + wide, past = Math.min(columns, x + coarse);
      let j = i + 1;
      while (j + 1 < high && start[j + 1] <= end) j++;
      if (this.#crowded(i, j, low)) {
        [x, i] = this.#shares(x, i, low, high);
        continue;
      }
      if (j > low && durationOf[style[j]] > line && durationOf[style[j - 1]] > line) {
        strip.put(0, x, past, this.paper);
      } else {
        const middle = (begin + end) / 2;
        let k = j;
        while (k > i && start[k] > middle) k--;
        this.#state(x, past, k, low, high, this.#causeAt(k, low, high, middle));
      }
      if (levels) {
        let most = i < low ? 0 : begin < start[i] + durationOf[style[i]] ? level[i] : run.levelAfter(i);
        for (let k = i + 1; k <= j; k++) if (level[k] > most) most = level[k];
        for (let c = x; c < past; c++) levels[c] = (most * unit + 0.5) | 0;
      }
      i = j;
      x = past;
    }
  }

  /**
   * What there is at a time, action i being the last that has begun: −1 for the action, else a cause of idleness, or
   * 255 outside of the run. Sets `until`, up to when that is so, and `ended`, when the action ends.
   */
  #causeAt(i, low, high, time) {
    const { run } = this;
    this.ended = i < low ? -Infinity : run.start[i] + run.durationOf[run.style[i]];
    if (time < 0) { this.until = 0; return 255; }
    if (time > run.makespan) { this.until = Infinity; return 255; }
    if (time < this.ended) { this.until = this.ended; return -1; }
    this.until = i + 1 < high ? Infinity : run.makespan;
    if (i < low) return high > low ? FILL : DRAIN;
    if (i + 1 >= high) return DRAIN;
    if (!this.bubbles) return DATA;
    const cause = run.causeAt(i + 1, time, this.ended);
    if (cause === DATA) this.until = this.ended + gapBuffer[0];
    else if (cause === MEMORY) this.until = this.ended + gapBuffer[0] + gapBuffer[1];
    return cause;
  }

  /** Columns that show an action, or idle time. */
  #state(x, past, i, low, high, cause) {
    const { run, strip } = this;
    if (cause === 255) return;
    if (cause === -1) { this.#bar(x, past, i); return; }
    if (!this.bubbles) { strip.put(0, x, past, this.plain[0]); return; }
    // Without room for a pattern its stronger tone stands for it.
    const narrow = i >= low && i + 1 < high && run.start[i + 1] - this.ended < 6 * this.span.perPixel;
    strip.put(0, x, past, this.causes[cause][narrow ? 1 : 0]);
    if (narrow || cause <= DRAIN) return;
    const { gaps } = this, k = gaps.count++;
    gaps.from[k] = x;
    gaps.to[k] = past;
    gaps.cause[k] = cause;
  }

  #bar(x, past, i) {
    const { run, strip, edge, half, box: { bar } } = this, { fill, top, bottom } = run.colors;
    const s = run.style[i], first = run.halfOf[s] === LOWER ? run.style[i - 1] : s;
    const mark = run.critical[i] ? this.mark : 0, inner = Math.max(mark, top[first] ? edge : 0), lower = Math.max(mark, half);
    if (mark) strip.put(0, x, past, this.ink);
    if (mark < inner) strip.put(mark, x, past, top[first]);
    if (inner < lower) strip.put(inner, x, past, fill[first]);
    if (first !== s || inner >= lower) strip.put(lower, x, past, fill[s]);
    const { band } = this;
    if (bottom[s] && edge) strip.put(bar - edge - band, x, past, bottom[s]);
    if (band) strip.put(bar - band, x, past, this.iterations[run.iterationOf(i) % this.iterations.length]);
  }

  /**
   * Whether actions after i up to j are too many for one column. The second half of a pair begins with the first. Of
   * an action thinner than two columns both ends could fall into columns whose middle shows another one.
   */
  #crowded(i, j, low) {
    const { style, halfOf, durationOf } = this.run, thin = 2 * this.span.perPixel;
    if (durationOf[style[j]] < thin || (i >= low && durationOf[style[i]] < thin)) return true;
    return j - i > 2 || (j - i > 1 && halfOf[style[j]] !== LOWER);
  }

  /** Fuller columns, as many as follow each other: the share of every kind, idle time below. Returns where they end. */
  #shares(x, i, low, high) {
    const { run, strip, tones, mark, levels, unit, columns, before, after, box: { bar }, span: { from, perPixel, coarse } } = this;
    const { used, sums, width, start, style, classOf, halfOf, durationOf, level, critical } = run, count = used.length, tall = bar / (coarse * perPixel);
    const rest = this.bubbles ? this.causes[DRAIN][0] : this.plain[0];
    run.sumsAt(i, low, high, from + x * perPixel, before);
    while (x < columns) {
      const begin = from + x * perPixel, end = begin + coarse * perPixel, past = Math.min(columns, x + coarse);
      let j = i, marked = 0, most = i < low ? 0 : begin < start[i] + durationOf[style[i]] ? level[i] : run.levelAfter(i);
      while (j + 1 < high && start[j + 1] <= end) {
        j++;
        marked |= critical[j];
        if (level[j] > most) most = level[j];
      }
      if (j === i || !this.#crowded(i, j, low)) break;
      const s = style[j], length = durationOf[s], through = end - start[j], plain = through <= length && halfOf[s] !== LOWER;
      if (!plain) run.sumsAt(j, low, high, end, after);
      let y = 0, filled = 0;
      if (mark && marked) { strip.put(0, x, past, this.ink); y = mark; }
      for (let u = 0; u < count; u++) {
        const c = used[u], here = plain ? sums[j * width + c] + (c === classOf[s] ? through : 0) : after[c];
        filled += (here - before[c]) * tall;
        before[c] = here;
        const until = (filled + 0.5) | 0;
        if (until > y && y < bar) { strip.put(y, x, past, tones[c]); y = until; }
      }
      if (y < bar) strip.put(y, x, past, rest);
      if (levels) for (let c = x; c < past; c++) levels[c] = (most * unit + 0.5) | 0;
      i = j;
      x = past;
    }
    return [x, i];
  }

  /** Patterns over longer idle times. */
  #patterns(top) {
    const { gaps, pixels, span: { left }, image: { width, height } } = this;
    const first = Math.max(0, top), last = Math.min(height, top + this.box.bar);
    for (let k = 0; k < gaps.count; k++) {
      const { across, down, slant } = PATTERNS[gaps.cause[k]], dark = this.causes[gaps.cause[k]][1];
      const from = left + gaps.from[k], to = left + gaps.to[k];
      for (let y = first; y < last; y++) {
        if (y % down) continue;
        const over = (from + slant * y) % across;
        for (let x = over ? from + across - over : from; x < to; x += across) pixels[y * width + x] = dark;
      }
    }
  }

  /** Optimizer steps that are too short to be seen, as lines. */
  #steps(i, last, y) {
    const { run, scale, pixels, box: { bar }, image: { width, height }, span: { from, perPixel, left, right } } = this;
    const wide = Math.round(STEP_WIDE * scale), tone = run.colors.fill;
    for (; i <= last; i++) {
      if (!run.stepOf[run.style[i]] || run.duration(i) / perPixel >= wide) continue;
      const end = left + Math.round((run.end(i) - from) / perPixel), begin = Math.max(left, end - wide), past = Math.min(right, Math.max(end, begin + 1));
      if (end < left || begin >= right) continue;
      for (let line = Math.max(0, y - 1); line < Math.min(height, y + bar + 1); line++) pixels.fill(tone[run.style[i]], line * width + begin, line * width + past);
    }
  }

  /** Microbatch numbers, with the kind where all have room for it. */
  #labels(i, last, y) {
    const { run, scale, box: { bar }, span: { from, perPixel, left, right } } = this;
    const { start, style, halfOf, durationOf, kindOf } = run, { dark, fill } = colorsOf(run);
    const glyphs = (this.glyphs ??= new Glyphs(scale, this.image.width, run.kinds.map((kind) => (kind.letter ? kind.name : "")).join("")));
    const into = { pixels: this.pixels, canvasHeight: this.image.height, fill: 0, tone: 0, left, right };
    const widest = Math.max(...run.kinds.map(({ letter }) => glyphs.measure(letter)));
    const longest = widest + glyphs.measure("0".repeat(String(run.period * run.iterations - 1 + run.first).length)) + 6 * scale, least = 14 * scale;
    // A letter on some and none on others of a schedule would read as a difference between them.
    const letters = longest <= run.shortest / perPixel;
    for (; i <= last; i++) {
      const s = style[i], room = durationOf[s] / perPixel;
      if (room < least) continue;
      const half = halfOf[s];
      if (half && bar < 22 * scale) continue;
      const x0 = left + (start[i] - from) / perPixel;
      let text = run.label(i);
      if (letters) text = text ? run.kinds[kindOf[s]].letter + text : run.kinds[kindOf[s]].name;
      const span = glyphs.measure(text);
      if (!text || span + 3 * scale > room) continue;
      const height = half ? bar / 2 : bar;
      const top = y + (half === LOWER ? bar / 2 : 0) + (height - glyphs.height) / 2;
      let x = Math.round(x0 + (room - span) / 2);
      if (x < left && x0 + room > left + span + 4) x = left + 2;
      into.fill = fill[s];
      into.tone = dark[s] ? 0 : 255;
      glyphs.draw(text, x, Math.round(top), into);
    }
  }

  /** Transfers of a lane; a column is as full as the part of its time in which one is on its way. */
  #transfers(sent, top, tall) {
    const { strip, columns, pixels, image: { width, height }, span: { from, perPixel, left } } = this;
    strip.begin(tall);
    const among = sent.by(from + columns * perPixel) - sent.by(from), size = BLOCKS.findLast((most) => among >= most * columns);
    if (size) this.#manyTransfers(sent, size); else this.#fewTransfers(sent);
    strip.copy(pixels, width, height, left, top, this.paper);
  }

  /** Many in every column: the time they take goes in straight lines from the beginning of every so-many-th to the next. */
  #manyTransfers({ count, start, end, busy, kind, by }, size) {
    const { strip, columns, span: { from, perPixel } } = this, { kinds } = this.run.colors, { tall } = strip;
    let at = Math.max(0, Math.floor(by(from) / size) * size), before = -1;
    for (let x = -1; x < columns; x++) {
      const past = from + (x + 1) * perPixel;
      while (at + size < count && start[at + size] <= past) at += size;
      const next = Math.min(count, at + size), until = next < count ? start[next] : end[count - 1];
      const share = Math.min(1, Math.max(0, (past - start[at]) / (until - start[at])));
      const here = busy[at] + share * (busy[next] - busy[at]), rows = (tall * Math.min(1, (here - before) / perPixel) + 0.5) | 0;
      if (x >= 0 && here > before) strip.put(tall - Math.max(1, rows), x, x + 1, kinds[kind[at + Math.floor(share * (next - 1 - at))]]);
      before = here;
    }
  }

  #fewTransfers({ count, start, end, busy, kind }) {
    const { strip, columns, span: { from, perPixel } } = this, { kinds } = this.run.colors, { tall } = strip;
    let k = 0, x = 0;
    while (x < columns) {
      const begin = from + x * perPixel, past = begin + perPixel;
      let next = k, stride = 1;
      while (next + stride <= count && start[next + stride - 1] < past) { next += stride; stride *= 2; }
      for (; stride >= 1; stride >>= 1) if (next + stride <= count && start[next + stride - 1] < past) next += stride;
      const last = next - 1;
      const covered = last < 0 ? 0
        : last >= k ? Math.max(busy[last + 1] - busy[k], end[Math.max(k - 1, 0)] > begin ? perPixel : 0)
        : end[last] > begin ? perPixel : 0;
      // Nothing changes until the next one starts, or this one ends.
      const until = Math.min(next < count ? start[next] : Infinity, last >= 0 && end[last] > begin ? end[last] : Infinity);
      const same = last >= k ? 1 : Math.max(1, Math.min(columns - x, Math.ceil((until - begin) / perPixel) - 1));
      if (covered > 0) {
        const rows = Math.max(1, Math.round(tall * Math.min(1, covered / perPixel)));
        strip.put(tall - rows, x, x + same, kinds[kind[last]]);
      }
      k = next;
      x += same;
    }
  }

  /** Memory as an area: what is above the limit has the limit's color, and the limit is a line. */
  #memory(top, rank) {
    const { strip, levels, columns, pixels, image: { width, height }, span: { from, perPixel, left } } = this;
    const { memory: tall } = this.box, limit = limitOf(this.layers.limit, rank);
    const line = limit == null ? -1 : tall - Math.round(limit * this.unit);
    strip.begin(tall);
    for (let x = 0, past; x < columns; x = past) {
      const level = levels[x], y = tall - level;
      for (past = x + 1; past < columns && levels[past] === level;) past++;
      if (!level) continue;
      strip.put(y, x, past, y < line ? this.limit : this.memory);
      if (y < line) strip.put(line, x, past, this.memory);
    }
    strip.copy(pixels, width, height, left, top, this.paper);
    if (line < 0 || top + line < 0 || top + line >= height) return;
    const clip = (time) => Math.min(columns, Math.max(0, Math.round((time - from) / perPixel)));
    pixels.fill(this.limit, (top + line) * width + left + clip(0), (top + line) * width + left + clip(this.run.makespan));
  }
}
