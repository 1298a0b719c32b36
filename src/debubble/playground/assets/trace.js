// Traces of a run: a folder or some files are sent to the server, which answers with a diagnosis.

import { $, make, rowsOf, say, size, table } from "./dom.js";
import { tile } from "./plan_tiles.js";
import { post, search } from "./server.js";
import { offered } from "./state.js";
import { Undo } from "./undo.js";

const EXAMPLE = "Example: one step of debubble run 1f1b with stage 2 made 1.5 times as slow, on 4 ranks. Open a folder or files to see a run of yours.";

/** Make the page, once; `told` hears of changes. */
export function makeTrace(told) { return new Trace(told); }

class Trace {
  constructor(told) {
    this.running = null;
    this.asked = false;
    this.undo = new Undo((state) => { this.end(); this.show(state); }, (a, b) => a.data === b.data);
    this.undo.told = told;
    const pick = (title, hint, attributes) => {
      const input = make("input", { type: "file", multiple: true, "aria-label": title, ...attributes });
      input.addEventListener("change", async () => {
        const picked = [...input.files].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
        input.value = "";
        if (picked.length) await this.take(picked);
      });
      return make("label", { class: "upload", title: hint }, title, input);
    };
    const form = make("form", { "aria-label": "Traces" }, make("fieldset", {}, make("legend", {}, "Traces of a run"),
      pick("Open a folder", "With the traces of all ranks", { id: "trace-folder", webkitdirectory: true }),
      pick("Open files", "The traces of all ranks, or one file with all of them", { id: "trace-files" }),
      make("button", { type: "button", title: "A small run with a slow stage, which comes with debubble", onclick: () => this.showExample() }, "Example"),
      make("p", { class: "note" }, `Or drop them on the page. Formats: Kineto (torch.profiler), Primus, NDTimeline, pipeline timers, Nsight Systems as sqlite, debubble run --trace, or a table. The limit is ${size(offered.limits.trace)}, packed; debubble trace on the command line takes any size.`)));
    form.addEventListener("submit", (event) => event.preventDefault());
    this.cancel = make("button", { type: "button", hidden: true, onclick: () => this.end() }, "Cancel");
    this.status = make("p", { class: "status", role: "status" }, "Open the traces of a run to see where its time went.");
    this.result = make("div", { class: "trace-result", hidden: true });
    $("trace").replaceChildren(form, make("main", {}, make("div", { class: "line" }, this.status, this.cancel), this.result));
  }

  /** Start with the example, unless something was opened. */
  begin() { if (!this.asked) this.showExample(); }

  /** Show the report of the trace that comes with the package. */
  async showExample() {
    if (this.running) this.end();
    this.asked = "example";
    try {
      say(this.status, "Reading the example…", "busy");
      const data = await post("/api/example-report");
      if (this.asked === "example") this.#keep({ data, example: true });
    } catch ({ message }) { say(this.status, message, "bad"); }
  }

  #keep(state) {
    this.undo.record(state);
    return this.show(state);
  }

  /** Send files, {path, file} each, and show their diagnosis. */
  async take(picked) {
    if (this.running) { say(this.status, "The traces before are still being read; cancel that, or wait a moment.", "bad"); return; }
    this.asked = "files";
    this.running = { stop() { this.ended = true; } };
    this.cancel.hidden = false;
    this.result.classList.add("old");
    try {
      say(this.status, "Packing…", "busy");
      const body = await pack(picked.filter(({ path }) => !path.split("/").some((name) => name.startsWith("."))));
      if (this.running.ended) throw new Error("cancelled; open the traces again to see them");
      say(this.status, `Sending ${size(body.size)}…`, "busy");
      this.running = search("/api/trace", body, ({ seconds, doing = "waiting" }) => say(this.status, `${seconds.toFixed(0)} s: ${doing}`, "busy"));
      await this.#keep({ data: await this.running.answer, example: false });
    } catch (problem) {
      if (!problem.message) throw problem;
      say(this.status, problem.message, "bad");
    } finally {
      this.running = null;
      this.cancel.hidden = true;
    }
  }

  end() {
    if (!this.running) return;
    this.running.stop();
    say(this.status, "Cancelling…", "busy");
    this.cancel.hidden = true;
  }

  async show({ data, example }) {
    const { title, tiles, said, findings, notes, next, account, machines, facts, timelines } = data;
    say(this.status, title, "");
    const timeline = make("debubble-timeline", { keys: true, layers: "bubbles", "data-theme": document.documentElement.dataset.theme });
    const items = findings.map(({ cause, gain, text, place }) => make("li", {}, make("b", {}, `${cause}: ${gain}`),
      ...(place ? [make("button", { type: "button", onclick: () => timeline.reveal(...place) }, "show")] : []), make("br"), text));
    this.result.dataset.of = example ? "example" : "files";
    this.result.replaceChildren(...(example ? [make("p", { class: "note" }, EXAMPLE)] : []),
      make("div", { class: "tiles" }, ...tiles.map((one) => tile(one.title, one.value, one.unit && ` ${one.unit}`, one.text))),
      ...said.map((text) => make("p", {}, text)),
      ...(items.length ? [make("ol", {}, ...items)] : []), ...notes.map((text) => make("p", {}, text)),
      make("p", { class: "next" }, "Next: ", make("code", {}, next)), timeline,
      ...[account, machines].filter(Boolean).flatMap(({ title: heading, columns }) => [make("h2", {}, heading),
        table(columns.map(({ title: head }) => head), rowsOf(columns))]),
      make("dl", {}, ...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));
    this.result.classList.remove("old");
    this.result.hidden = false;
    await timeline.load(timelines);
  }
}

/** Files as one body: the length of their list, the list, and their bytes, packed where they are not. */
async function pack(picked) {
  if (!picked.length) throw new Error("There is no file in this folder.");
  const { trace: most, trace_files: mostFiles } = offered.limits;
  if (picked.length > mostFiles) throw new Error(`${picked.length.toLocaleString("en")} files; the limit here is ${mostFiles.toLocaleString("en")}. Open the folder of one run's traces, or use debubble trace.`);
  const parts = [], contents = [];
  let whole = 0;
  for (const { path, file } of picked) {
    const content = await packed(file);
    whole += content.size;
    if (whole > most) throw new Error(`The files have more than ${size(most)} packed, the limit here. Open fewer steps or ranks, or use debubble trace.`);
    parts.push({ path, size: content.size });
    contents.push(content);
  }
  const list = new TextEncoder().encode(JSON.stringify({ parts })), head = new DataView(new ArrayBuffer(4));
  head.setUint32(0, list.length, true);
  return new Blob([head.buffer, list, ...contents]);
}

/** The bytes of a file: text is packed on the way, and the readers unpack it. */
async function packed(file) {
  try {
    const start = new Uint8Array(await file.slice(0, 6).arrayBuffer());
    // Packed already, or a database, which has to be as it is.
    if ((start[0] === 0x1f && start[1] === 0x8b) || new TextDecoder().decode(start) === "SQLite") return file;
    return await new Response(file.stream().pipeThrough(new CompressionStream("gzip"))).blob();
  } catch { throw new Error(`${file.name} cannot be read.`); }
}
