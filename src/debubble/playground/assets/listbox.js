// A list with one tab stop: arrow keys move, space or Enter chooses, letters lead to a name.

import { make } from "./dom.js";

const FORGET = 700; // milliseconds after which letters begin another name

export class Listbox {
  /** `box` is the element of the list; `toggle` is called with the name of an entry. */
  constructor(box, toggle) {
    Object.assign(this, { box, toggle, items: [], at: 0, typed: "" });
    for (const [name, value] of Object.entries({ role: "listbox", "aria-multiselectable": "true", tabindex: "0" })) box.setAttribute(name, value);
    box.addEventListener("keydown", (event) => this.#key(event));
    box.addEventListener("click", (event) => {
      const place = [...box.children].indexOf(event.target.closest("[role=option]"));
      if (place >= 0) { this.at = place; this.toggle(this.items[place].name); }
    });
  }

  /** Show entries, {name, title, note, chosen} each; the current one stays, by its name. */
  show(items) {
    const current = this.items[this.at]?.name, place = items.findIndex(({ name }) => name === current), { scrollTop } = this.box;
    this.items = items;
    this.at = Math.max(0, place);
    this.box.replaceChildren(...items.map(({ name, title, note, chosen }) => make("div", { role: "option", id: `option-${name}`, title, "aria-selected": String(chosen) },
      make("i", { class: "tick", "aria-hidden": "true" }), make("span", {}, name), make("span", { class: "year" }, note))));
    this.box.scrollTop = scrollTop;
    this.#mark(false);
  }

  #mark(follow = true) {
    for (const old of this.box.querySelectorAll(".current")) old.classList.remove("current");
    const option = this.box.children[this.at];
    if (!this.items.length) { this.box.removeAttribute("aria-activedescendant"); return; }
    option.classList.add("current");
    this.box.setAttribute("aria-activedescendant", option.id);
    if (follow) option.scrollIntoView({ block: "nearest" });
  }

  #go(place) {
    this.at = Math.max(0, Math.min(this.items.length - 1, place));
    this.#mark();
  }

  #key(event) {
    const { key } = event, page = 6;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, Home: 0, End: Infinity, PageDown: this.at + page, PageUp: this.at - page };
    if (key in steps) this.#go(steps[key]);
    else if ((key === " " && !this.typed) || key === "Enter") { if (this.items.length) this.toggle(this.items[this.at].name); }
    else if (key.length === 1) this.#type(key.toLowerCase());
    else return;
    event.preventDefault();
    // Letters are keys of the timeline elsewhere.
    event.stopPropagation();
  }

  /** Go to the next name that begins with what was typed; the same letter again goes on. */
  #type(letter) {
    clearTimeout(this.forgetting);
    this.forgetting = setTimeout(() => { this.typed = ""; }, FORGET);
    this.typed = this.typed === letter ? letter : this.typed + letter;
    const from = this.typed.length === 1 ? this.at + 1 : this.at, count = this.items.length;
    for (let k = 0; k < count; k++) if (this.items[(from + k) % count].name.startsWith(this.typed)) { this.#go((from + k) % count); return; }
  }
}
