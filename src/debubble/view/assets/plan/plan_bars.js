// Bars of a plan: memory of every rank, part by part, and seconds by cause.

import { make } from "./shared.js";
import { gigabytes, seconds, roughPercent, signed } from "./plan_words.js";

const THIN = 24; // ranks from which rows are thin

/** Memory of every rank at its peak as stacked bars, with a line at the capacity. */
export function memoryBars({ memory, memory_error: error }, { parts, capacity, room }) {
  const most = Math.max(capacity, ...memory.map(({ peak }) => peak)) * 1.02, relative = error / Math.max(...memory.map(({ peak }) => peak));
  const at = (bytes) => `${(100 * bytes) / most}%`, used = parts.filter(([part]) => memory.some((rank) => rank[part] > 5e7));
  const rows = memory.map((rank) => {
    const high = rank.peak * (1 + relative);
    const bar = make("div", { class: "bar" }, ...used.map(([part, title]) => { const piece = make("i", { class: `part-${part}`, title: `${title}: ${gigabytes(rank[part])}` }); piece.style.width = at(rank[part]); return piece; }));
    const whisker = make("u", { title: `9 of 10 runs stay below ${gigabytes(high)}` });
    whisker.style.left = at(rank.peak);
    whisker.style.width = at(high - rank.peak);
    const line = make("s", {});
    line.style.left = at(capacity);
    bar.append(whisker, line);
    return make("div", { class: `row${high > capacity * 1.000001 ? " over" : ""}`, title: `rank ${rank.rank}: ${used.map(([part, title]) => `${title} ${gigabytes(rank[part])}`).join(", ")}; the peak is during ${rank.at.action}` },
      make("span", { class: "name" }, `rank ${rank.rank}`), bar, make("span", { class: "amount" }, gigabytes(rank.peak)));
  });
  const label = make("span", {}, `${room} ${gigabytes(capacity)}`);
  label.style.right = `${100 - (100 * capacity) / most}%`;
  return make("div", {},
    make("div", { class: `memory-bars${memory.length >= THIN ? " thin" : ""}` }, make("div", { class: "row" }, make("span"), make("div", { class: "head" }, label), make("span")), ...rows),
    make("p", { class: "plan-legend" }, ...used.map(([part, title]) => make("span", {}, make("i", { class: `swatch part-${part}` }), title)), make("span", {}, make("i", { class: "sign whisker" }), "9 of 10 runs stay below")));
}

/** Seconds of a step by cause, longest first. */
export function timeBars({ causes, step_time: whole }, names) {
  const found = Object.entries(causes).filter(([, value]) => value > 0.0005 * whole).sort((a, b) => b[1] - a[1]), most = found[0]?.[1] ?? 1;
  return make("div", { class: "cause-bars" }, ...found.map(([cause, value]) => {
    const bar = make("i", {});
    bar.style.width = `${(100 * value) / most}%`;
    return make("div", { class: "row", title: names[cause]?.[1] ?? "" }, make("span", { class: "name" }, names[cause]?.[0] ?? cause), make("div", { class: "bar" }, bar), make("span", { class: "amount" }, seconds(value)), make("span", { class: "faint" }, roughPercent(value / whole)));
  }));
}

/** Seconds that a plan takes more or less than another, by cause. */
export function differenceBars(plan, best, names) {
  const every = new Set([...Object.keys(plan.causes), ...Object.keys(best.causes)]);
  const found = [...every].map((cause) => [cause, (plan.causes[cause] ?? 0) - (best.causes[cause] ?? 0)]).filter(([, value]) => Math.abs(value) > 0.0005 * best.step_time).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const most = Math.max(...found.map(([, value]) => Math.abs(value)), 1e-12);
  return make("div", { class: "cause-bars both" }, ...found.map(([cause, value]) => {
    const bar = make("i", { class: value > 0 ? "more" : "less" });
    bar.style.width = `${(50 * Math.abs(value)) / most}%`;
    return make("div", { class: "row", title: names[cause]?.[1] ?? "" }, make("span", { class: "name" }, names[cause]?.[0] ?? cause), make("div", { class: "bar" }, bar), make("span", { class: "amount" }, signed(value, seconds(Math.abs(value)))));
  }));
}
