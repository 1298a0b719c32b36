// Step time against memory: every plan a dot, with the frontier, the capacity, and what is too much.

import { make, number, svg, tickSpacing } from "./shared.js";
import { degreesText, digits, gigabytes, peakOf, seconds, secondsRange, unitOf } from "./plan_words.js";

const GB = 1e9, NEAR = 26; // pixels within which a dot is pointed at
const MARGIN = { left: 60, right: 14, top: 26, bottom: 40 };

/** Where plans lie: ranges of memory (GB) and seconds with some room around. */
function ranges({ plans, capacity, safe }) {
  const peaks = plans.map((plan) => peakOf(plan) / GB), times = plans.map((plan) => plan.step_time);
  const low = Math.min(...peaks, safe / GB), high = Math.max(...peaks, capacity / GB), first = Math.min(...times), last = Math.max(...times);
  const tall = last - first || last * 0.1, wide = high - low || high * 0.2;
  return { x: [Math.max(0, low - 0.08 * wide), high + 0.1 * wide], y: [Math.max(0, first - 0.25 * tall), last + 0.2 * tall] };
}

/** Dots that no other beats in both time and memory, by memory. */
function frontier(dots) {
  const found = [];
  for (const dot of [...dots].sort((a, b) => a.peak - b.peak || a.time - b.time)) if (!found.length || dot.time < found.at(-1).time) found.push(dot);
  return found;
}

function ticks([low, high], wanted) {
  const spacing = tickSpacing(high - low, wanted), first = Math.ceil(low / spacing);
  return Array.from({ length: Math.floor(high / spacing + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * spacing).toPrecision(12)));
}

/** The chart; `pick` is called with the index of a plan. `show` takes other data, and `mark` marks a plan. */
export function planChart(first, pick = null) {
  const picture = svg("svg", { role: "group", "aria-label": "Step time against memory of plans" });
  const tip = make("div", { class: "plan-tip", role: "status", hidden: true }), frame = make("div", { class: "plan-chart" }, picture, tip), legend = make("p", { class: "plan-legend" });
  let answer = first, range = null, dots = [], scale = null, marked = 0, drawn = 0;

  function show(next) {
    answer = next;
    const { plans, seen, verdicts, series } = answer;
    range = ranges(answer);
    const inside = ({ peak, time }) => peak > range.x[0] && peak < range.x[1] && time < range.y[1];
    dots = [
      ...plans.map((plan, index) => ({ plan, index, peak: peakOf(plan) / GB, time: plan.step_time })),
      ...seen.map(([peak, time, text]) => ({ text, peak: peak / GB, time })).filter(inside),
    ];
    legend.replaceChildren(
      ...(series.length > 1 ? series.map((name, k) => make("span", {}, make("i", { class: `swatch series-${k}` }), plans.find((plan) => plan.framework === name).framework_title)) : []),
      ...Object.entries(verdicts).map(([verdict, text]) => make("span", {}, make("i", { class: `sign ${verdict}` }), text)),
      ...(seen.length ? [make("span", {}, make("i", { class: "sign seen" }), "other plans simulated")] : []));
    if (drawn) draw();
  }

  function draw() {
    const { capacity, room, safe, verdicts, series } = answer, width = Math.max(300, frame.clientWidth), height = width < 480 ? 280 : 340, right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const x = (value) => MARGIN.left + ((value - range.x[0]) / (range.x[1] - range.x[0])) * (right - MARGIN.left);
    const y = (value) => MARGIN.top + ((range.y[1] - value) / (range.y[1] - range.y[0])) * (bottom - MARGIN.top);
    scale = { x, y };
    const items = [], full = x(capacity / GB), sure = x(Math.min(safe, capacity) / GB), tall = bottom - MARGIN.top;
    items.push(svg("rect", { class: "maybe", x: sure, y: MARGIN.top, width: Math.max(0, full - sure), height: tall }), svg("rect", { class: "over", x: full, y: MARGIN.top, width: Math.max(0, right - full), height: tall }));
    for (const [text, from, to] of [["may not fit", sure, full], ["too large", full, right]]) if (to - from > 60) items.push(svg("text", { class: "band", x: (from + to) / 2, y: MARGIN.top + 13, "text-anchor": "middle" }, text));
    for (const value of ticks(range.x, width / 90)) items.push(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: MARGIN.top, y2: bottom }), svg("text", { x: x(value), y: bottom + 15, "text-anchor": "middle" }, number(value)));
    const [size, unit] = unitOf(range.y[1]);
    for (const value of ticks(range.y, 7)) items.push(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }), svg("text", { x: MARGIN.left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value / size)));
    items.push(svg("text", { x: (MARGIN.left + right) / 2, y: height - 5, "text-anchor": "middle" }, "peak memory of the fullest GPU [GB]"),
      svg("text", { x: 13, y: (MARGIN.top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(MARGIN.top + bottom) / 2})` }, `step time [${unit}]`));
    items.push(svg("line", { class: "capacity", x1: full, x2: full, y1: MARGIN.top - 6, y2: bottom }), svg("text", { class: "capacity", x: full, y: MARGIN.top - 11, "text-anchor": full > right - 50 ? "end" : "middle" }, `${room} ${gigabytes(capacity)}`));
    const front = frontier(dots);
    if (front.length) {
      const steps = front.map((dot, k) => `${k ? `H${x(dot.peak)}` : `M${x(dot.peak)} ${MARGIN.top}`}V${y(dot.time)}`).join("");
      // Its name stands over the end of its longest step, where no plan is.
      const level = front.map((dot, k) => [x(dot.peak), k + 1 < front.length ? x(front[k + 1].peak) : right, y(dot.time)]);
      const [from, to, height] = level.reduce((a, b) => (b[1] - b[0] > a[1] - a[0] ? b : a));
      items.push(svg("path", { class: "front", d: `${steps}H${right}` }), svg("text", { class: "front", x: to - 5, y: height - 7, "text-anchor": "end" }, to - from > 360 ? "frontier: none is faster with less memory" : "frontier"));
    }
    for (const dot of dots) if (!dot.plan) items.push(svg("circle", { class: "seen", cx: x(dot.peak), cy: y(dot.time), r: 2.5 }));
    // The recommended plan on top.
    for (const { plan, index, peak, time } of dots.filter((dot) => dot.plan).reverse()) {
      const label = `${plan.schedule}, ${degreesText(plan)}: ${seconds(time)}, ${gigabytes(1e9 * peak)}, ${verdicts[plan.verdict]}`;
      const dot = svg("g", { class: `dot ${plan.verdict}${plan.recommended ? " recommended" : ""} series-${series.indexOf(plan.framework)}`, "data-plan": index, tabindex: "0", role: "button", "aria-label": label },
        svg("circle", { class: "halo", cx: x(peak), cy: y(time), r: 11 }), svg("circle", { cx: x(peak), cy: y(time), r: plan.recommended ? 7 : 5.5 }));
      if (pick) dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(index); } });
      dot.addEventListener("focus", () => point(dots[index]));
      dot.addEventListener("blur", () => point(null));
      items.push(dot);
      if (plan.recommended) items.push(svg("text", { class: "label", x: x(peak) + (x(peak) > right - 110 ? -12 : 12), y: y(time) - 9, "text-anchor": x(peak) > right - 110 ? "end" : "start" }, plan.compared));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.replaceChildren(...items);
    mark(marked);
  }

  /** The dot nearest to the pointer, if it is near. */
  function nearest(event) {
    const { left, top } = picture.getBoundingClientRect();
    let best = null, least = NEAR;
    for (const dot of dots) {
      const away = Math.hypot(scale.x(dot.peak) - event.clientX + left, scale.y(dot.time) - event.clientY + top) * (dot.plan ? 1 : 2);
      if (away < least) { least = away; best = dot; }
    }
    return best;
  }

  function point(dot) {
    for (const old of picture.querySelectorAll(".pointed")) old.classList.remove("pointed");
    tip.hidden = !dot;
    frame.style.cursor = dot?.plan && pick ? "pointer" : "";
    if (!dot) return;
    const { plan } = dot;
    if (plan) picture.querySelector(`[data-plan="${dot.index}"]`)?.classList.add("pointed");
    tip.replaceChildren(...(plan
      ? [make("b", {}, plan.schedule), make("span", {}, plan.framework_title), make("span", {}, degreesText(plan)), make("span", {}, `${seconds(dot.time)} (9 of 10: ${secondsRange(plan.step_time_range)}) · ${plan.compared}`), make("span", {}, `${gigabytes(1e9 * dot.peak)}: ${answer.verdicts[plan.verdict]}`)]
      : [make("b", {}, dot.text), make("span", {}, `${seconds(dot.time)} · ${digits(dot.peak)} GB`), make("span", { class: "faint" }, "simulated on the way, not among the best")]));
    const wide = frame.clientWidth, at = scale.x(dot.peak);
    tip.style.top = `${Math.max(0, scale.y(dot.time) - 14)}px`;
    tip.style.left = at > wide / 2 ? "" : `${at + 16}px`;
    tip.style.right = at > wide / 2 ? `${wide - at + 16}px` : "";
  }

  function mark(index) {
    marked = index;
    for (const dot of picture.querySelectorAll(".dot")) {
      dot.classList.toggle("marked", Number(dot.dataset.plan) === index);
      dot.setAttribute("aria-pressed", Number(dot.dataset.plan) === index);
    }
  }

  picture.addEventListener("pointermove", (event) => point(nearest(event)));
  picture.addEventListener("pointerleave", () => point(null));
  picture.addEventListener("click", (event) => { const dot = pick && nearest(event); if (dot?.plan) pick(dot.index); });
  new ResizeObserver(() => { if (frame.clientWidth && frame.clientWidth !== drawn) { drawn = frame.clientWidth; draw(); } }).observe(frame);
  show(first);
  return { element: make("div", {}, frame, legend), mark, show };
}
