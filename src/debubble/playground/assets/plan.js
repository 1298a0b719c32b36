// From a model and a number of GPUs to a plan: its inputs, how far the search is, and the answer.

import { $, make, number, say, showTab } from "./dom.js";
import { named } from "./hint.js";
import { showPlan, showSearch } from "./plan_view.js";
import { search } from "./server.js";
import { Undo } from "./undo.js";

const START = {}; // values of the fields at the start: the question of the example
const HINTS = {
  framework: "Plan what this framework can run; by default, any of them", precision: "Number format of matrix products",
  microbatch_size: "Sequences per microbatch of one replica", schedule: "Use this pipeline schedule",
  batch: "Sequences per optimizer step", sequence: "Tokens per sequence", memory: "Most memory of one GPU that plans may need, such as 72GB; empty: what it has, less the error of predicted peaks",
  imbalance: "Tokens of the busiest experts over the mean", zero: "What replicas split: optimizer (1), gradients (2), weights (3)",
  gradients: "In what gradients add up", moments: "Adam's two moments", offload: "What the host's memory has",
  weights: "fp8 or fp4: layers' weights are stored and gathered as products multiply them",
  recompute: "none, selective or full; or full:3, the first 3 layers of every stage and chunk",
  why: "The best plan with this, and why it is not the best: pp=16, or several such as pp=16 schedule=1f1b",
  tp: "Tensor-parallel degree", cp: "Context-parallel degree", ep: "Expert-parallel degree", dp: "Replicas", pp: "Pipeline ranks", chunks: "Stages per rank",
};
const LOG = "elapsed time per iteration (ms): 4700.0";
const WORDS = { why: "why not…?", gpu: "GPU", gpus: "GPUs", sequence: "sequence", zero: "ZeRO", microbatch_size: "microbatch size" };
const NUMBERS = ["gpus", "batch", "sequence", "imbalance", "zero"];
const FROM_FILE = "";

/** Fields that are always shown, and the first of those that are folded unless they differ from the start. */
const FIRST = ["model", "gpu", "gpus", "batch", "sequence"], OPTIONAL = ["precision", "framework", "memory", "imbalance"];

const EXAMPLE = "An example, planned in advance. Change it and press Plan.";

/** Make the page, once; `compare` shows a plan's schedule among others, and `told` hears of changes. */
export async function makePlan(compare, told) {
  const lists = await (await fetch("/api/planner")).json();
  return new Planner(lists, compare, told);
}

const id = (name) => `plan-${name}`;

function field(name, control) {
  control.id = id(name);
  if (HINTS[name]) control.setAttribute("aria-description", HINTS[name]);
  return make("div", { class: "field", "data-field": id(name) }, named(id(name), WORDS[name] ?? name, HINTS[name] ?? ""), control);
}

const choice = (values, any) =>
  make("select", {}, ...(any ? [make("option", { value: "" }, any)] : []), ...values.map((value) => make("option", { value: [value].flat()[0] }, String([value].flat().at(-1)))));

/** Suggestions for a text field. */
const offered = (list, values) => make("datalist", { id: id(list) }, ...values.map((value) => make("option", { value })));

const count = (placeholder = "") => make("input", { type: "number", min: "1", step: "1", placeholder });

class Planner {
  constructor(lists, compare, told) {
    this.compare = compare;
    for (const [name, value] of Object.entries(lists.start)) START[name] = String(value);
    this.undo = new Undo((state) => this.bring(state), (a, b) => a.answer === b.answer);
    this.undo.told = told;
    this.shown = false;
    this.running = null;
    this.next = null;
    this.asked = "";
    this.numbers = [...NUMBERS, ...lists.sizes];
    const text = make("textarea", { rows: 5, spellcheck: "false", placeholder: "…or paste a config.json here", "aria-label": "config.json" });
    this.text = text;
    const file = make("input", { type: "file", accept: ".json,.yaml,.yml" });
    file.addEventListener("change", () => { this.take([...file.files]); file.value = ""; });
    this.measured = make("textarea", { id: id("measured"), rows: 2, spellcheck: "false", placeholder: LOG });
    this.measuredName = "";
    this.measured.addEventListener("input", () => { this.measuredName = ""; });
    const log = make("input", { type: "file" });
    log.addEventListener("change", async () => {
      const [picked] = log.files;
      if (picked) { this.measured.value = await picked.text(); this.measuredName = picked.name; }
      log.value = "";
    });
    for (const [name, words] of Object.entries(lists.states)) START[name] = [words[0]].flat()[0];
    this.names = [...FIRST, ...OPTIONAL, ...Object.keys(lists.states), ...lists.sizes, "schedule", "recompute", "zero", "why"];
    this.go = make("button", { type: "submit", class: "go" }, "Plan");
    this.example = make("button", { type: "button", title: `${START.model} on ${START.gpus} GPUs, planned in advance`, onclick: () => this.showExample() }, "Example");
    this.form = make("form", { "aria-label": "What to plan", novalidate: true },
      make("fieldset", {}, make("legend", {}, "Training"),
        field("model", choice([...lists.models, [FROM_FILE, "from a config.json"]])),
        make("div", { class: "own" }, make("label", { class: "upload", title: "The config.json of Hugging Face, or a YAML file; or drop it on the page" }, "Open config.json", file), text),
        field("gpu", choice(lists.gpus)), field("gpus", count()), field("batch", count()), field("sequence", count())),
      make("p", { class: "go-line" }, this.go, this.example),
      this.more = make("details", {}, make("summary", {}, "More options"),
        make("fieldset", {}, make("legend", {}, "Software and memory"),
          field("framework", choice(lists.frameworks, "the best that runs it")), field("precision", choice(lists.precisions)),
          ...Object.entries(lists.states).map(([name, words]) => field(name, choice(words))),
          field("memory", make("input", { placeholder: "all" })), field("imbalance", make("input", { inputmode: "decimal", placeholder: "1" }))),
        make("fieldset", {}, make("legend", {}, "Fixed"),
          ...lists.sizes.map((name) => field(name, count("free"))),
          field("schedule", choice(lists.schedules, "free")), field("recompute", make("input", { placeholder: "free", list: id("recomputes") })), offered("recomputes", lists.recomputes), field("zero", choice(lists.zeros, "free"))),
        make("fieldset", {}, make("legend", {}, "Compare and calibrate"),
          field("why", make("input", { placeholder: "pp=16" })),
          make("div", { "data-field": id("measured") },
            make("label", { for: id("measured"), title: "A line of Megatron's log, of the plan whose degrees are fixed; or YAML: steps, with degrees and seconds" }, "Measured step"),
            this.measured,
            make("label", { class: "upload", title: "A log of Megatron, YAML with steps, a cost file of debubble profile, or a CSV" }, "Open log or steps", log)))));
    this.status = make("p", { class: "status", role: "status" });
    this.result = make("div", { class: "plan-result", hidden: true });
    $("plan").replaceChildren(this.form, make("main", {}, this.status, this.result));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    this.form.addEventListener("input", () => this.follow());
    this.fill("");
  }

  show(shown, hash = null) {
    this.shown = shown;
    if (!shown) return;
    showTab("plan");
    if (hash !== null) this.fill(hash);
    this.follow();
    // There is something to look at from the start.
    if (this.asked) return;
    if (this.#link() === "" && !this.text.value && !this.measured.value) this.showExample();
    else this.start();
  }

  /** Show the plan that comes with the package; what runs is ended. */
  async showExample() {
    this.#drop();
    this.asked = "example";
    this.fill("");
    this.text.value = this.measured.value = "";
    this.follow();
    const answer = await (await fetch("/api/example-plan")).json();
    if (this.asked === "example") this.answer(answer, EXAMPLE);
  }

  /** Show a question and its answer again. */
  bring({ link, text, measured, name, answer, note }) {
    this.#drop();
    this.asked = "before";
    this.fill(`#plan&${link}`);
    Object.assign(this.text, { value: text });
    Object.assign(this.measured, { value: measured });
    this.measuredName = name;
    this.follow();
    this.answer(answer, note, false);
  }

  /** End a search whose answer is not wanted any more. */
  #drop() {
    this.next = null;
    if (!this.running) return;
    this.running.stop();
    this.running.dropped = true;
    this.go.textContent = "Plan";
  }

  /** Fields that differ from the start, as in a link. */
  #link() {
    const values = new URLSearchParams();
    for (const name of this.names) { const { value } = $(id(name)); if (value !== (START[name] ?? "")) values.set(name, value); }
    return values.toString();
  }

  /** Set the fields as a link says. */
  fill(hash) {
    const values = new URLSearchParams(hash.replace(/^#plan&?/, ""));
    for (const name of this.names) {
      const control = $(id(name));
      control.value = values.get(name) ?? START[name] ?? "";
      if (control.selectedIndex < 0) control.value = START[name] ?? "";
    }
    this.more.open = this.names.some((name) => !FIRST.includes(name) && $(id(name)).value !== (START[name] ?? ""));
  }

  /** Update what depends on the fields: the text of an own model, and the address. */
  follow() {
    this.form.querySelector(".own").hidden = $(id("model")).value !== FROM_FILE;
    if (!this.shown) return;
    const text = this.#link();
    history.replaceState(null, "", text ? `#plan&${text}` : "#plan");
  }

  async take([picked]) {
    if (!picked) return;
    this.text.value = await picked.text();
    $(id("model")).value = FROM_FILE;
    this.follow();
  }

  /** The request; throws {field, message} for what is no number. */
  question() {
    const asked = {};
    for (const name of this.names) {
      const { value, validity } = $(id(name)), text = value.trim();
      if (text === "" && !validity.badInput) continue;
      asked[name] = this.numbers.includes(name) ? Number(text) : text;
      if (validity.badInput || Number.isNaN(asked[name])) throw { field: name, message: `${WORDS[name] ?? name} is no number` };
    }
    if ($(id("model")).value === FROM_FILE) {
      if (!this.text.value.trim()) throw { field: "model", message: "open or paste a config.json" };
      asked.file = { name: this.text.value.trim().startsWith("{") ? "config.json" : "model.yaml", text: this.text.value };
    }
    const measured = this.measured.value.trim();
    if (measured) asked.measured = { name: this.measuredName.slice(-80) || (measured.startsWith("steps") ? "steps.yaml" : "log line"), text: this.measured.value };
    return asked;
  }

  /** Plan what the form says; while that is being planned, end with the best so far. */
  async start() {
    let question;
    try { question = this.question(); } catch (problem) { this.refused(problem); return; }
    const text = JSON.stringify(question), { running } = this;
    if (running) {
      running.stop();
      if (running.text === text && !running.dropped) { say(this.status, "Ending with the best so far…", "busy"); return; }
      this.next = text;
      await running.ended;
      if (this.next !== text) return;
      this.next = null;
    }
    for (const wrong of this.form.querySelectorAll(".wrong")) wrong.classList.remove("wrong");
    this.asked = text;
    this.follower = null;
    this.result.classList.add("old");
    say(this.status, "Planning…", "busy");
    const mine = search("/api/plan", question, (now) => { if (this.running === mine && !mine.dropped) this.tell(now); });
    this.running = Object.assign(mine, { text, ended: mine.answer.then(() => {}, () => {}) });
    this.go.textContent = "Stop, keep the best";
    try {
      const answer = await mine.answer;
      if (this.next === null && !mine.dropped) this.answer(answer);
    } catch (problem) {
      if (!problem.message) throw problem;
      if (!mine.dropped) this.refused(problem);
    } finally {
      if (this.running === mine) this.running = null;
      if (!mine.dropped) this.go.textContent = "Plan";
    }
  }

  /** Show how far the search is, and the best plan so far. */
  tell({ seconds, considered = 0, simulated = 0, best, view }) {
    say(this.status, `${seconds.toFixed(0)} s: ${considered.toLocaleString("en")} plans decided, ${simulated.toLocaleString("en")} simulated, ${best ? `best ${number(Number(best.toPrecision(3)))} s` : "none fits yet"}`, "busy");
    if (!view) return;
    this.result.hidden = false;
    this.result.classList.remove("old");
    if (this.follower) this.follower(view); else this.follower = showSearch(this.result, view);
  }

  refused({ field: name, message }) {
    if (name) {
      const place = document.querySelector(`[data-field="${CSS.escape(id(name))}"]`);
      place?.classList.add("wrong");
      if (place && this.more.contains(place)) this.more.open = true;
    }
    say(this.status, message, "bad");
  }

  /** Show an answer; `kept` is false for one that comes back. */
  answer(answer, note = "", kept = true) {
    if (kept) this.undo.record({ link: this.#link(), text: this.text.value, measured: this.measured.value, name: this.measuredName, answer, note });
    for (const wrong of this.form.querySelectorAll(".wrong")) wrong.classList.remove("wrong");
    this.follower = null;
    say(this.status, note, note && "note");
    this.result.classList.remove("old");
    this.result.hidden = false;
    showPlan(this.result, answer, { open: (plan) => this.compare(plan.open) });
  }
}
