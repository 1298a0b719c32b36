// A dot next to a name that explains it: on hover as a title, on click or tap as a note.

import { make } from "./dom.js";

let note = null, owner = null;

function close() {
  note?.remove();
  owner?.setAttribute("aria-expanded", "false");
  note = owner = null;
}

/** The dot. It is no tab stop: the field has the same text as its description. */
export function hint(name, text) {
  const dot = make("button", { type: "button", class: "hint", tabindex: "-1", title: text, "aria-label": `About ${name}`, "aria-expanded": "false", onclick: (event) => {
    event.preventDefault();
    event.stopPropagation();
    const again = owner === dot;
    close();
    if (again) return;
    owner = dot;
    note = make("div", { class: "hint-note", role: "note" }, text);
    document.body.append(note);
    const { left, top, bottom } = dot.getBoundingClientRect(), below = bottom + 6 + note.offsetHeight < innerHeight;
    note.style.top = `${scrollY + (below ? bottom + 6 : top - 6 - note.offsetHeight)}px`;
    note.style.left = `${Math.max(8, Math.min(left + scrollX - 12, document.documentElement.clientWidth - note.offsetWidth - 8))}px`;
    dot.setAttribute("aria-expanded", "true");
  } }, "?");
  return dot;
}

/** A label of a field with a dot that explains it; without a text, the label alone. */
export const named = (id, label, text) =>
  make("span", { class: "named" }, make("label", { for: id, title: text }, label), ...(text ? [hint(label, text)] : []));

document.addEventListener("click", (event) => { if (note && !note.contains(event.target)) close(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
