// Files: the view as PNG, and a trace for Perfetto; see vector.js for SVG and PDF.

const PERFETTO = "https://ui.perfetto.dev";
const MOST_ARROWS = 200000;
// Perfetto takes thread 0 for the one with the number of the process, a rank; no rank has the others' numbers.
const PAIRED = 1000001;
/** Length of units; any other is shown as a millisecond. */
const MICROSECONDS = { s: 1e6, sec: 1e6, ms: 1e3, us: 1, "µs": 1, "μs": 1, ns: 1e-3 };
/** Microseconds of the shortest action from which on times are written in whole nanoseconds. */
const LEAST = 0.1;

/** Rectangles and texts around the rows. */
function around(host) {
  const { view, data } = host, { rows } = view, theme = host.theme;
  const items = [], width = view.left + view.plot + view.right, top = 22;
  const rect = (x, y, w, h, fill) => items.push({ x, y, w, h, fill });
  const text = (x, y, body, options = {}) => items.push({ x, y, body, size: 11, fill: theme.ink, ...options });
  const legend = legendItems(host, top + view.height + 18, width), height = legend.bottom;
  rect(0, 0, width, height, theme.paper);
  for (const mark of host.marks()) text(mark.x, 14, mark.text, { fill: theme.faint, anchor: "middle" });
  for (const panel of view.panels) {
    const { run } = panel;
    text(view.left, top + panel.head + 16, run.name, { size: 13, bold: true });
    if (view.low) text(view.left + 8.5 * run.name.length + 12, top + panel.head + 16, host.caption(run), { fill: theme.faint });
    else text(view.left, top + panel.head + 32, host.caption(run), { fill: theme.faint });
    const beside = view.right > 50, edge = view.left + view.plot;
    if (beside) {
      text(edge + 50, top + panel.y - 8, "idle", { fill: theme.faint, anchor: "end" });
      text(edge + view.right - 6, top + panel.y - 8, "peak", { fill: theme.faint, anchor: "end" });
    }
    for (let rank = 0; rank < run.ranks; rank += host.labelStep) {
      const y = top + panel.y + rank * rows.pitch + rows.bar / 2 + 4;
      text(view.left - 8, y, String(rank), { fill: theme.faint, anchor: "end" });
      if (!beside || !host.differs(run, rank)) continue;
      text(edge + 50, y, host.idleText(run, rank), { fill: theme.faint, anchor: "end" });
      text(edge + view.right - 6, y, number(run.peak[rank]), { fill: host.isOver(run, rank) ? theme.limit : theme.faint, anchor: "end" });
    }
  }
  items.push(...legend.items);
  return { items, width, height, top };
}

/** The legend in as many lines as it needs, from a height on; and where it ends. */
function legendItems(host, y, width) {
  const items = [], { left } = host.view;
  let x = left;
  for (const { color, cause, text } of host.legend()) {
    const wide = 28 + 6.4 * text.length;
    if (x > left && x + wide > width) { x = left; y += 18; }
    if (cause != null) {
      const [plain, tone] = host.theme.causes[cause];
      items.push({ x, y: y - 9, w: 12, h: 10, fill: plain });
      if (cause > 1) for (const at of [1, 5, 9]) items.push({ x: x + at, y: y - 9, w: 1.5, h: 10, fill: tone });
    } else if (color) items.push({ x, y: y - 9, w: 12, h: 10, fill: color });
    items.push({ x: color ? x + 16 : x, y, body: text, size: 11, fill: host.theme.faint });
    x += wide;
  }
  return { items, bottom: y + 12 };
}

/** The picture of all rows, also of those that are scrolled away. */
function rowsPicture(host, scale) {
  const { view } = host, canvas = document.createElement("canvas"), painter = new Painter(canvas);
  const scroll = view.scroll;
  painter.resize(Math.round((view.left + view.plot + view.right) * scale), Math.round(Math.min(view.height, 8000) * scale), scale);
  painter.setTheme(host.theme);
  view.scroll = 0;
  view.paint(painter, view.height);
  view.scroll = scroll;
  return canvas;
}

async function savePng(host) {
  const scale = 2, { items, width, height, top } = around(host);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const draw = (item) => {
    context.fillStyle = item.fill;
    if (item.body == null) { context.fillRect(item.x, item.y, item.w, item.h); return; }
    context.font = `${item.bold ? "600 " : ""}${item.size}px system-ui, "DejaVu Sans", sans-serif`;
    context.textAlign = item.anchor === "middle" ? "center" : item.anchor === "end" ? "right" : "left";
    context.fillText(item.body, item.x, item.y);
  };
  draw(items[0]);
  const picture = rowsPicture(host, scale);
  context.drawImage(picture, 0, top, picture.width / scale, picture.height / scale);
  items.slice(1).forEach(draw);
  download("timeline.png", await new Promise((done) => canvas.toBlob(done, "image/png")));
}

/** Trace events of a run, as pieces of bytes: slices, and while they are not too many, arrows and memory. */
function traceOf(run, unit) {
  const scale = MICROSECONDS[unit.trim().toLowerCase()] ?? 1e3;
  const encoder = new TextEncoder(), pieces = [];
  let lines = [];
  const add = (event) => {
    lines.push(event);
    if (lines.length >= 20000) { pieces.push(encoder.encode(lines.join(",\n") + ",\n")); lines = []; }
  };
  pieces.push(encoder.encode('{"displayTimeUnit":"ms","traceEvents":[\n'));
  const spans = new Spans(run, scale);
  for (let rank = 0; rank < run.ranks; rank++) addTracks(run, rank, spans, add);
  for (let row = 0; row < 2 * run.ranks; row++) {
    const [low, high] = run.row(row);
    for (let i = low; i < high; i++) addSlice(run, i, row % run.ranks, spans, add);
  }
  if (run.count <= MOST_ARROWS) {
    for (let rank = 0; rank < run.ranks; rank++) addMemory(run, rank, spans.at, add);
    addArrows(run, spans, add);
  }
  pieces.push(encoder.encode(lines.join(",\n") + "\n]}\n"));
  return new Blob(pieces, { type: "application/json" });
}

/** Threads, starts and durations of all actions in microseconds. */
class Spans {
  constructor(run, scale) {
    this.run = run;
    // Perfetto rounds starts and durations to nanoseconds, and of slices that then overlap it drops one.
    const whole = run.durationOf.every((time) => time <= 0 || time * scale >= LEAST);
    this.at = whole ? (time) => Math.round(time * scale * 1e3) / 1e3 : (time) => time * scale;
    this.begin = Float64Array.from(run.start, this.at);
    this.length = new Float64Array(run.count);
    this.threads = new Uint32Array(run.count);
    this.used = Array.from({ length: run.ranks }, () => new Set([0]));
    const last = new Map();
    for (let row = 0; row < 2 * run.ranks; row++) {
      const [low, high] = run.row(row);
      last.clear();
      for (let i = low; i < high; i++) {
        const thread = this.#thread(i), before = last.get(thread), end = this.at(run.end(i));
        if (whole && before !== undefined) this.length[before] = Math.min(this.length[before], this.begin[i] - this.begin[before]);
        this.length[i] = end - this.begin[i];
        last.set(thread, i);
        this.used[row % run.ranks].add(thread);
        this.threads[i] = thread;
      }
    }
  }

  /** Halves of a pair run at the same time and take a thread each, and so does every stream beside compute. */
  #thread(i) {
    const { run } = this, { stream } = run.kinds[run.kind(i)];
    return stream ? PAIRED + stream : run.halfOf[run.style[i]] === LOWER ? PAIRED : 0;
  }
}

function addTracks(run, rank, spans, add) {
  const about = (thread, event, key, value) => add(`{"ph":"M","name":"${event}","pid":${rank},"tid":${thread},"args":{"${key}":${JSON.stringify(value)}}}`);
  about(0, "process_name", "name", `rank ${rank}`);
  about(0, "process_sort_index", "sort_index", rank);
  for (const thread of [...spans.used[rank]].sort((a, b) => a - b)) {
    const stream = Math.max(0, thread - PAIRED), name = run.tracks[stream]?.[rank] ?? run.streams[stream];
    about(thread, "thread_name", "name", thread === PAIRED ? `${name}, second half of a pair` : name);
    about(thread, "thread_sort_index", "sort_index", thread);
  }
}

function addSlice(run, i, rank, spans, add) {
  const kind = run.kinds[run.kind(i)].name, [microbatch, slice] = run.number(i).split(".");
  add(`{"ph":"X","name":"${run.actionName(i)}","cat":"${kind}","pid":${rank},"tid":${spans.threads[i]},` +
    `"ts":${spans.begin[i].toFixed(6)},"dur":${Math.max(0, spans.length[i]).toFixed(6)},` +
    `"args":{"stage":${run.stage(i)},"kind":"${kind}","microbatch":${microbatch}${slice ? `,"slice":${slice}` : ""}}}`);
}

function addMemory(run, rank, at, add) {
  const [low, high] = run.row(rank);
  let last = -1;
  const put = (time, level) => {
    if (level !== last) add(`{"ph":"C","name":"activation","pid":${rank},"ts":${at(time).toFixed(3)},"args":{"memory":${Number(level.toPrecision(7))}}}`);
    last = level;
  };
  for (let i = low; i < high; i++) {
    put(run.start[i], run.level[i]);
    if (run.halfOf[run.style[i]] !== UPPER && (i + 1 === high || run.start[i + 1] > run.end(i))) put(run.end(i), run.levelAfter(i));
  }
}

/** An arrow from every action to what waits for it on another rank, called after what it does. */
function addArrows(run, { begin, length, threads }, add) {
  let number = 0;
  const lead = (j) => {
    for (const i of run.waits.producers(j)) {
      if (run.rank(i) === run.rank(j)) continue;
      const both = `"name":${JSON.stringify(run.kinds[run.kind(i)].title)},"cat":"p2p","id":${number++}`;
      // A flow belongs to the slice around its time: the producer's is not its end, where the next slice begins.
      add(`{"ph":"s",${both},"pid":${run.rank(i)},"tid":${threads[i]},"ts":${(begin[i] + 0.999 * length[i]).toFixed(6)}}`);
      add(`{"ph":"f","bp":"e",${both},"pid":${run.rank(j)},"tid":${threads[j]},"ts":${begin[j].toFixed(6)}}`);
    }
  };
  // Microbatch by microbatch, as actions are looked up.
  for (let unit = 0; unit < run.period * run.iterations; unit++) run.ofUnit(unit).forEach(lead);
  for (let j = 0; j < run.count; j++) if (!run.labelled(run.kind(j))) lead(j);
}

/** Open a trace in ui.perfetto.dev: it answers a ping when it can take one. */
async function openInPerfetto(run, unit) {
  const tab = window.open(PERFETTO);
  if (!tab) return false;
  const buffer = await traceOf(run, unit).arrayBuffer();
  const ping = setInterval(() => tab.postMessage("PING", PERFETTO), 100);
  const stop = setTimeout(() => clearInterval(ping), 60000);
  window.addEventListener("message", function answered(event) {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    clearInterval(ping);
    clearTimeout(stop);
    window.removeEventListener("message", answered);
    tab.postMessage({ perfetto: { buffer, title: run.name, fileName: `${run.name}.json` } }, PERFETTO);
  });
  return true;
}
