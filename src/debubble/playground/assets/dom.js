// Elements, numbers and units.

import { make, number } from "./shared.js";

export * from "./shared.js";

export const $ = (id) => document.getElementById(id);

/** Show one of the pages, and press its tab. */
export function showTab(name) {
  document.body.dataset.tab = name;
  for (const [tab, frame] of [["schedules", "bench"], ["plan", "plan"], ["trace", "trace"]]) {
    $(frame).hidden = tab !== name;
    $(`${tab}-tab`).setAttribute("aria-pressed", tab === name);
  }
}

/** A table that scrolls sideways; columns of `left` are aligned there. */
export function table(heads, rows, left = []) {
  const side = (column) => ({ class: left[column] ? "left" : "" });
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((text, k) => make("th", { scope: "col", ...side(k) }, text)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((text, k) => make("td", side(k), text)))))));
}

/** Rows of cells out of columns of cells. */
export const rowsOf = (columns) => columns[0].cells.map((_, row) => columns.map(({ cells }) => cells[row]));

/** Show how far something is, or what went wrong. */
export function say(status, text, how) {
  status.textContent = text;
  status.dataset.how = how;
}

export const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} kB`);

/** An amount of memory in the unit of a cost file; bytes as GiB. */
export function amount(value, unit = "") {
  if (!/^(b|bytes?)$/i.test(unit)) return `${number(value)}${unit ? ` ${unit}` : ""}`;
  const power = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${Number((value / 1024 ** power).toPrecision(4))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
