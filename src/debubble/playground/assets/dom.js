// Elements, numbers and units.

import { make, number, tickSpacing } from "./shared.js";

export { make, number, tickSpacing };

export const $ = (id) => document.getElementById(id);

/** Show one of the pages, and press its tab. */
export function showTab(name) {
  document.body.dataset.tab = name;
  for (const [tab, frame] of [["schedules", "bench"], ["plan", "plan"], ["trace", "trace"]]) {
    $(frame).hidden = tab !== name;
    $(`${tab}-tab`).setAttribute("aria-pressed", tab === name);
  }
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} kB`);

/** An amount of memory in the unit of a cost file; bytes as GiB. */
export function amount(value, unit = "") {
  if (!/^(b|bytes?)$/i.test(unit)) return `${number(value)}${unit ? ` ${unit}` : ""}`;
  const power = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${Number((value / 1024 ** power).toPrecision(4))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
