// The page's state is its form: every change sends it, shows the answer, and writes it into the address.

const $ = (id) => document.getElementById(id);
const timeline = $("timeline");
const NUMBERS = ["ranks", "microbatches", "chunks"];
const TIMES = ["F", "I", "W", "O", "p2p"];
const DEFAULTS = { ranks: "4", microbatches: "8", chunks: "2", F: "1", I: "1", W: "1", O: "", p2p: "0.05", memory: "", mode: "overlapped", basis: "rank" };
const FIRST = ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"];

let catalogue = [];
let chosen = new Map(); // name -> options as text
let files = []; // schedules that were opened
let costFile = null;
let answer = null;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const number = (value) => (Math.abs(value) >= 1e6 ? Math.round(value) : Number(value.toPrecision(6))).toLocaleString("en-US", { maximumFractionDigits: 12 });
const percent = (share) => `${(100 * share).toFixed(2)} %`;

// ---- state: form <-> object <-> address

const basis = () => document.querySelector('input[name="basis"]:checked').value;

function parseTimes(text) {
  const parts = text.split(/[/,;\s]+/).filter(Boolean).map(Number);
  if (!parts.length) return null;
  if (parts.some((value) => !Number.isFinite(value))) throw new Error("give a number, or one per rank or stage: 1/1/2/1");
  return parts.length === 1 ? parts[0] : parts;
}

const needsOf = (entry) => entry.constraints.map((c) => c.text.replaceAll("`", "")).join("; ");

/** The request the form stands for; throws {field, message} when a text is no number. */
function request() {
  const state = { schedules: [], mode: $("mode").value, costs: { basis: basis() } };
  for (const [name, options] of chosen) state.schedules.push({ name, options: typed(name, options) });
  for (const file of files) state.schedules.push({ file });
  for (const id of NUMBERS) {
    const value = Number($(id).value);
    if ($(id).value === "" && id === "chunks") continue;
    if (!Number.isInteger(value)) throw { field: id, message: `${id} is "${$(id).value}"; give a whole number` };
    state[id] = value;
  }
  const read = (id) => {
    try { return parseTimes($(id).value); } catch (error) { throw { field: id, message: error.message }; }
  };
  if (costFile) state.costs.file = costFile;
  else for (const id of TIMES) { const value = read(id); if (value !== null) state.costs[id] = value; }
  const memory = read("memory");
  if (memory !== null) state.memory = memory;
  return state;
}

function typed(name, options) {
  const known = catalogue.find((entry) => entry.name === name)?.options ?? [], values = {};
  for (const { name: key, type } of known) {
    const text = options[key]?.trim();
    if (!text) continue;
    if (/bool/.test(type) && /^(true|false)$/i.test(text)) values[key] = text.toLowerCase() === "true";
    else values[key] = /int|float/.test(type) && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return values;
}

function address() {
  const values = new URLSearchParams();
  for (const [name, options] of chosen) {
    const own = Object.entries(options).filter(([, text]) => text).map(([key, text]) => `${key}=${text}`);
    values.append("s", own.length ? `${name}(${own.join(";")})` : name);
  }
  for (const id of [...NUMBERS, ...TIMES, "memory", "mode"]) if ($(id).value !== DEFAULTS[id]) values.set(id, $(id).value);
  if (basis() !== DEFAULTS.basis) values.set("basis", basis());
  if (timeline.state) values.set("view", timeline.state);
  return `#${values.toString().replaceAll("%28", "(").replaceAll("%29", ")")}`;
}

function restore(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  chosen = new Map();
  for (const text of values.getAll("s")) {
    const [, name, inside] = /^([^(]+)(?:\((.*)\))?$/.exec(text) ?? [];
    if (!catalogue.some((entry) => entry.name === name)) continue;
    chosen.set(name, Object.fromEntries((inside ?? "").split(";").filter(Boolean).map((pair) => [pair.split("=")[0], pair.split("=").slice(1).join("=")])));
  }
  if (!chosen.size) FIRST.filter((name) => catalogue.some((entry) => entry.name === name)).forEach((name) => chosen.set(name, {}));
  for (const id of [...NUMBERS, ...TIMES, "memory", "mode"]) $(id).value = values.get(id) ?? DEFAULTS[id];
  const wanted = values.get("basis") === "action" ? "action" : "rank";
  document.querySelector(`input[name="basis"][value="${wanted}"]`).checked = true;
  syncSliders();
  if (values.has("view")) timeline.state = values.get("view");
}

function syncSliders() {
  for (const slider of document.querySelectorAll("[data-for]")) {
    const text = $(slider.dataset.for).value, value = Number(text);
    slider.disabled = text !== "" && !Number.isFinite(value);
    slider.value = text === "" ? (slider.dataset.for === "chunks" ? 1 : 0) : value;
  }
}

// ---- asking: one request at a time, always for the newest state

let asking = false, again = false, wanted = 0;

function ask() {
  if (asking) { again = true; return; }
  asking = true;
  send().finally(() => { asking = false; if (again) { again = false; ask(); } });
}

async function send() {
  clearProblems();
  let state;
  try { state = request(); } catch (error) { showProblems([error]); return; }
  if (!state.schedules.length) { showProblems([{ message: "Choose at least one schedule." }]); return; }
  const begin = performance.now();
  const turn = ++wanted;
  let response, data;
  try {
    response = await fetch("/api/simulate", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(state) });
    data = await response.json();
  } catch {
    showProblems([{ message: "The server does not answer; is debubble serve still running?" }]);
    return;
  }
  if (turn !== wanted) return;
  if (!response.ok) { showProblems([data]); return; }
  answer = { state, data };
  showProblems(data.problems);
  showTable(data);
  showPlot(data);
  showCards(state, data);
  $("headline").textContent = data.table?.headline ?? "No schedule can run with these settings.";
  timeline.hidden = !data.timelines;
  if (data.timelines) await timeline.load(data.timelines, true);
  document.documentElement.dataset.milliseconds = (performance.now() - begin).toFixed(1);
  remember();
}

function remember() { history.replaceState(null, "", address()); }

function clearProblems() {
  for (const field of document.querySelectorAll(".field")) {
    field.classList.remove("wrong");
    field.querySelectorAll(".problem").forEach((old) => old.remove());
  }
}

/** Problems stand next to their field; those of no field above the timelines. */
function showProblems(problems) {
  const rest = [], seen = new Set();
  for (const { field, message, nearest } of problems) {
    const place = field && document.querySelector(`.field[data-field="${CSS.escape(field)}"]`);
    const text = make("p", { class: "problem" }, message.replaceAll("`", ""));
    if (place && nearest != null && $(field)) {
      text.append(make("button", { type: "button", onclick: () => { $(field).value = nearest; syncSliders(); ask(); } }, `use ${nearest}`));
    }
    if (seen.has(`${field}|${message}`)) continue;
    seen.add(`${field}|${message}`);
    if (place) { place.classList.add("wrong"); place.append(text); } else rest.push(text);
  }
  $("problems").replaceChildren(...rest);
}

// ---- the answer

function showTable({ table }) {
  if (!table) { $("numbers").replaceChildren(); $("notes").replaceChildren(); return; }
  const heads = ["schedule", "makespan", "time / best", "bubble ratio", "overhead", "peak activation", "parameter copies", "p2p volume"];
  const rows = table.rows.map((row) => make("tr", { class: row.name === table.best ? "best" : row.fits ? "" : "over" },
    ...[row.name, number(row.makespan), row.ratio?.toFixed(3) ?? "–", percent(row.bubble_ratio), percent(row.overhead),
      `${number(row.peak_activation)}${row.fits ? "" : " (over)"}`, number(row.parameter_copies), number(row.p2p_volume)].map((text) => make("td", {}, text))));
  $("numbers").replaceChildren(make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, ...rows));
  const { times, p2p, memory } = table.conventions;
  $("notes").replaceChildren(...[...table.notes, `times: ${times}`, `p2p: ${p2p}`, `memory: ${memory}`].map((text) => make("li", {}, text)));
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Makespan over the memory of the fullest rank; the dashed line joins those that nothing else beats. */
function showPlot({ table }) {
  if (!table?.rows.length) { $("plot").replaceChildren(); return; }
  const { rows, memory } = table, width = 460, height = 300, left = 58, bottom = 40, top = 14, right = 20;
  const peaks = rows.map((row) => row.peak_activation), times = rows.map((row) => row.makespan);
  const mostX = Math.max(...peaks, memory ?? 0) * 1.12 || 1, spread = Math.max(...times) - Math.min(...times) || Math.max(...times) * 0.2 || 1;
  const lowY = Math.max(0, Math.min(...times) - 0.25 * spread), highY = Math.max(...times) + 0.2 * spread;
  const x = (value) => left + (value / mostX) * (width - left - right), y = (value) => top + ((highY - value) / (highY - lowY)) * (height - top - bottom);
  const items = [];
  const ticks = (low, high) => {
    const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find((f) => f * power >= raw);
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, k) => (Math.ceil(low / step) + k) * step);
  };
  for (const value of ticks(0, mostX)) items.push(svg("line", { x1: x(value), x2: x(value), y1: top, y2: height - bottom }), svg("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, number(value)));
  for (const value of ticks(lowY, highY)) items.push(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  items.push(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "peak activation of the fullest rank"),
    svg("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, "makespan"));
  const front = rows.filter((a) => !rows.some((b) => b !== a && b.makespan <= a.makespan && b.peak_activation <= a.peak_activation && (b.makespan < a.makespan || b.peak_activation < a.peak_activation)))
    .sort((a, b) => a.peak_activation - b.peak_activation);
  items.push(svg("path", { class: "front", d: `M${front.map((row) => `${x(row.peak_activation)} ${y(row.makespan)}`).join("L")}` }));
  if (memory != null) items.push(svg("line", { class: "limit", x1: x(memory), x2: x(memory), y1: top, y2: height - bottom }), svg("text", { x: x(memory) + 4, y: top + 10 }, `limit ${number(memory)}`));
  const used = [];
  for (const row of rows) {
    const cx = x(row.peak_activation), cy = y(row.makespan), toLeft = cx > width - 130;
    let ty = cy + 4;
    while (used.some((u) => Math.abs(u.ty - ty) < 12 && Math.abs(u.cx - cx) < 120)) ty += 12;
    used.push({ cx, ty });
    const dot = svg("circle", { cx, cy, r: 5, class: row.fits ? "" : "over" }, svg("title", {}, `${row.name}: makespan ${number(row.makespan)}, peak ${number(row.peak_activation)}`));
    items.push(dot, svg("text", { class: "label", x: cx + (toLeft ? -9 : 9), y: ty, "text-anchor": toLeft ? "end" : "start" }, row.name));
  }
  $("plot").replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Makespan against peak activation memory" }, ...items));
}

function showCards(state, data) {
  const opened = new Set([...document.querySelectorAll(".card details[open]")].map((d) => d.dataset.name));
  $("cards").replaceChildren(...data.cards.map((card, k) => {
    const index = data.places[k], entry = catalogue.find((e) => e.name === card.schedule);
    const value = (v) => (Array.isArray(v) ? (Math.min(...v) === Math.max(...v) ? number(v[0]) : `${number(Math.min(...v))} … ${number(Math.max(...v))}`) : v == null ? "–" : number(v));
    const forms = card.closed_forms.flatMap((form) => [make("dt", {}, form.quantity.replaceAll("_", " ")),
      make("dd", {}, `${form.formula} = ${value(form.value)}${form.accuracy === "exact" ? "" : ` (${form.accuracy})`}; simulated ${value(form.simulated)}`)]);
    const told = card.closed_forms.some((form) => form.quantity === "makespan");
    const facts = [...(told ? [] : [make("dt", {}, "makespan"), make("dd", {}, number(card.makespan))]), ...forms];
    if (entry) facts.push(make("dt", {}, "source"), make("dd", {}, `${entry.source} (${entry.year})`));
    if (entry?.constraints.length) facts.push(make("dt", {}, "needs"), make("dd", {}, needsOf(entry)));
    const save = (format, title) => make("button", { type: "button", onclick: () => exportFile(state, index, format) }, title);
    const text = entry ? make("details", { "data-name": entry.name, open: opened.has(entry.name) }, make("summary", {}, "Idea and figure"), make("pre", { tabindex: "0" }, entry.text)) : "";
    return make("article", { class: "card" }, make("h3", {}, data.labels[k]), make("p", {}, entry?.title ?? "from a file"), make("dl", {}, ...facts), text,
      make("div", { class: "downloads" }, save("torch-csv", "CSV"), save("torch-csv-comms", "CSV with transfers"), save("json", "JSON"), save("chrome-trace", "Trace"), save("html", "Page")));
  }));
}

async function exportFile(state, index, format) {
  const response = await fetch("/api/export", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ state, index, format }) });
  if (!response.ok) { showProblems([await response.json()]); return; }
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition"))?.[1] ?? "schedule";
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- controls

function showSchedules() {
  const text = $("filter").value.trim().toLowerCase();
  const rows = catalogue.filter((entry) => !text || `${entry.name} ${entry.title}`.toLowerCase().includes(text)).flatMap((entry) => {
    const box = make("input", { type: "checkbox", name: "schedule", value: entry.name, onchange: () => {
      if (box.checked) chosen.set(entry.name, {}); else chosen.delete(entry.name);
      showSchedules();
      ask();
    } });
    box.checked = chosen.has(entry.name);
    const needs = needsOf(entry);
    const row = make("label", { title: `${entry.title}${needs ? `\nneeds ${needs}` : ""}` }, box, entry.name, make("span", { class: "year" }, String(entry.year)));
    if (!box.checked || !entry.options.length) return [row];
    const fields = entry.options.map((option) => {
      const field = make("input", { "aria-label": `${entry.name}: ${option.name}`, placeholder: String(option.default ?? "auto"), title: option.type, oninput: () => { chosen.get(entry.name)[option.name] = field.value; ask(); } });
      field.value = chosen.get(entry.name)[option.name] ?? "";
      return make("label", {}, option.name.replaceAll("_", " "), field);
    });
    return [row, make("div", { class: "options" }, ...fields)];
  });
  $("schedules").replaceChildren(...rows);
}

function showFiles() {
  const item = (name, drop) => make("div", { class: "file" }, make("span", { title: name }, name), make("button", { type: "button", onclick: drop, "aria-label": `Remove ${name}` }, "Remove"));
  const items = files.map((file, k) => item(file.name, () => { files.splice(k, 1); showFiles(); ask(); }));
  if (costFile) items.unshift(item(`costs: ${costFile.name}`, () => { costFile = null; showFiles(); ask(); }));
  $("files").replaceChildren(...items);
  for (const field of $("times").querySelectorAll("input")) field.disabled = Boolean(costFile);
  if (!costFile) syncSliders();
}

async function open(file) {
  clearProblems();
  if (file.size > 2 << 20) { showProblems([{ field: "file", message: `${file.name} has more than 2 MiB` }]); return; }
  const body = JSON.stringify({ name: file.name, text: await file.text() });
  const response = await fetch("/api/upload", { method: "POST", headers: { "content-type": "application/json" }, body });
  const found = await response.json();
  if (!response.ok) { showProblems([{ ...found, field: "file" }]); return; }
  if (found.costs) costFile = found.costs;
  if (found.schedule) files.push(found.schedule);
  for (const [id, value] of Object.entries(found.fields)) if ($(id)) $(id).value = value;
  syncSliders();
  showFiles();
  ask();
}

const THEMES = ["auto", "light", "dark"];
function applyTheme() {
  let name = "auto";
  try { name = localStorage.getItem("debubble-theme") ?? "auto"; } catch { /* storage may be off */ }
  const dark = name === "dark" || (name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = timeline.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = `Theme: ${name}`;
  timeline.repaint?.();
  return name;
}

async function begin() {
  applyTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(applyTheme()) + 1) % 3];
    try { localStorage.setItem("debubble-theme", next); } catch { /* as above */ }
    applyTheme();
  });
  $("copy").addEventListener("click", async () => {
    remember();
    try { await navigator.clipboard.writeText(location.href); $("copy").textContent = "Copied"; } catch { $("copy").textContent = "See the address"; }
    setTimeout(() => { $("copy").textContent = "Copy link"; }, 1500);
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const slider of document.querySelectorAll("[data-for]")) {
    slider.addEventListener("input", () => {
      const zero = slider.value === "0" && ["memory", "O"].includes(slider.dataset.for);
      $(slider.dataset.for).value = zero ? "" : slider.value;
      ask();
    });
  }
  for (const id of [...NUMBERS, ...TIMES, "memory", "mode"]) $(id).addEventListener("input", () => { syncSliders(); ask(); });
  document.querySelectorAll('input[name="basis"]').forEach((box) => box.addEventListener("change", ask));
  $("filter").addEventListener("input", showSchedules);
  $("upload").addEventListener("change", async () => { const [file] = $("upload").files; if (file) await open(file); $("upload").value = ""; });
  timeline.addEventListener("timeline-view", remember);
  addEventListener("hashchange", () => { restore(location.hash); showSchedules(); ask(); });
  catalogue = await (await fetch("/api/schedules")).json();
  restore(location.hash);
  showSchedules();
  ask();
}

begin();
