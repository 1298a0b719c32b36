// The page's state: its form and what was chosen and opened; as a request, and as the text of a link.

import { $ } from "./dom.js";
import { pack, unpack } from "./link.js";

export const WHOLE = ["ranks", "microbatches", "chunks", "iterations"];
export const TIMES = ["F", "I", "W", "O", "p2p", "OPT", "unshard", "reduce_grad"];
export const CHOICES = ["mode", "recompute", "recompute_at", "sharding"];
export const FIELDS = [...WHOLE, ...TIMES, "memory", ...CHOICES];
const OPTIONAL = ["chunks", "iterations"];
const DEFAULTS = {
  ranks: "4", microbatches: "8", chunks: "2", iterations: "", F: "1", I: "1", W: "1", O: "", p2p: "0.05", OPT: "", unshard: "", reduce_grad: "",
  memory: "", mode: "overlapped", recompute: "", recompute_at: "just-in-time", sharding: "", basis: "rank",
};
const FIRST = ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"];

/** What is not in a field: schedules by name, each with chunks and options of its own, and opened files. */
export const form = { catalogue: [], chosen: [], files: [], costs: null, packed: "", missing: [], lost: "" };

export const entryOf = (name) => form.catalogue.find((entry) => entry.name === name);
export const basis = () => document.querySelector('input[name="basis"]:checked').value;
export const choose = (name) => form.chosen.push({ name, chunks: "", options: {} });

function parseTimes(id) {
  const parts = $(id).value.split(/[/,;\s]+/).filter(Boolean).map(Number);
  if (!parts.length) return null;
  if (parts.some((value) => !Number.isFinite(value))) {
    throw { field: id, message: `${id} is "${$(id).value}"; give a number, or one per rank${id === "memory" ? ": 4/4/3/3" : " or stage: 1/1/2/1"}` };
  }
  return parts.length === 1 ? parts[0] : parts;
}

function parseWhole(field, text, title = field) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isInteger(value)) throw { field, message: `${title} is "${text}"; give a whole number` };
  return value;
}

/** The request the form stands for; throws {field, message} when a text is no number. */
export function request() {
  const state = { schedules: [], mode: $("mode").value || "overlapped", costs: { basis: basis() } };
  for (const { name, chunks, options } of form.chosen) {
    const wanted = { name, options: typed(name, options) };
    if (chunks.trim()) wanted.chunks = parseWhole("chosen", chunks, `chunks of ${name}`);
    state.schedules.push(wanted);
  }
  for (const { file } of form.files) state.schedules.push({ file });
  for (const id of WHOLE) if ($(id).value !== "" || !OPTIONAL.includes(id)) state[id] = parseWhole(id, $(id).value);
  for (const id of ["recompute", "sharding"]) if ($(id).value) state[id] = $(id).value;
  if (state.recompute) state.recompute_at = $("recompute_at").value;
  if (form.costs) state.costs.file = form.costs;
  else for (const id of TIMES) { const value = parseTimes(id); if (value !== null) state.costs[id] = value; }
  const memory = parseTimes("memory");
  if (memory !== null) state.memory = memory;
  return state;
}

/** Options as values of the kinds that the registry gives them. */
function typed(name, options) {
  const values = {};
  for (const { name: key, kind } of entryOf(name)?.options ?? []) {
    const text = (options[key] ?? "").trim();
    if (!text) continue;
    if (kind === "truth") values[key] = text === "true";
    else values[key] = ["whole", "number"].includes(kind) && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return values;
}

/** Pack what was opened, for the link; what is too large for one is named there instead. */
export async function repack() {
  const { files, costs } = form;
  form.lost = "";
  if (!files.length && !costs) { form.packed = ""; form.missing = []; return; }
  const found = await pack({ files, costs });
  if (files !== form.files || costs !== form.costs) return;
  form.packed = found ?? "";
  form.missing = found === null ? [...files.map(({ file }) => file.name), ...(costs ? [costs.name] : [])] : [];
}

export function address(view) {
  const values = new URLSearchParams();
  for (const { name, chunks, options } of form.chosen) {
    const own = Object.entries({ chunks, ...options }).filter(([, text]) => text).map(([key, text]) => `${key}=${text}`);
    values.append("s", own.length ? `${name}(${own.join(";")})` : name);
  }
  if (!form.chosen.length) values.set("s", "");
  for (const id of FIELDS) if ($(id).value !== DEFAULTS[id]) values.set(id, $(id).value);
  if (basis() !== DEFAULTS.basis) values.set("basis", basis());
  if (form.packed) values.set("files", form.packed);
  for (const name of form.missing) values.append("missing", name);
  if (view) values.set("view", view);
  return `#${values.toString().replaceAll("%28", "(").replaceAll("%29", ")")}`;
}

/** Set everything as a link says; returns the view of the timeline in it. */
export async function restore(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  form.chosen = [];
  for (const text of values.getAll("s")) {
    const [, name, inside] = /^([^(]+)(?:\((.*)\))?$/.exec(text) ?? [];
    if (!entryOf(name)) continue;
    const pairs = (inside ?? "").split(";").filter(Boolean).map((pair) => [pair.split("=")[0], pair.split("=").slice(1).join("=")]);
    const { chunks = "", ...options } = Object.fromEntries(pairs);
    form.chosen.push({ name, chunks, options });
  }
  if (!values.has("s")) FIRST.filter(entryOf).forEach(choose);
  for (const id of FIELDS) $(id).value = values.get(id) ?? DEFAULTS[id];
  const wanted = values.get("basis") === "action" ? "action" : "rank";
  document.querySelector(`input[name="basis"][value="${wanted}"]`).checked = true;
  const lost = values.getAll("missing");
  form.files = [];
  form.costs = null;
  if (values.has("files")) {
    const opened = await unpack(values.get("files"));
    if (opened) Object.assign(form, { files: opened.files, costs: opened.costs });
    else lost.push("the files in it, which are damaged");
  }
  await repack();
  if (lost.length) form.lost = `This link was made with ${lost.join(" and ")}, too large for a link. Open ${lost.length > 1 ? "them" : "it"} to see the same.`;
  return values.get("view") ?? "";
}
