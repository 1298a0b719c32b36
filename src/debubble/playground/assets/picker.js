// Chosen schedules, each with its own chunks and options, and the list to choose from.

import { $, make } from "./dom.js";
import { hint } from "./hint.js";
import { Listbox } from "./listbox.js";
import { choose, entryOf, form, offered } from "./state.js";

export const needsOf = (entry) => entry.constraints.map((c) => c.text.replaceAll("`", "")).join("; ");
const plain = (text) => text.toLowerCase().replaceAll(/[-_]/g, " ");

/** Return whether a schedule has all words of a filter in its names, title or source. */
function fits(entry, text) {
  const about = [entry.name, plain(entry.name), ...entry.aliases, plain(entry.title), plain(entry.source), String(entry.year)].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => about.includes(word) || about.includes(plain(word)));
}

export class Picker {
  constructor(changed) {
    this.changed = changed;
    this.list = new Listbox($("schedules"), (name) => this.#toggle(name));
    $("filter").addEventListener("input", () => this.showList());
    $("filter").addEventListener("keydown", (event) => {
      if (event.key === "Escape") { $("filter").value = ""; this.showList(); }
      if (event.key === "ArrowDown") { event.preventDefault(); $("schedules").focus(); }
      if (event.key === "Enter" && this.list.items.length && $("filter").value.trim()) this.#toggle(this.list.items[0].name);
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

  /** What took the place of a removed schedule has the focus: the next one, the last, or the list to choose from. */
  #dropped(place) {
    this.#tell();
    const left = [...$("chosen").children];
    (left.length ? left[Math.min(place, left.length - 1)].querySelector("[aria-label^=Remove]") : $("filter")).focus();
  }

  showList() {
    const text = $("filter").value.trim(), found = form.catalogue.filter((entry) => fits(entry, text));
    this.list.show(found.map((entry) => {
      const needs = needsOf(entry), other = entry.aliases.length ? `\nalso: ${entry.aliases.join(", ")}` : "";
      const title = `${entry.title}${other}${needs ? `\nneeds ${needs}` : ""}`, chosen = form.chosen.some(({ name }) => name === entry.name);
      return { name: entry.name, title, note: String(entry.year), chosen };
    }));
    $("none-found").textContent = found.length ? "" : `No schedule is called “${text}”.`;
  }

  #toggle(name) {
    if (form.chosen.some((item) => item.name === name)) form.chosen = form.chosen.filter((item) => item.name !== name); else choose(name);
    this.#tell();
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
    const drop = make("button", { type: "button", title: `Remove ${item.name}`, "aria-label": `Remove ${item.name}`, onclick: () => { form.chosen.splice(index, 1); this.#dropped(index); } }, "×");
    const head = make("div", { class: "item", title: entry.title }, make("b", {}, item.name), ...(entry.chunks === null || entry.options.length ? [again] : []), drop);
    const fields = entry.options.map((option) => this.#option(item, option));
    if (entry.chunks === null) {
      const field = make("input", { type: "number", min: "1", max: offered.limits.sizes.chunks, step: "1", placeholder: "same", "aria-label": `chunks of ${item.name}`, oninput: () => { item.chunks = field.value; this.#tell(false); } });
      field.value = item.chunks;
      fields.unshift(this.#labeled("chunks v", "Stages per rank of this schedule; empty: the value under Sizes", field));
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
    return this.#labeled(name.replaceAll("_", " "), text, field);
  }

  #labeled(name, text, field) {
    field.setAttribute("aria-description", text);
    return make("span", { class: "option" }, make("label", { title: text }, name, field), hint(name, text));
  }

  #file({ file }, index) {
    const drop = make("button", { type: "button", title: `Remove ${file.name}`, "aria-label": `Remove ${file.name}`, onclick: () => { form.files = form.files.filter((_, k) => k !== index); this.#dropped(form.chosen.length + index); } }, "×");
    return make("div", { class: "one" }, make("div", { class: "item", title: file.name }, make("b", {}, file.name), drop));
  }
}
