// A faster schedule for the sizes, times and memory of the page: searched by the server, shown with the others.

import { $, number } from "./dom.js";
import { search } from "./server.js";
import { form } from "./state.js";

let running = null;

/** What was found is not about what is shown now. */
export function clearNote() { if (!running) $("faster-note").textContent = ""; }

/** Start a search, or end the one that runs; a schedule that is faster becomes one of the opened files. */
export async function find(request, changed) {
  if (running) { running.stop(); return; }
  const note = $("faster-note"), button = $("faster");
  note.className = "";
  note.textContent = "Searching…";
  try {
    running = search("/api/optimize", request(), ({ seconds, best, bound, found_by: by }) => {
      note.textContent = `${seconds.toFixed(0)} s${best ? `: ${number(best)} by ${by}; none is below ${number(bound)}` : ""}`;
    });
    button.textContent = "Cancel, keep the best";
    const { headline, file } = await running.answer;
    note.textContent = headline;
    if (!file) return;
    form.files = [...form.files.filter((item) => item.file.name !== file.name), { file }];
    await changed();
  } catch (problem) {
    if (!problem.message) throw problem;
    note.className = "problem";
    note.textContent = problem.message;
  } finally {
    running = null;
    button.textContent = "Find a faster schedule";
  }
}
