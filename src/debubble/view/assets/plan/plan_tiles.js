// A number in large letters, with its name above and what it means below.

import { make } from "./shared.js";

/** A tile; `rest` stands next to its name. */
export function tile(title, value, unit, below, ...rest) {
  return make("div", { class: "tile" }, make("h3", {}, title, ...rest),
    make("p", { class: "value" }, value, make("small", {}, unit)), make("p", { class: "faint" }, below));
}
