// Fields of costs, lowerings and p2p modes, made from the lists that the server sends.

import { $, make } from "./dom.js";
import { named } from "./hint.js";
import { offered } from "./state.js";

const field = ({ name, label, hint: text }, ...parts) =>
  make("div", { class: "field", "data-field": name }, named(name, label, text), ...parts);

function costField(control) {
  const { name, label, placeholder, most, tick } = control;
  return field(control,
    make("input", { type: "range", min: "0", max: most, step: tick, "data-for": name, "data-most": "4096", "aria-label": `${label}, slider` }),
    make("input", { id: name, inputmode: "decimal", placeholder, "aria-description": control.hint }));
}

function choiceField(control) {
  const options = control.values.map(([value, text]) => make("option", { value }, text));
  return field(control, make("select", { id: control.name, "aria-description": control.hint }, ...options));
}

/** Make all of them; once, before anything else asks for a field. */
export function makeControls({ costs, choices, modes, limits }) {
  Object.assign(offered, { costs, choices, modes, limits });
  for (const [name, most] of Object.entries(limits.sizes)) $(name).max = most;
  // Fields of the page itself have their explanation as the title of their label.
  for (const label of document.querySelectorAll("#controls .field > label[title]")) {
    const { title: text, htmlFor } = label;
    $(htmlFor).setAttribute("aria-description", text);
    label.replaceWith(named(htmlFor, label.textContent, text));
  }
  $("typed-note").before(...costs.map(costField));
  $("lowerings").append(...choices.map(choiceField));
  $("mode").replaceChildren(...Object.entries(modes).map(([name, text]) => make("option", { value: name, title: text }, name)));
}

/** Fields that what was chosen elsewhere gives no meaning are hidden. */
export function followNeeds() {
  for (const { name, needs } of [...offered.costs, ...offered.choices]) {
    if (!needs) continue;
    const value = $(needs.field).value, counts = needs.values.length ? needs.values.includes(value) : value !== "";
    document.querySelector(`[data-field="${name}"]`).hidden = !counts;
  }
}
