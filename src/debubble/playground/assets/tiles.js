// Time, bubble and memory of one schedule against the best: the first of the ranking, or the one that was clicked.

import { $, amount, make, number, percent } from "./dom.js";
import { tile } from "./plan_tiles.js";

let picked = "", shown = null;

/** Show the numbers of the picked schedule, or of the best one. */
export function showTiles({ table }) {
  shown = table;
  if (!table?.rows.length) { $("tiles").replaceChildren(); return; }
  const { rows, best } = table, { time_unit: unit = "", memory_unit: memoryUnit = "" } = table.conventions;
  const row = rows.find(({ name }) => name === picked) ?? rows.find(({ name }) => name === best) ?? rows[0];
  // Only schedules within the memory limit are rivals, and only those of the same work.
  const rivals = rows.filter(({ fits }) => fits), compared = rivals.length > 1;
  const place = row.name === best ? `fastest of ${rivals.length}` : table.recorded.includes(row.name) ? "as in the trace" : row.fits ? `with ${rows.length - 1} others` : "needs more memory than the limit";
  $("tiles").replaceChildren(
    tile("Schedule", row.name, "", compared ? place : ""),
    tile("Time", number(row.makespan), unit && ` ${unit}`, compared && row.ratio != null ? relative(row, rivals, "makespan") : "makespan of a step"),
    tile("Bubble", percent(row.bubble_ratio).replace(" %", ""), " %", compared ? absolute(row, rivals, "bubble_ratio", percent) : "share of time that ranks are idle"),
    tile("Peak activation memory", ...split(amount(row.peak_activation, memoryUnit)), compared ? absolute(row, rivals, "peak_activation", (value) => amount(value, memoryUnit)) : "of the fullest rank"));
  for (const button of document.querySelectorAll("#numbers .pick")) button.setAttribute("aria-pressed", button.textContent === row.name);
}

/** Show the numbers of another schedule; those of the best one at the second click. */
export function pick(name) {
  picked = picked === name ? "" : name;
  if (shown) showTiles({ table: shown });
}

const split = (text) => { const [value, ...unit] = text.split(" "); return [value, unit.length ? ` ${unit.join(" ")}` : ""]; };
const least = (rows, key) => rows.reduce((a, b) => (b[key] < a[key] ? b : a));
const most = (rows, key) => rows.reduce((a, b) => (b[key] > a[key] ? b : a));

function relative(row, rivals, key) {
  const first = least(rivals, key), last = most(rivals, key);
  if (row[key] > first[key]) return `+${percent(row[key] / first[key] - 1)} against ${first.name} (${number(first[key])})`;
  return last[key] > row[key] ? `${percent(1 - row[key] / last[key])} less than ${last.name} (${number(last[key])})` : "the same in all";
}

function absolute(row, rivals, key, text) {
  const first = least(rivals, key), last = most(rivals, key);
  if (row[key] > first[key]) return `${first.name}: ${text(first[key])}`;
  return last[key] > row[key] ? `lowest; ${last.name}: ${text(last[key])}` : "the same in all";
}
