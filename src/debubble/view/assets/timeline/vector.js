// The view as SVG and PDF: rectangles, lines and texts, never a picture inside. Rectangles of a layer that have one
// color become one path.

const CLOSE_BARS = 20000;

/** Rectangles and lines in the order in which they cover each other, by color. */
class Shapes {
  constructor() { this.layers = []; }
  layer() { const added = { rects: new Map(), lines: new Map() }; this.layers.push(added); return added; }
  static put(map, color, item) { let list = map.get(color); if (!list) map.set(color, (list = [])); list.push(item); }
}

/** All rows of the view as shapes and texts, `top` pixels down. */
function vectorRows(host, top) {
  const { view, theme } = host, { rows } = view, shapes = new Shapes(), texts = [];
  const [ground, hatch, bars, over] = [shapes.layer(), shapes.layer(), shapes.layer(), shapes.layer()];
  let count = 0;
  for (const { run } of view.panels) {
    for (let rank = 0; rank < run.ranks; rank++) count += run.at(rank, view.time(run, view.to)) - run.at(rank, view.time(run, view.from));
  }
  for (const { run, y } of view.panels) {
    for (let rank = 0; rank < run.ranks; rank++) {
      const row = new VectorRow(host, run, rank, top + y + rank * rows.pitch, { ground, hatch, bars, over, texts });
      const far = count > CLOSE_BARS;
      row.idle(far);
      if (far) row.shares(); else row.bars();
      let below = rows.bar + 1;
      if (rows.p2p) { run.transfers(rank).forEach((sent, lane, { length }) => row.transfers(sent, below, laneOf(lane, length, rows.p2p))); below += rows.p2p + 1; }
      if (rows.memory) row.memory(below, theme);
    }
  }
  return { shapes, texts };
}

class VectorRow {
  constructor(host, run, rank, y, into) {
    Object.assign(this, { host, run, rank, y, into, view: host.view, theme: host.theme });
    [this.low, this.high] = run.row(rank);
    this.from = this.view.time(run, this.view.from);
    this.to = this.view.time(run, this.view.to);
  }

  x(time) { const { view } = this; return Math.min(view.left + view.plot, Math.max(view.left, view.x(this.run, time))); }

  span(layer, a, b, top, tall, fill) {
    const x = this.x(a), wide = this.x(b) - x;
    if (wide > 0) Shapes.put(layer.rects, fill, [x, this.y + top, wide, tall]);
  }

  /** Idle time by cause; from afar the shares of columns tell of what is between bars. */
  idle(far) {
    const { run, view, theme, low, high, into } = this, { bar } = view.rows;
    if (!view.layers.bubbles || run.marks) {
      this.span(into.ground, 0, run.makespan, 0, bar, theme.idle);
      if (view.layers.bubbles) this.marks(far);
      return;
    }
    if (low === high) { this.span(into.ground, 0, run.makespan, 0, bar, theme.causes[DRAIN][0]); return; }
    this.span(into.ground, 0, run.start[low], 0, bar, theme.causes[FILL][0]);
    this.span(into.ground, run.end(high - 1), run.makespan, 0, bar, theme.causes[DRAIN][0]);
    if (far) return;
    const first = Math.max(low + 1, run.at(this.rank, this.from));
    for (let i = first; i < high && run.start[i - 1] < this.to; i++) {
      if (run.halfOf[run.style[i]] === LOWER) continue;
      const before = run.end(i - 1), gap = run.start[i] - before, data = run.gapTime(i, gap, DATA), late = run.start[i] - run.gapTime(i, gap, P2P);
      this.waits(before, before + data, DATA);
      this.waits(before + data, late, MEMORY);
      this.waits(late, run.start[i], P2P);
    }
  }

  /** Idle time of a cause with its pattern, as it is on the screen. */
  waits(a, b, cause) {
    const { theme, into, view: { rows: { bar } } } = this, [light, dark] = theme.causes[cause];
    const { across, down, slant } = PATTERNS[cause], x0 = this.x(a), x1 = this.x(b), y0 = this.y, y1 = y0 + bar;
    if (!(x1 - x0 > 0.01)) return;
    this.span(into.ground, a, b, 0, bar, light);
    if (x1 - x0 < across) { this.span(into.ground, a, b, 0, bar, dark); return; }
    if (down > 1) {
      for (let y = Math.ceil(y0 / down) * down; y < y1; y += down) {
        for (let x = Math.ceil(x0 / across) * across; x < x1; x += across) Shapes.put(into.hatch.rects, dark, [x, y, 1, 1]);
      }
      return;
    }
    for (let k = Math.ceil((x0 + slant * y0) / across) * across; k < x1 + slant * y1; k += across) {
      const a0 = slant ? Math.max(x0, k - y1) : k, a1 = slant ? Math.min(x1, k - y0) : k;
      Shapes.put(into.hatch.lines, dark, slant ? [a0, k - a0, a1, k - a1] : [k, y0, k, y1]);
    }
  }

  /** Marks under the bars, those of actions and differences over them. */
  marks(far) {
    const { run, rank, into, theme, from, to, view: { rows: { bar } } } = this, { marks } = run;
    for (let k = marks.after(rank, from); k < marks.offsets[rank + 1] && marks.start[k] < to; k++) {
      const { like, color } = marks.looks[marks.look[k]], tall = marks.over[k] ? FOOT * bar : bar;
      if (like != null && !marks.over[k] && like > DRAIN) this.waits(marks.start[k], marks.end[k], like);
      else this.span(marks.over[k] ? into.over : into.ground, marks.start[k], marks.end[k], bar - tall, tall, like == null ? color : theme.causes[like][1]);
    }
    if (far || !run.differs) return;
    const first = Math.max(this.low, run.at(rank, from));
    for (let i = first; i < this.high && run.start[i] <= to; i++) run.differs.around(i, (start, end) => this.hatched(start, end));
  }

  /** Slanted lines over a stretch. */
  hatched(start, end) {
    const { into, theme, y, view: { rows: { bar } } } = this, x0 = this.x(start), x1 = this.x(end), y1 = y + bar;
    for (let k = Math.ceil((x0 + y) / HATCH) * HATCH; k < x1 + y1; k += HATCH) {
      const a = Math.max(x0, k - y1), b = Math.min(x1, k - y);
      if (b > a) Shapes.put(into.over.lines, theme.ink, [a, k - a, b, k - b]);
    }
  }

  bars() {
    const { run, view, theme, low, high, into } = this, { bar } = view.rows;
    const first = Math.max(low, run.at(this.rank, this.from)), band = run.iterations > 1 && bar >= 10 ? 2.5 : 0;
    for (let i = first; i < high && run.start[i] <= this.to; i++) {
      const s = run.style[i], kind = run.kinds[run.kindOf[s]], [fill, ink] = run.palette[run.kindOf[s]][run.styles.shade[s]];
      const half = run.halfOf[s], top = half === LOWER ? bar / 2 : 0, tall = half ? bar / 2 : bar, start = run.start[i], end = run.end(i);
      if (run.stepOf[s] && view.x(run, end) - view.x(run, start) < STEP_WIDE) {
        const x = view.x(run, end);
        if (x >= view.left && x <= view.left + view.plot) Shapes.put(into.over.rects, fill, [x - STEP_WIDE, this.y - 1, STEP_WIDE, bar + 2]);
        continue;
      }
      // A line of paper between bars that have room for it.
      const line = this.x(end) - this.x(start) > 5 ? 0.6 : 0;
      Shapes.put(into.bars.rects, fill, [this.x(start), this.y + top, Math.max(0, this.x(end) - this.x(start) - line), tall]);
      if (kind.edge && bar >= 12) this.span(into.over, start, end, kind.edge === "top" ? top : top + tall - 2.5 - band, 2.5, kind.stripe);
      if (band && half !== UPPER) this.span(into.over, start, end, bar - band, band, theme.iterations[run.iterationOf(i) % theme.iterations.length]);
      if (view.layers.critical && run.critical[i]) this.span(into.over, start, end, top, 2, theme.ink);
      const room = this.x(end) - this.x(start), body = run.label(i);
      if (room >= 6.2 * body.length + 3 && tall >= 10 && body) {
        this.into.texts.push({ x: (this.x(start) + this.x(end)) / 2, y: this.y + top + tall / 2 + 3.8, size: 10.5, fill: ink, anchor: "middle", body });
      }
    }
  }

  /** Too many bars: of every two pixels the share of each kind, stacked. */
  shares() {
    const { run, view, theme, low, high, into } = this, { bar } = view.rows, wide = 2, per = ((this.to - this.from) / view.plot) * wide;
    const before = new Float64Array(run.width), after = new Float64Array(run.width);
    run.sumsAt(run.at(this.rank, this.from), low, high, this.from, before);
    for (let x = 0; x < view.plot; x += wide) {
      const time = this.from + ((x + wide) / wide) * per;
      run.sumsAt(run.at(this.rank, time), low, high, time, after);
      let y = 0;
      for (const c of run.used) {
        const tall = ((after[c] - before[c]) / per) * bar, idle = c - run.idleClass;
        if (tall > 0.02) {
          const color = idle < 0 ? run.kinds[run.classes[c]].color : view.layers.bubbles && !run.marks ? theme.causes[[DATA, MEMORY, P2P][idle]][1] : theme.idle;
          Shapes.put(into.bars.rects, color, [view.left + x, this.y + y, Math.min(wide, view.plot - x), tall]);
          y += tall;
        }
      }
      before.set(after);
    }
  }

  transfers(sent, below, [top, tall]) {
    const { run, view, into } = this;
    let last = -Infinity;
    for (let k = Math.max(0, sent.by(this.from) - 1); k < sent.count && sent.start[k] < this.to; k++) {
      // Those that end within what is drawn already change nothing.
      const x = this.x(sent.end[k]);
      if (x - last < 0.2) continue;
      this.span(into.bars, sent.start[k], Math.max(sent.end[k], sent.start[k] + (this.to - this.from) / view.plot / 2), below + top, tall, run.kinds[sent.kind[k]].color);
      last = x;
    }
  }

  memory(top, theme) {
    const { run, view, low, high, into } = this, { memory: tall } = view.rows, { limit } = this.host.data;
    const unit = tall / (Math.max(run.fullest, limit ?? 0) || 1), least = (this.to - this.from) / view.plot / 2;
    let begin = this.from, level = 0;
    const until = (time, next) => {
      if (next === level && time < this.to) return;
      // From afar a piece is at least half a pixel, as high as the highest in it.
      if (time - begin < least && time < this.to) { level = Math.max(level, next); return; }
      const full = level * unit, most = limit == null ? full : Math.min(full, limit * unit);
      if (full > most) this.span(into.bars, begin, time, top + tall - full, full - most, theme.limit);
      if (most > 0) this.span(into.bars, begin, time, top + tall - most, most, theme.memory);
      begin = time;
      level = next;
    };
    const first = Math.max(low, run.at(this.rank, this.from));
    for (let i = first; i < high && run.start[i] < this.to; i++) {
      until(Math.max(this.from, run.start[i]), run.level[i]);
      if (run.halfOf[run.style[i]] !== UPPER && (i + 1 === high || run.start[i + 1] > run.end(i))) until(Math.max(this.from, run.end(i)), run.levelAfter(i));
    }
    until(Math.min(this.to, run.makespan), 0);
    if (limit != null) this.span(into.over, 0, run.makespan, top + tall - limit * unit, 0.8, theme.limit);
  }
}

/** Everything in the view: {width, height, shapes, texts}. */
function vectorFigure(host) {
  const { items, width, height, top } = around(host), { shapes, texts } = vectorRows(host, top), front = shapes.layer();
  for (const item of items.slice(1)) {
    if (item.body == null) Shapes.put(front.rects, item.fill, [item.x, item.y, item.w, item.h]); else texts.push(item);
  }
  return { width, height, shapes, texts, paper: host.theme.paper };
}

const short = (value) => String(Math.round(value * 100) / 100);

function escapeXml(text) {
  return text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);
}

function svgText(host) {
  const { width, height, shapes, texts, paper } = vectorFigure(host), lines = [`<rect width="${width}" height="${short(height)}" fill="${paper}"/>`];
  for (const { rects, lines: strokes } of shapes.layers) {
    for (const [color, list] of rects) {
      lines.push(`<path fill="${color}" d="${list.map(([x, y, w, h]) => `M${short(x)} ${short(y)}h${short(w)}v${short(h)}h${short(-w)}z`).join("")}"/>`);
    }
    for (const [color, list] of strokes) {
      lines.push(`<path stroke="${color}" stroke-width="1" d="${list.map(([a, b, c, d]) => `M${short(a)} ${short(b)}L${short(c)} ${short(d)}`).join("")}"/>`);
    }
  }
  for (const { x, y, size, fill, bold, anchor, body } of texts) {
    lines.push(`<text x="${short(x)}" y="${short(y)}" font-size="${size}" fill="${fill}"${bold ? ' font-weight="600"' : ""}${anchor ? ` text-anchor="${anchor}"` : ""}>${escapeXml(body)}</text>`);
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${short(height)}" width="${width}" height="${short(height)}" ` +
    `font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif">\n${lines.join("\n")}\n</svg>\n`;
}

// Widths of Helvetica's letters from space to tilde, in thousandths of its size.
const WIDTHS = [
  278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278,
  584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944,
  667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
  278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
const WIN = { "–": 0x96, "—": 0x97, "…": 0x85, "−": 0x2d, "’": 0x92 };

/** Codes of a text in the encoding of PDF's own fonts; what they lack is a question mark. */
function winCodes(text) {
  return [...text].map((sign) => WIN[sign] ?? (sign.charCodeAt(0) < 256 && sign.length === 1 ? sign.charCodeAt(0) : 0x3f));
}

/** The view as PDF: one page in points, paths and text in Helvetica, which every reader has. */
async function pdfBlob(host) {
  const { width, height, shapes, texts, paper } = vectorFigure(host), scale = 0.75;
  const color = (hex) => [1, 3, 5].map((at) => short(parseInt(hex.slice(at, at + 2), 16) / 255)).join(" ");
  // Up is up in PDF.
  const out = [`${scale} 0 0 ${scale} 0 0 cm`, `${color(paper)} rg 0 0 ${short(width)} ${short(height)} re f`];
  for (const { rects, lines } of shapes.layers) {
    for (const [fill, list] of rects) out.push(`${color(fill)} rg`, ...list.map(([x, y, w, h]) => `${short(x)} ${short(height - y - h)} ${short(w)} ${short(h)} re`), "f");
    for (const [stroke, list] of lines) out.push(`${color(stroke)} RG 1 w`, ...list.map(([a, b, c, d]) => `${short(a)} ${short(height - b)} m ${short(c)} ${short(height - d)} l`), "S");
  }
  for (const { x, y, size, fill, bold, anchor, body } of texts) {
    const codes = winCodes(body), wide = (codes.reduce((sum, code) => sum + (WIDTHS[code - 32] ?? 556), 0) * size) / 1000;
    const left = x - (anchor === "middle" ? wide / 2 : anchor === "end" ? wide : 0);
    const escaped = codes.map((code) => (code === 40 || code === 41 || code === 92 ? `\\${String.fromCharCode(code)}` : code < 32 || code > 126 ? `\\${code.toString(8).padStart(3, "0")}` : String.fromCharCode(code))).join("");
    out.push(`BT ${color(fill)} rg /${bold ? "B" : "R"} ${short(size)} Tf ${short(left)} ${short(height - y)} Td (${escaped}) Tj ET`);
  }
  const packed = new Uint8Array(await new Response(new Blob([out.join("\n")]).stream().pipeThrough(new CompressionStream("deflate"))).arrayBuffer());
  const font = (name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${short(width * scale)} ${short(height * scale)}] /Contents 6 0 R /Resources << /Font << /R 4 0 R /B 5 0 R >> >> >>`,
    font("Helvetica"), font("Helvetica-Bold"),
  ].map((body, index) => `${index + 1} 0 obj\n${body}\nendobj\n`);
  const pieces = [], offsets = [], encoder = new TextEncoder();
  let at = 0;
  const add = (piece) => { const bytes = typeof piece === "string" ? encoder.encode(piece) : piece; pieces.push(bytes); at += bytes.length; };
  add("%PDF-1.4\n");
  for (const object of objects) { offsets.push(at); add(object); }
  offsets.push(at);
  add(`6 0 obj\n<< /Length ${packed.length} /Filter /FlateDecode >>\nstream\n`);
  add(packed);
  add("\nendstream\nendobj\n");
  const table = at, line = (offset) => `${String(offset).padStart(10, "0")} 00000 n \n`;
  add(`xref\n0 7\n0000000000 65535 f \n${offsets.map(line).join("")}trailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n${table}\n%%EOF\n`);
  return new Blob(pieces, { type: "application/pdf" });
}
