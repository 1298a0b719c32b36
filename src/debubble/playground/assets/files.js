// Opening files: by the button or by dropping them on the page.

import { $, make, size } from "./dom.js";
import { gunzip } from "./link.js";
import { form, offered } from "./state.js";

const MOST_DROPPED = 20000;

/** The name and the text of a file, unpacked when it is a gzip file. */
async function textOf(file) {
  const most = offered.limits.file;
  if (file.size > most) throw new Error(`${file.name} has ${size(file.size)}; the limit is ${size(most)}`);
  let bytes = new Uint8Array(await file.arrayBuffer()), { name } = file;
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) {
    try { bytes = await gunzip(bytes); } catch (error) { throw new Error(`${name}: cannot be unpacked, ${error.message}`); }
    name = name.replace(/\.gz$/i, "");
  }
  return { name: name.slice(-80), text: new TextDecoder().decode(bytes) };
}

/** Open a file; returns what it changed, or throws {message}. */
export async function open(picked, post) {
  const file = await textOf(picked), found = await post("/api/upload", file);
  // A schedule that cannot run is not taken in: what is shown stays as it is, and so do the fields.
  if (found.problems.length) return found;
  // A trace has times, too; those of a cost file that was opened stay.
  if (found.costs && !(found.kind === "trace" && form.costs)) form.costs = found.costs;
  if (found.schedule) {
    form.files = [...form.files.filter((item) => item.file.name !== found.schedule.name), { file: found.schedule }];
  }
  for (const [id, value] of Object.entries(found.fields)) if ($(id)) $(id).value = [value].flat().join("/");
  return found;
}

/** Files that are dropped, {path, file} each, those in folders too, and whether there was a folder. */
async function dropped({ items, files }) {
  // The list of what is dropped is empty after the first wait.
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean), found = [];
  if (!entries.some((entry) => entry.isDirectory)) return [[...files].map((file) => ({ path: file.name, file })), false];
  async function walk(entry, path) {
    if (found.length > MOST_DROPPED) return;
    if (entry.isFile) { found.push({ path, file: await new Promise((done, failed) => { entry.file(done, failed); }) }); return; }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((done, failed) => { reader.readEntries(done, failed); });
      if (!some.length) return;
      for (const one of some) await walk(one, `${path}/${one.name}`);
    }
  }
  for (const entry of entries) await walk(entry, entry.name);
  return [found, true];
}

/** Take files that are dropped anywhere. */
export function listenForDrops(take) {
  addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); document.body.classList.add("dropping"); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", async (event) => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    await take(...await dropped(event.dataTransfer));
  });
}

/** Show the source of costs: the fields, or a file in their place. */
export function showCosts(lines, drop) {
  const file = form.costs;
  $("times").classList.toggle("from-file", Boolean(file));
  for (const field of $("times").querySelectorAll(".typed input")) field.disabled = Boolean(file);
  if (!file) { $("costs").replaceChildren(); return; }
  const rows = lines.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
  $("costs").replaceChildren(
    make("div", { class: "item" }, make("b", { title: file.name }, file.name), make("button", { type: "button", "aria-label": `Remove costs: ${file.name}`, title: "Type costs instead", onclick: drop }, "×")),
    make("dl", {}, ...rows));
}
