// Time against memory: what a faster schedule costs.

import { $, amount, number, svg, tickSpacing } from "./dom.js";

/** Makespan over the memory of the fullest rank; the dashed line joins those that nothing else beats. */
export function showPlot({ table }) {
  if (!table?.rows.length) { $("plot").replaceChildren(); return; }
  const { rows } = table, memory = table.memory == null ? null : Math.max(...[table.memory].flat()), { time_unit: unit, memory_unit: memoryUnit } = table.conventions, width = 460, height = 300, left = 58, bottom = 40, top = 14, right = 20;
  const bytes = /^(b|bytes?)$/i.test(memoryUnit ?? "");
  const peaks = rows.map((row) => row.peak_activation), times = rows.map((row) => row.makespan);
  const mostX = Math.max(...peaks, memory ?? 0) * 1.12 || 1, spread = Math.max(...times) - Math.min(...times) || Math.max(...times) * 0.2 || 1;
  const lowY = Math.max(0, Math.min(...times) - 0.25 * spread), highY = Math.max(...times) + 0.2 * spread;
  const x = (value) => left + (value / mostX) * (width - left - right), y = (value) => top + ((highY - value) / (highY - lowY)) * (height - top - bottom);
  const items = [];
  const ticks = (low, high) => {
    const spacing = tickSpacing(high - low, 5), first = Math.ceil(low / spacing);
    return Array.from({ length: Math.floor(high / spacing) - first + 1 }, (_, k) => (first + k) * spacing);
  };
  for (const value of ticks(0, mostX)) items.push(svg("line", { x1: x(value), x2: x(value), y1: top, y2: height - bottom }), svg("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, bytes ? amount(value, memoryUnit) : number(value)));
  for (const value of ticks(lowY, highY)) items.push(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  items.push(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, `peak activation of the fullest rank${memoryUnit && !bytes ? ` [${memoryUnit}]` : ""}`),
    svg("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, unit ? `makespan [${unit}]` : "makespan"));
  const front = rows.filter((a) => !rows.some((b) => b !== a && b.makespan <= a.makespan && b.peak_activation <= a.peak_activation && (b.makespan < a.makespan || b.peak_activation < a.peak_activation)))
    .sort((a, b) => a.peak_activation - b.peak_activation);
  items.push(svg("path", { class: "front", d: `M${front.map((row) => `${x(row.peak_activation)} ${y(row.makespan)}`).join("L")}` }));
  if (memory != null) items.push(svg("line", { class: "limit", x1: x(memory), x2: x(memory), y1: top, y2: height - bottom }), svg("text", { x: x(memory) + 4, y: top + 10 }, `limit ${amount(memory, memoryUnit)}`));
  // A label goes where it hides no dot and no other label: right, left, above, below, further away.
  const taken = rows.map((row) => ({ x0: x(row.peak_activation) - 6, x1: x(row.peak_activation) + 6, y0: y(row.makespan) - 6, y1: y(row.makespan) + 6 }));
  const places = [0, -12, 12, -24, 24, -36, 36].flatMap((dy) => [[1, dy], [-1, dy]]);
  for (const row of rows) {
    const cx = x(row.peak_activation), cy = y(row.makespan), wide = 6.2 * row.name.length;
    const box = ([side, dy]) => ({ x0: side > 0 ? cx + 9 : cx - 9 - wide, x1: side > 0 ? cx + 9 + wide : cx - 9, y0: cy + dy - 5, y1: cy + dy + 5 });
    const free = (b) => b.x0 > left && b.x1 < width && b.y0 > 0 && b.y1 < height - bottom && taken.every((u) => b.x1 < u.x0 || u.x1 < b.x0 || b.y1 < u.y0 || u.y1 < b.y0);
    const place = places.find((option) => free(box(option))) ?? [cx > width / 2 ? -1 : 1, 0], [side, dy] = place;
    taken.push(box(place));
    const dot = svg("circle", { cx, cy, r: 5, class: row.fits ? "" : "over" }, svg("title", {}, `${row.name}: makespan ${number(row.makespan)}, peak ${amount(row.peak_activation, memoryUnit)}`));
    items.push(dot, svg("text", { class: "label", x: cx + 9 * side, y: cy + dy + 4, "text-anchor": side > 0 ? "start" : "end" }, row.name));
  }
  $("plot").replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Makespan against peak activation memory" }, ...items));
}
