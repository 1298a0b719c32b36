// From a model and a number of GPUs to a plan: its inputs, how far the search is, and the answer.

import { $, make, number, rowsOf, say, showTab, table } from "./dom.js";
import { search } from "./server.js";

const START = { model: "llama-3.1-8b", gpu: "h100", gpus: "64", batch: "512", sequence: "8192", precision: "bf16" };
const HINTS = {
  batch: "Sequences per optimizer step", sequence: "Tokens per sequence", memory: "Memory of one GPU, such as 72GB; empty: all that it has",
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

/** Make the page, once; `compare` shows a plan's schedule among others. */
export async function makePlan(compare) {
  const lists = await (await fetch("/api/planner")).json();
  return new Planner(lists, compare);
}

const id = (name) => `plan-${name}`;

function field(name, control) {
  control.id = id(name);
  return make("div", { class: "field", "data-field": id(name) }, make("label", { for: id(name), title: HINTS[name] ?? "" }, WORDS[name] ?? name), control);
}

const choice = (values, any) =>
  make("select", {}, ...(any ? [make("option", { value: "" }, any)] : []), ...values.map((value) => make("option", { value: [value].flat()[0] }, String([value].flat().at(-1)))));

/** Suggestions for a text field. */
const offered = (list, values) => make("datalist", { id: id(list) }, ...values.map((value) => make("option", { value })));

const count = (placeholder = "") => make("input", { type: "number", min: "1", step: "1", placeholder });

class Planner {
  constructor(lists, compare) {
    this.compare = compare;
    this.shown = false;
    this.running = null;
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
    this.names = ["model", "gpu", "gpus", "batch", "sequence", "precision", "framework", "memory", "imbalance", ...Object.keys(lists.states), ...lists.sizes, "schedule", "recompute", "zero", "why"];
    this.form = make("form", { "aria-label": "What to plan", novalidate: true },
      make("fieldset", {}, make("legend", {}, "Training"),
        field("model", choice([...lists.models, [FROM_FILE, "from a config.json"]])),
        make("div", { class: "own" }, make("label", { class: "upload", title: "The config.json of Hugging Face, or a YAML file; or drop it on the page" }, "Open config.json", file), text),
        field("gpu", choice(lists.gpus)), field("gpus", count()), field("batch", count()), field("sequence", count()),
        field("precision", choice(lists.precisions)), field("framework", choice(lists.frameworks, "the best that runs it")),
        ...Object.entries(lists.states).map(([name, words]) => field(name, choice(words))),
        field("memory", make("input", { placeholder: "all" })), field("imbalance", make("input", { inputmode: "decimal", placeholder: "1" }))),
      make("fieldset", {}, make("legend", {}, "Held fixed"),
        ...lists.sizes.map((name) => field(name, count("free"))),
        field("schedule", choice(lists.schedules, "free")), field("recompute", make("input", { placeholder: "free", list: id("recomputes") })), offered("recomputes", lists.recomputes), field("zero", choice(lists.zeros, "free"))),
      make("fieldset", {}, make("legend", {}, "Compare and calibrate"),
        field("why", make("input", { placeholder: "pp=16" })),
        make("div", { "data-field": id("measured") },
          make("label", { for: id("measured"), title: "A line of Megatron's log, of the plan whose degrees are held fixed; or YAML: steps, with degrees and seconds" }, "Measured step"),
          this.measured,
          make("label", { class: "upload", title: "A log of Megatron, YAML with steps, a cost file of debubble profile, or a CSV" }, "Open log or steps", log))));
    this.go = make("button", { type: "submit", class: "go" }, "Plan");
    this.status = make("p", { class: "status", role: "status" }, "Choose a model and GPUs.");
    this.result = make("div", { class: "plan-result", hidden: true });
    this.form.append(make("p", { class: "go-line" }, this.go));
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
  }

  /** Set the fields as a link says. */
  fill(hash) {
    const values = new URLSearchParams(hash.replace(/^#plan&?/, ""));
    for (const name of this.names) {
      const control = $(id(name));
      control.value = values.get(name) ?? START[name] ?? "";
      if (control.selectedIndex < 0) control.value = START[name] ?? "";
    }
  }

  /** Update what depends on the fields: the text of an own model, and the address. */
  follow() {
    this.form.querySelector(".own").hidden = $(id("model")).value !== FROM_FILE;
    if (!this.shown) return;
    const values = new URLSearchParams();
    for (const name of this.names) { const { value } = $(id(name)); if (value !== (START[name] ?? "")) values.set(name, value); }
    const text = values.toString();
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

  async start() {
    if (this.running) { this.running.stop(); say(this.status, "Ending with the best so far…", "busy"); return; }
    for (const wrong of this.form.querySelectorAll(".wrong")) wrong.classList.remove("wrong");
    this.result.classList.add("old");
    say(this.status, "Starting…", "busy");
    try {
      this.running = search("/api/plan", this.question(), ({ seconds, considered = 0, simulated = 0, best }) => {
        say(this.status, `${seconds.toFixed(0)} s: ${considered.toLocaleString("en")} plans decided, ${simulated.toLocaleString("en")} simulated, ${best ? `best ${number(best)} s` : "none fits yet"}`, "busy");
      });
      this.go.textContent = "Cancel, keep the best";
      await this.answer(await this.running.answer);
    } catch (problem) {
      if (!problem.message) throw problem;
      if (problem.field) document.querySelector(`[data-field="${CSS.escape(id(problem.field))}"]`)?.classList.add("wrong");
      say(this.status, problem.message, "bad");
    } finally {
      this.running = null;
      this.go.textContent = "Plan";
    }
  }

  async answer({ paragraphs, left_out: left, interrupted, plans, memory, front, flags, timelines, other_tab: other, why }) {
    const [question, ...others] = paragraphs;
    say(this.status, question, "");
    const parts = [...others.map((text) => make("p", {}, text)), ...(interrupted ? [make("p", { class: "problem" }, "Ended early: other plans may be better.")] : []), ...why.map((text) => make("p", { class: "why" }, text))];
    this.result.classList.remove("old");
    this.result.hidden = false;
    if (!plans) { this.result.replaceChildren(...parts, make("p", { class: "note" }, left)); return; }
    const timeline = make("debubble-timeline", { keys: true, "data-theme": document.documentElement.dataset.theme });
    const [heads, ...ranks] = memory;
    const picture = make("img", { alt: "Step time and memory of plans, numbered as in the table", class: "plan-front", src: `data:image/svg+xml,${encodeURIComponent(front)}` });
    this.result.replaceChildren(...parts,
      make("h2", {}, "Plans"),
      table(plans.map(({ title }) => title), rowsOf(plans), plans.map(({ left: side }) => side)),
      make("p", { class: "note" }, left), picture,
      make("div", { class: "line" }, make("h2", {}, "The best plan's pipeline"), make("button", { type: "button", onclick: () => this.compare(other) }, "Compare its schedule with others")),
      timeline,
      make("h2", {}, "Memory of every rank at its peak"), table(heads, ranks),
      make("h2", {}, "Flags"), ...flags.map(([name, text]) => flagsOf(name, text)));
    await timeline.load(timelines, true);
  }
}

function flagsOf(name, text) {
  const copy = make("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { copy.textContent = "Select the text"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return make("details", { open: true }, make("summary", {}, name), make("div", { class: "flags" }, copy, make("pre", { tabindex: "0" }, text)));
}
