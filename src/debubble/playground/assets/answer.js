// The ranking as a table, with the notes that belong to it, and problems beside their fields.

import { $, make } from "./dom.js";
import { pick } from "./tiles.js";

export function showTable({ table }) {
  if (!table) { $("numbers").replaceChildren(); $("notes").replaceChildren(); return; }
  const { times, p2p, memory } = table.conventions;
  const rows = table.rows.map(({ name, fits }, index) => make("tr", { class: name === table.best ? "best" : fits ? "" : "over" },
    ...table.columns.map(({ cells }, column) => make("td", {}, column ? cells[index] : make("button", { type: "button", class: "pick", title: "Show its numbers above", onclick: () => pick(name) }, cells[index])))));
  const heads = table.columns.map(({ title }) => make("th", { scope: "col" }, title));
  $("numbers").replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  $("notes").replaceChildren(...[...table.notes, `times: ${times}`, `p2p: ${p2p}`, `memory: ${memory}`].map((text) => make("li", {}, text)));
}

export function clearProblems() {
  for (const field of document.querySelectorAll(".field.wrong")) {
    field.classList.remove("wrong");
    field.querySelectorAll(".problem").forEach((old) => old.remove());
  }
  $("problems").replaceChildren();
}

/** Problems stand next to their field, those of no field above the timelines, each once. `use` sets a field. */
export function showProblems(problems, use) {
  for (const { field, message, nearest } of problems) {
    const place = field && document.querySelector(`.field[data-field="${CSS.escape(field)}"]`);
    const visible = place?.offsetParent ? place : $("problems"), said = `${field ?? ""}|${message}`;
    if ([...visible.querySelectorAll(".problem")].some((old) => old.dataset.said === said)) continue;
    const text = make("p", { class: "problem", "data-said": said }, message.replaceAll("`", ""));
    if (place && nearest != null && $(field)) text.append(make("button", { type: "button", onclick: () => use(field, nearest) }, `use ${nearest}`));
    if (visible === place) place.classList.add("wrong");
    visible.append(text);
  }
}
