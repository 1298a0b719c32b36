// The page's state: its form and what was chosen and opened; as a request, and as the text of a link.

import { $ } from "./dom.js";
import { pack, unpack } from "./link.js";

export const WHOLE = ["ranks", "microbatches", "chunks", "iterations"];
const OPTIONAL = ["chunks", "iterations"];
const BASIS = "rank";

/** The lists of the server: fields of costs, choices of lowerings, p2p modes with their words, and limits. */
export const offered = { costs: [], choices: [], modes: {}, limits: {} };

/** The value of every field at the start. */
export const defaults = () => ({
  ranks: "4", microbatches: "8", chunks: "2", iterations: "", memory: "", mode: Object.keys(offered.modes)[0],
  ...Object.fromEntries(offered.costs.map(({ name, value }) => [name, value])),
  ...Object.fromEntries(offered.choices.map(({ name, values }) => [name, values[0][0]])),
});
const FIRST = ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"];

/** State outside of fields: schedules by name, each with its own chunks and options, and opened files. */
export const form = { catalogue: [], chosen: [], files: [], costs: null, packed: "", missing: [], lost: "" };

export const entryOf = (name) => form.catalogue.find((entry) => entry.name === name);
export const basis = () => document.querySelector('input[name="basis"]:checked').value;
export const choose = (name) => form.chosen.push({ name, chunks: "", options: {} });

/** Everything that can be changed, to come back to. */
export const snapshot = () => ({
  chosen: structuredClone(form.chosen), files: form.files, costs: form.costs, basis: basis(),
  values: Object.fromEntries(Object.keys(defaults()).map((id) => [id, $(id).value])),
});

const plain = ({ chosen, basis: of, values }) => JSON.stringify([chosen, of, values]);

/** Return whether two snapshots look alike. */
export const alike = (a, b) => plain(a) === plain(b) && a.costs === b.costs && a.files.length === b.files.length && a.files.every((item, k) => item === b.files[k]);

/** Set everything as in a snapshot. */
export async function bring({ chosen, files, costs, basis: of, values }) {
  Object.assign(form, { chosen: structuredClone(chosen), files, costs });
  for (const [id, value] of Object.entries(values)) $(id).value = value;
  document.querySelector(`input[name="basis"][value="${of}"]`).checked = true;
  await repack();
}

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
  const state = { schedules: [], mode: $("mode").value, costs: { basis: basis() } };
  for (const { name, chunks, options } of form.chosen) {
    const wanted = { name, options: typed(name, options) };
    if (chunks.trim()) wanted.chunks = parseWhole("chosen", chunks, `chunks of ${name}`);
    state.schedules.push(wanted);
  }
  for (const { file } of form.files) state.schedules.push({ file });
  for (const id of WHOLE) if ($(id).value !== "" || !OPTIONAL.includes(id)) state[id] = parseWhole(id, $(id).value);
  for (const { name, needs } of offered.choices) if ($(name).value && (!needs || $(needs.field).value)) state[name] = $(name).value;
  if (form.costs) state.costs.file = form.costs;
  else for (const { name } of offered.costs) { const value = parseTimes(name); if (value !== null) state.costs[name] = value; }
  const memory = parseTimes("memory");
  // A cost file may have a limit: what the field says counts in its place, nothing at all, too.
  if (memory !== null || form.costs) state.memory = memory;
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
  for (const [id, value] of Object.entries(defaults())) if ($(id).value !== value) values.set(id, $(id).value);
  if (basis() !== BASIS) values.set("basis", basis());
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
  for (const [id, value] of Object.entries(defaults())) $(id).value = values.get(id) ?? value;
  // A link may name a mode or a lowering that there is not.
  for (const id of ["mode", ...offered.choices.map(({ name }) => name)]) if ($(id).selectedIndex < 0) $(id).value = defaults()[id];
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
