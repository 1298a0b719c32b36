// A card for every schedule: numbers beside formulas, the idea with its figure, and files to download.

import { $, make, number } from "./dom.js";
import { needsOf } from "./picker.js";
import { entryOf } from "./state.js";

const DOWNLOADS = [["torch-csv", "CSV", "The order as PyTorch reads it"], ["torch-csv-comms", "CSV with transfers", "The order with sends and receives"],
  ["json", "JSON", "The order with its placement"], ["chrome-trace", "Perfetto", "Its timeline, for ui.perfetto.dev"], ["html", "Page", "A page with this timeline"]];

const value = (v) => {
  if (v == null) return "–";
  if (!Array.isArray(v)) return number(v);
  const low = Math.min(...v), high = Math.max(...v);
  return low === high ? number(low) : `${number(low)} … ${number(high)}`;
};

export function showCards(state, data, save) {
  const opened = new Set([...document.querySelectorAll(".card details[open]")].map((d) => d.dataset.name));
  const unit = data.table?.conventions.time_unit, ofTime = (quantity) => unit && ["makespan", "stage_time"].includes(quantity) ? ` ${unit}` : "";
  $("cards").replaceChildren(...data.cards.map((card, k) => {
    const entry = entryOf(card.schedule), facts = [];
    const fact = (name, text) => facts.push(make("dt", {}, name), make("dd", {}, text));
    if (!card.closed_forms.some((form) => form.quantity === "makespan")) fact("makespan", `${number(card.makespan)}${ofTime("makespan")}`);
    for (const form of card.closed_forms) {
      const { quantity, formula, accuracy } = form;
      fact(quantity.replaceAll("_", " "), `${formula} = ${value(form.value)}${ofTime(quantity)}${accuracy === "exact" ? "" : ` (${accuracy})`}; simulated ${value(form.simulated)}${ofTime(quantity)}`);
    }
    if (entry) fact("source", `${entry.source} (${entry.year})`);
    if (entry?.constraints.length) fact("needs", needsOf(entry));
    const about = entry ? make("details", { "data-name": data.labels[k], open: opened.has(data.labels[k]) }, make("summary", {}, "Idea and figure"),
      ...entry.about.map(({ kind, text }) => (kind === "figure" ? make("pre", { tabindex: "0" }, text) : make("p", { class: "prose" }, text)))) : "";
    return make("article", { class: "card" }, make("h3", {}, data.labels[k]), make("p", {}, entry?.title ?? "from a file"), make("dl", {}, ...facts), about,
      make("div", { class: "downloads" }, ...DOWNLOADS.map(([format, title, hint]) => make("button", { type: "button", title: `${hint}: ${data.labels[k]}`, onclick: () => save({ state, index: data.places[k], part: data.parts[k], format }) }, title))));
  }));
}
