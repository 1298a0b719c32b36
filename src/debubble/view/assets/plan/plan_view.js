// An answer of the planner: four numbers, the plans in a chart and a table, and all about the one that is picked.

import { download, make } from "./shared.js";
import { differenceBars, memoryBars, timeBars } from "./plan_bars.js";
import { planChart } from "./plan_chart.js";
import { tile } from "./plan_tiles.js";
import { degreesText, digits, gigabytes, peakOf, seconds, secondsRange, roughPercent, timeParts } from "./plan_words.js";

const section = (title, ...parts) => make("section", {}, make("h2", {}, title), ...parts);

/**
 * Show an answer of debubble.view.plan_page in `root`.
 *
 * `open` is called with a plan whose timeline is to be opened elsewhere; without it there is no such button.
 */
export function showPlan(root, answer, { open = null } = {}) {
  root.classList.add("plan-answer");
  const { plans } = answer, parts = [make("p", { class: "question" }, answer.question), ...answer.stopped.map((text) => make("p", { class: "alert" }, text))];
  if (answer.nothing) parts.push(make("p", { class: "alert", role: "alert" }, answer.nothing));
  if (plans.length) new PlanView(root, answer, open, parts);
  else root.replaceChildren(...parts);
}

/** Step time, tokens per second, MFU and peak memory of a plan. */
function tilesOf(plan, { capacity, verdicts, gpus }) {
  const [step, unit] = timeParts(plan.step_time), peak = peakOf(plan);
  const memory = tile("Peak memory", gigabytes(peak).replace(" GB", ""), ` of ${gigabytes(capacity)}`, `9 of 10 runs below ${gigabytes(peak + plan.memory_error)}`, make("span", { class: `chip ${plan.verdict}` }, verdicts[plan.verdict]));
  memory.append(gauge(peak, plan.memory_error, capacity));
  return [
    tile("Step time", step, ` ${unit}`, `9 of 10 steps take ${secondsRange(plan.step_time_range)}`),
    tile("Tokens per second", digits(plan.tokens_per_second), "", `${digits(plan.tokens_per_second / gpus)} per GPU`),
    tile("MFU", roughPercent(plan.mfu.causal).replace(" %", ""), " %", `${digits(plan.tflops_per_gpu)} TFLOP/s per GPU`), memory,
  ];
}

/** A plan in a line, with what is said of it in a chip. */
const nameOf = (plan) => make("p", { class: "plan-name" }, make("span", { class: `chip ${plan.recommended ? "best" : ""}` }, plan.compared), make("b", {}, plan.schedule), ` ${degreesText(plan)} `, make("span", { class: "faint" }, `for ${plan.frameworks}`));

/** Show how far a search is, in `root`; returns a function that takes what it found since. */
export function showSearch(root, answer) {
  root.classList.add("plan-answer");
  const chart = planChart(answer), title = make("div", { class: "plan-title" }), tiles = make("div", { class: "tiles" });
  root.replaceChildren(make("p", { class: "question" }, answer.question), title, tiles, section("Plans simulated so far", chart.element));
  const show = (now) => {
    const [best] = now.plans;
    title.replaceChildren(nameOf(best), make("p", { class: "faint" }, best.setup));
    tiles.replaceChildren(...tilesOf(best, now));
    chart.show(now);
  };
  show(answer);
  return show;
}

/** What a peak takes of the capacity, and its error, as a strip. */
function gauge(peak, error, capacity) {
  const most = Math.max(capacity, peak + error), used = make("i"), more = make("u"), limit = make("s"), at = (bytes) => `${(100 * bytes) / most}%`;
  used.style.width = at(peak);
  Object.assign(more.style, { left: at(peak), width: at(error) });
  limit.style.left = `calc(${at(capacity)} - 2px)`;
  return make("div", { class: "gauge" }, used, more, limit);
}

class PlanView {
  constructor(root, answer, open, head) {
    Object.assign(this, { answer, open });
    this.best = answer.plans.find(({ recommended }) => recommended) ?? null;
    this.chart = planChart(answer, (index) => this.pick(index));
    for (const name of ["title", "panel", "memory", "flags"]) this[name] = make("div", { class: `plan-${name}` });
    this.tiles = make("div", { class: "tiles" });
    this.timeline = make("debubble-timeline", { keys: true });
    if (document.documentElement.dataset.theme) this.timeline.dataset.theme = document.documentElement.dataset.theme;
    this.pipeline = section("Timeline", this.timeline);
    root.replaceChildren(...head, this.title, this.tiles,
      make("div", { class: "plan-pair" }, section("Step time and memory of plans", this.chart.element), make("div", {}, this.panel, ...this.#notes())),
      section("Plans", this.#table()),
      section("Memory of every rank at its peak", this.memory), this.pipeline, section("Flags", this.flags), this.#left());
    this.pick(0);
  }

  /** Show all about a plan. */
  pick(index) {
    const plan = this.answer.plans[index], first = this.plan === undefined;
    if (this.plan === plan) return;
    this.plan = plan;
    this.chart.mark(index);
    for (const row of this.rows) { row.classList.toggle("marked", Number(row.dataset.plan) === index); row.querySelector("button").setAttribute("aria-pressed", Number(row.dataset.plan) === index); }
    this.#head();
    this.tiles.replaceChildren(...tilesOf(plan, this.answer));
    this.#panel();
    this.memory.replaceChildren(memoryBars(plan, this.answer));
    this.#flags();
    this.pipeline.hidden = !plan.timeline;
    if (plan.timeline) this.timeline.load(plan.timeline, !first);
  }

  /** The plan in a line, and what can be done with it. */
  #head() {
    const { plan, best } = this, back = plan !== best && best;
    this.title.replaceChildren(
      nameOf(plan),
      make("p", { class: "faint" }, plan.setup),
      make("p", { class: "actions" },
        ...(back ? [make("button", { type: "button", onclick: () => this.pick(this.answer.plans.indexOf(best)) }, "Back to the recommended plan")] : []),
        ...(this.open ? [make("button", { type: "button", title: "With its costs, next to other schedules", onclick: () => this.open(plan) }, "Open its timeline in Schedules")] : []),
        make("button", { type: "button", onclick: () => this.flags.scrollIntoView({ behavior: "smooth", block: "center" }) }, "Flags")));
  }

  /** Where the time of the recommended plan goes; of another, why it is not that. */
  #panel() {
    const { plan, best, answer } = this;
    if (plan === best || !best) { this.panel.replaceChildren(section("Where the time goes", timeBars(plan, answer.causes), ...plan.ties.map((text) => make("p", {}, text)), make("p", { class: "faint" }, plan.confidence))); return; }
    const more = plan.step_time - best.step_time, memory = peakOf(plan) - peakOf(best), times = `${seconds(Math.abs(more))} ${more < 0 ? "faster" : "slower"} than the recommended plan`;
    this.panel.replaceChildren(section("Why not this one",
      make("p", {}, make("b", {}, plan.verdict === "yes" ? `${times}.` : `It ${plan.verdict === "no" ? "does" : "may"} not fit: ${gigabytes(peakOf(plan))}, and up to ${gigabytes(answer.safe)} are safe.`), ` ${plan.why}`),
      differenceBars(plan, best, answer.causes),
      make("p", { class: "faint" }, `Seconds of a step by cause, against the recommended plan: ${seconds(best.step_time)} there, ${seconds(plan.step_time)} here. Its fullest GPU holds ${gigabytes(Math.abs(memory))} ${memory < 0 ? "less" : "more"}.`)));
  }

  /** The best plans, slower ones with less memory, and those that would need more, in one table. */
  #table() {
    const { answer } = this, { plans } = answer, fit = plans.filter(({ fits }) => fits), several = answer.series.length > 1;
    const groups = [["", fit.filter(({ shown }) => shown)], ["slower, with less memory", fit.filter(({ shown }) => !shown)], ["would need more memory", plans.filter(({ fits }) => !fits)]];
    const columns = [
      ["schedule", (plan) => make("button", { type: "button", class: "pick", "aria-pressed": "false" }, make("i", { class: `sign ${plan.verdict} series-${answer.series.indexOf(plan.framework)}` }), plan.schedule), true],
      ...(several ? [["framework", (plan) => plan.framework_title, true]] : []),
      ["step", (plan) => seconds(plan.step_time)],
      ["compared", (plan) => (plan.recommended ? make("span", { class: "chip best" }, "recommended") : plan.compared), true],
      ["peak", (plan) => gigabytes(peakOf(plan))],
      ["memory", (plan) => make("span", { class: `verdict ${plan.verdict}` }, answer.verdicts[plan.verdict]), true],
      ...answer.degrees.map((name) => [name, (plan) => plan.degrees[name]]),
      ["chunks", (plan) => plan.degrees.chunks], ["microbatch", (plan) => plan.microbatch_size], ["recompute", (plan) => plan.recompute, true], ["ZeRO", (plan) => plan.zero],
    ];
    const side = (text) => ({ class: text ? "text" : "" });
    this.rows = [];
    const bodies = groups.filter(([, some]) => some.length).map(([title, some]) => make("tbody", {},
      ...(title ? [make("tr", { class: "group" }, make("th", { scope: "rowgroup", class: "text", colspan: columns.length }, title))] : []),
      ...some.map((plan) => {
        const index = plans.indexOf(plan), row = make("tr", { "data-plan": index, onclick: () => this.pick(index) }, ...columns.map(([, cell, text]) => make("td", side(text), cell(plan))));
        this.rows.push(row);
        return row;
      })));
    const heads = columns.map(([name, , text]) => make("th", { scope: "col", ...side(text) }, name));
    return make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), ...bodies));
  }

  /** What every framework is started with: those that the plan is made for first. */
  #flags() {
    const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Frameworks" }), body = make("div", { class: "flags" });
    const show = ({ framework, title, text, runs, files }) => {
      for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.textContent === title);
      const copy = make("button", { type: "button", onclick: async () => {
        try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { copy.textContent = "Select the text"; }
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      } }, "Copy");
      const save = ([name, content]) => make("button", { type: "button", onclick: () => download(name, new Blob([content], { type: "text/plain" })) }, `Download ${name}`);
      const whole = files.length || !runs ? files : [[`${framework}-flags.txt`, text]];
      body.replaceChildren(make("div", { class: "actions" }, ...(runs ? [copy] : []), ...whole.map(save)), make("pre", { tabindex: "0" }, text));
    };
    tabs.append(...this.plan.flags.map((one) => make("button", { type: "button", role: "tab", class: one.runs ? "" : "faint", title: one.made_for ? "" : one.runs ? "keeps other things in memory" : "does not run this plan", onclick: () => show(one) }, one.title)));
    this.flags.replaceChildren(tabs, body);
    show(this.plan.flags[0]);
  }

  /** Gains from more memory or GPUs, warnings, and answers to "why not". */
  #notes() {
    const { notes, why } = this.answer, list = (texts) => make("ul", {}, ...texts.map((text) => make("li", {}, text)));
    return [...(why.length ? [section("Why not…?", list(why))] : []), ...(notes.length ? [section("Notes", list(notes))] : [])];
  }

  /** Candidates that were left out, by reason; folded. */
  #left() {
    const { considered, simulated, left_out: left } = this.answer, rows = Object.entries(left).sort((a, b) => b[1] - a[1]);
    return make("details", {}, make("summary", {}, `${considered.toLocaleString("en-US")} candidates considered, ${simulated.toLocaleString("en-US")} simulated`),
      make("table", { class: "left-out" }, make("tbody", {}, ...rows.map(([reason, count]) => make("tr", {}, make("td", {}, count.toLocaleString("en-US")), make("td", { class: "text" }, reason))))));
  }
}
