// Which schedules: those that were chosen, each with its own chunks and options, and a list to choose from.

import { $, make } from "./dom.js";
import { choose, entryOf, form, offered } from "./state.js";

export const needsOf = (entry) => entry.constraints.map((c) => c.text.replaceAll("`", "")).join("; ");
const plain = (text) => text.toLowerCase().replaceAll(/[-_]/g, " ");

/** Whether a schedule has all words of a filter in its names, its title or its source. */
function fits(entry, text) {
  const about = [entry.name, plain(entry.name), ...entry.aliases, plain(entry.title), plain(entry.source), String(entry.year)].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => about.includes(word) || about.includes(plain(word)));
}

export class Picker {
  constructor(changed) {
    this.changed = changed;
    $("filter").addEventListener("input", () => this.showList());
    $("filter").addEventListener("keydown", (event) => {
      if (event.key === "Escape") { $("filter").value = ""; this.showList(); }
      if (event.key !== "Enter") return;
      const first = $("schedules").querySelector("input");
      if (first && $("filter").value.trim()) first.click();
    });
  }

  show() {
    this.showChosen();
    this.showList();
  }

  #tell(rebuild = true) {
    if (rebuild) this.show();
    this.changed();
  }

  showList() {
    const text = $("filter").value.trim(), found = form.catalogue.filter((entry) => fits(entry, text));
    $("schedules").replaceChildren(...found.map((entry) => {
      const box = make("input", { type: "checkbox", name: "schedule", value: entry.name, "aria-label": entry.name, onchange: () => {
        if (box.checked) choose(entry.name); else form.chosen = form.chosen.filter(({ name }) => name !== entry.name);
        this.#tell();
      } });
      box.checked = form.chosen.some(({ name }) => name === entry.name);
      const needs = needsOf(entry), other = entry.aliases.length ? `\nalso: ${entry.aliases.join(", ")}` : "";
      return make("label", { title: `${entry.title}${other}${needs ? `\nneeds ${needs}` : ""}` }, box, entry.name, make("span", { class: "year" }, String(entry.year)));
    }));
    if (!found.length) $("schedules").replaceChildren(make("p", { class: "note" }, `Nothing is called “${text}”.`));
  }

  showChosen() {
    $("chosen").replaceChildren(...form.chosen.map((item, index) => this.#chosen(item, index)), ...form.files.map((item, index) => this.#file(item, index)));
  }

  #chosen(item, index) {
    const entry = entryOf(item.name);
    const again = make("button", { type: "button", title: `Add ${item.name} once more, with chunks or options of its own`, "aria-label": `Add ${item.name} again`, onclick: () => {
      form.chosen.splice(index + 1, 0, { name: item.name, chunks: item.chunks, options: { ...item.options } });
      this.#tell();
    } }, "+");
    const drop = make("button", { type: "button", title: `Remove ${item.name}`, "aria-label": `Remove ${item.name}`, onclick: () => { form.chosen.splice(index, 1); this.#tell(); } }, "×");
    const head = make("div", { class: "item", title: entry.title }, make("b", {}, item.name), ...(entry.chunks === null || entry.options.length ? [again] : []), drop);
    const fields = entry.options.map((option) => this.#option(item, option));
    if (entry.chunks === null) {
      const field = make("input", { type: "number", min: "1", max: offered.limits.sizes.chunks, step: "1", placeholder: "same", "aria-label": `chunks of ${item.name}`, oninput: () => { item.chunks = field.value; this.#tell(false); } });
      field.value = item.chunks;
      fields.unshift(make("label", { title: "Stages per rank of this schedule; empty: the value under Sizes" }, "chunks v", field));
    }
    return make("div", { class: "one" }, head, ...(fields.length ? [make("div", { class: "options" }, ...fields)] : []));
  }

  /** An option as what it is: a choice, a tick, a number or a text. */
  #option(item, { name, kind, choices, default: standard, text }) {
    const { options } = item, set = (value) => { options[name] = value; this.#tell(false); };
    const label = `${name.replaceAll("_", " ")} of ${item.name}`, now = options[name] ?? "";
    let field;
    if (kind === "choice") {
      field = make("select", { "aria-label": label, onchange: () => set(field.value === String(standard) ? "" : field.value) }, ...choices.map((value) => make("option", { value }, value)));
      field.value = now || String(standard);
    } else if (kind === "truth") {
      field = make("input", { type: "checkbox", "aria-label": label, onchange: () => set(field.checked === standard ? "" : String(field.checked)) });
      field.checked = now ? now === "true" : standard;
    } else {
      const type = kind === "text" ? { type: "text" } : { type: "number", min: kind === "whole" ? "1" : "0", step: kind === "whole" ? "1" : "any" };
      field = make("input", { ...type, "aria-label": label, placeholder: String(standard ?? "auto"), oninput: () => set(field.value) });
      field.value = now;
    }
    return make("label", { title: text }, name.replaceAll("_", " "), field);
  }

  #file({ file }, index) {
    const drop = make("button", { type: "button", title: `Remove ${file.name}`, "aria-label": `Remove ${file.name}`, onclick: () => { form.files = form.files.filter((_, k) => k !== index); this.#tell(); } }, "×");
    return make("div", { class: "one" }, make("div", { class: "item", title: file.name }, make("b", {}, file.name), drop));
  }
}
