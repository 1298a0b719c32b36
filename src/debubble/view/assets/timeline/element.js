// <debubble-timeline>: the parts of the component, and what happens to them. A host gives it a payload, as
// text of a <script type="application/json"> inside, or by load(). Everything lives in a shadow tree, so
// that several can stand in one document.

const SKELETON = `
<div class="root" tabindex="0" role="application" aria-label="Pipeline timeline. Press question mark for the keys.">
  <div class="tools" role="toolbar" aria-label="Timeline">
    <div class="group"><button data-do="fit" title="Fit all (0)">Fit</button><button data-do="out" title="Zoom out (S)" aria-label="Zoom out">−</button><button data-do="in" title="Zoom in (W)" aria-label="Zoom in">+</button></div>
    <div class="group layers"></div>
    <form class="group search" role="search"><input type="search" placeholder="Search: 3F7, m7, r2" aria-label="Search actions" title="Search (/)" autocomplete="off" spellcheck="false"><output></output></form>
    <div class="group end"><button data-do="area" aria-pressed="false" title="Drag, also by touch, to sum up an area: busy and idle time, actions by kind (X: all that is in view)">Select area</button><details class="menu"><summary>Export</summary><div><button data-do="png">PNG of this view</button><button data-do="svg">SVG of this view</button><button data-do="pdf">PDF of this view</button><button data-do="trace">Perfetto file (JSON)</button></div></details><button data-do="perfetto" title="Open this timeline in ui.perfetto.dev, in a new tab">Perfetto</button><button data-do="help" title="Keys (?)" aria-label="Keys">?</button></div>
  </div>
  <div class="overview" aria-hidden="true"><canvas></canvas><div class="window"></div></div>
  <canvas class="axis" aria-hidden="true"></canvas>
  <div class="frame"><div class="scroll"><div class="content"><canvas class="base"></canvas><canvas class="surface"></canvas><div class="labels"></div></div></div><button class="more" hidden></button></div>
  <div class="legend" aria-label="Legend"></div>
  <div class="details" aria-live="polite" hidden></div>
  <dialog class="help" aria-label="Keys"></dialog>
</div>`;

class DebubbleTimeline extends HTMLElement {
  connectedCallback() {
    if (this.parts) { this.watch(); return; }
    const shadow = this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    shadow.adoptedStyleSheets = [sheet];
    shadow.innerHTML = SKELETON;
    const part = (name) => shadow.querySelector(`.${name}`);
    this.parts = Object.fromEntries(
      ["root", "tools", "layers", "search", "overview", "window", "axis", "scroll", "content", "base", "surface", "labels", "more", "legend", "details", "help"]
        .map((name) => [name, part(name)]));
    this.layers = { bubbles: true, memory: true, p2p: false, critical: false, normalize: false };
    this.painter = new Painter(this.parts.base);
    this.input = new Input(this);
    const layers = this.getAttribute("layers")?.split(",");
    for (const name of layers ? Object.keys(LAYERS) : []) this.layers[name] = layers.includes(name);
    if (this.hasAttribute("keys")) this.input.listenEverywhere();
    if (this.hasAttribute("page")) this.#ownPage();
    this.#build();
    this.watch();
    this.#read();
    // A parser announces an element before it has read its content.
    if (!this.turn && document.readyState === "loading") addEventListener("DOMContentLoaded", () => this.#read(), { once: true });
  }

  #read() {
    const data = this.querySelector('script[type="application/json"]');
    if (data) this.load(JSON.parse(data.textContent));
  }

  disconnectedCallback() {
    this.observer?.disconnect();
    this.themes?.disconnect();
    this.darkness?.removeEventListener("change", this.repaint);
    document.removeEventListener("pointerdown", this.closeMenus, true);
  }

  /** Follow the size of the element and the theme of the page. */
  watch() {
    this.repaint ??= () => this.layout();
    this.observer = new ResizeObserver(this.repaint);
    this.observer.observe(this.parts.root);
    this.darkness = matchMedia("(prefers-color-scheme: dark)");
    this.darkness.addEventListener("change", this.repaint);
    document.addEventListener("pointerdown", this.closeMenus, true);
    if (!this.hasAttribute("cell")) return;
    this.themes = new MutationObserver(() => { if (this.palette && this.palette !== this.theme) this.layout(); });
    this.themes.observe(document.body, { attributeFilter: ["class", "data-jp-theme-light", "data-vscode-theme-kind"] });
  }

  /** On a page of its own the state is in the address. */
  #ownPage() {
    this.wanted = location.hash.slice(1);
    this.addEventListener("timeline-view", () => history.replaceState(null, "", `#${this.state}`));
    // Text beside the timeline may lead to where something happens: schedule, rank, start, end.
    document.addEventListener("click", (event) => {
      const place = event.target.closest?.("[data-reveal]")?.dataset.reveal;
      if (place && this.view) this.reveal(...place.split(" ").map(Number));
    });
    addEventListener("hashchange", () => { this.state = location.hash.slice(1); });
  }

  #build() {
    const { parts } = this;
    for (const [name, [title, text]] of Object.entries(LAYERS)) {
      const box = make("input", { type: "checkbox", "data-layer": name, onchange: () => this.toggle(name) });
      parts.layers.append(make("label", { title: `${text} (${LAYERS[name][2].slice(3)})` }, box, title));
    }
    const acts = {
      fit: () => { this.view.fit(); this.changed(); },
      in: () => { this.view.zoom(0.6); this.changed(); },
      out: () => { this.view.zoom(1 / 0.6); this.changed(); },
      area: () => this.setAreaMode(!this.areaMode),
      png: () => savePng(this),
      svg: () => download("timeline.svg", new Blob([svgText(this)], { type: "image/svg+xml" })),
      pdf: async () => download("timeline.pdf", await pdfBlob(this)),
      trace: () => { const run = this.run(); download(`${run.name}.trace.json`, traceOf(run, this.data.unit)); },
      perfetto: () => openInPerfetto(this.run(), this.data.unit),
      help: () => this.help(),
    };
    parts.root.addEventListener("click", (event) => {
      const act = event.target.closest?.("[data-do]")?.dataset.do;
      if (!act || !this.view) return;
      event.target.closest("details")?.removeAttribute("open");
      acts[act]();
    });
    this.#menus();
    const field = parts.search.querySelector("input");
    parts.search.addEventListener("submit", (event) => { event.preventDefault(); this.next(1); });
    field.addEventListener("input", () => { this.found = null; this.next(0); });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { field.value = ""; this.found = null; this.next(0); parts.root.focus(); }
      if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); this.next(-1); }
      event.stopPropagation();
    });
    parts.scroll.addEventListener("scroll", () => { if (this.view) { this.view.scroll = parts.scroll.scrollTop; this.#more(); this.changed(false); } });
    parts.more.addEventListener("click", () => parts.scroll.scrollBy({ top: 0.8 * this.tall, behavior: "smooth" }));
    const keys = HELP.map(([key, text]) => make("div", {}, make("kbd", {}, key), make("span", {}, text)));
    parts.help.append(make("h2", {}, "Keys and pointer"), make("div", { class: "keys" }, ...keys),
      make("p", {}, "Every column of pixels that many actions share shows how much of it each kind takes: forward on top, idle time at the bottom."),
      make("button", { onclick: () => parts.help.close() }, "Close"));
    parts.help.addEventListener("click", (event) => { if (event.target === parts.help) parts.help.close(); });
  }

  /** Menus close on Escape, on a click elsewhere, and when something else is used. */
  #menus() {
    const open = () => this.parts.tools.querySelectorAll("details[open]");
    const close = () => open().forEach((menu) => menu.removeAttribute("open"));
    this.closeMenus = (event) => { for (const menu of open()) if (!event.composedPath().includes(menu)) menu.removeAttribute("open"); };
    this.parts.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !open().length) return;
      const [menu] = open();
      close();
      menu.querySelector("summary").focus();
      event.stopImmediatePropagation();
    }, true);
    this.parts.root.addEventListener("focusin", this.closeMenus);
    // The file is that of the selection's schedule, or of the first: the menu says which.
    for (const menu of this.parts.tools.querySelectorAll("details")) menu.addEventListener("toggle", () => {
      const trace = menu.querySelector('[data-do="trace"]');
      if (menu.open && trace && this.data) trace.textContent = `Perfetto file of ${this.run().name} (JSON)`;
    });
  }

  /** Schedules that begin below what is in view. */
  #more() {
    const { more, scroll } = this.parts, end = scroll.scrollTop + this.tall;
    const below = this.view.panels.filter(({ y, height }) => y + height / 2 > end).map(({ run }) => run.name);
    more.hidden = !below.length;
    more.textContent = below.length > 2 ? `↓ ${below.length} more` : `↓ ${below.join(", ")}`;
  }

  /** Show a payload of debubble.view.timeline_data. `keep` leaves the view where it is. */
  async load(payload, keep = false) {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    let data;
    try {
      data = await decode(payload);
    } catch (error) {
      this.parts.details.hidden = false;
      this.parts.details.textContent = `This timeline cannot be shown: ${error.message}`;
      return;
    }
    if (turn !== this.turn) return;
    const old = this.view;
    this.data = data;
    this.view = new View(data, this.layers);
    this.found = null;
    if (keep && old) this.view.show((old.from / old.total) * this.view.total, (old.to / old.total) * this.view.total);
    this.hovered = this.area = null;
    this.drawLegend();
    this.layout();
    if (this.wanted) { const text = this.wanted; this.wanted = null; this.state = text; }
    // Prepare for zooming while nothing moves.
    const idle = globalThis.requestIdleCallback ?? setTimeout;
    for (const run of data.runs) BLOCKS.forEach((_, level) => idle(() => run.blocks(level)));
    this.setAttribute("ready", "");
    this.showDetails();
    this.dispatchEvent(new Event("timeline-ready"));
  }

  get theme() {
    const name = this.dataset.theme || (this.#dark() ? "dark" : "light");
    this.parts.root.dataset.theme = name;
    return THEMES[name];
  }

  /** A notebook has a theme of its own, whatever the system's is. */
  #dark() {
    const { classList, dataset } = document.body;
    if (dataset.jpThemeLight) return dataset.jpThemeLight === "false";
    if (dataset.vscodeThemeKind || this.hasAttribute("cell")) return classList.contains("vscode-dark");
    return this.darkness.matches;
  }

  run() { return this.data.runs[this.view.selected?.panel ?? 0]; }

  caption(run) {
    const unit = this.data.unit ? ` ${this.data.unit}` : "";
    const makespan = `makespan ${number(run.makespan)}${unit} · bubble ratio ${percent(run.bubble_ratio)}`, peak = this.amount(run.fullest);
    return this.view.right > 50 ? `${run.setting} · ${makespan} · peak activation ${peak}` : `${makespan} · peak ${peak}`;
  }

  /** Work out sizes and rebuild what stands beside the rows. */
  layout() {
    if (!this.view || !this.isConnected) return;
    const { parts, view } = this, width = parts.root.clientWidth;
    if (!width) return;
    if (this.palette !== this.theme) {
      this.palette = this.theme;
      this.drawLegend();
    }
    this.painter.setTheme(this.palette);
    const room = Math.max(240, Math.round(innerHeight * 0.68));
    view.layout(width, width < 620, room);
    const tall = Math.min(view.height, room);
    this.tall = tall;
    parts.scroll.style.height = `${tall}px`;
    parts.content.style.height = `${view.height}px`;
    parts.surface.style.marginTop = `-${tall}px`;
    const scale = Math.min(2, devicePixelRatio || 1);
    this.painter.resize(Math.round(width * scale), Math.round(tall * scale), scale);
    for (const [canvas, height] of [[parts.base, tall], [parts.surface, tall], [parts.axis, 24]]) {
      canvas.style.height = `${height}px`;
      if (canvas === parts.base) continue;
      Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    }
    for (const box of parts.layers.querySelectorAll("input")) box.checked = this.layers[box.dataset.layer];
    parts.layers.querySelector('[data-layer="normalize"]').parentElement.hidden = this.data.runs.length < 2;
    this.#labels();
    this.#overview();
    view.scroll = parts.scroll.scrollTop;
    this.#more();
    this.draw();
  }

  /** Headings of the panels, ranks on the left, idle shares and peaks on the right. */
  #labels() {
    const { view, parts } = this, { rows } = view, items = [];
    this.labelStep = 1;
    while (this.labelStep * rows.pitch < 13) this.labelStep *= 2;
    for (const panel of view.panels) {
      const { run } = panel;
      const head = make("div", { class: "head" }, make("b", {}, run.name), make("span", {}, this.caption(run)));
      head.style.top = `${panel.head}px`;
      items.push(head);
      if (view.right > 50) {
        const title = make("div", { class: "side title" }, make("span", {}, "idle"), make("span", {}, "peak"));
        title.style.top = `${panel.y - 22}px`;
        items.push(title);
      }
      for (let rank = 0; rank < run.ranks; rank += this.labelStep) {
        const top = `${panel.y + rank * rows.pitch + rows.bar / 2 - 7}px`;
        const label = make("div", { class: "rank" }, String(rank));
        label.style.top = top;
        items.push(label);
        if (view.right <= 50 || !this.differs(run, rank)) continue;
        const side = make("div", { class: "side" }, make("span", {}, this.idleText(run, rank)),
          make("span", { class: this.isOver(run, rank) ? "over" : "", title: `peak activation ${this.amount(run.peak[rank])}` }, this.level(run.peak[rank])));
        side.style.top = top;
        items.push(side);
      }
    }
    parts.labels.classList.toggle("low", view.low);
    parts.labels.style.setProperty("--peaks", `${view.right - 66}px`);
    parts.labels.replaceChildren(...items);
  }

  idleText(run, rank) { return percent(Math.max(0, 1 - run.busy[rank] / run.makespan)); }
  isOver(run, rank) {
    const limit = limitOf(this.data.limit, rank);
    return limit != null && run.peak[rank] > limit * (1 + 1e-6);
  }

  /** Return whether the texts next to a rank are written: of many equal neighbors only the first and the last. */
  differs(run, rank) {
    const text = (at) => `${this.idleText(run, at)} ${this.level(run.peak[at])}`, last = run.ranks - 1;
    return run.ranks <= 12 || rank === 0 || rank + this.labelStep > last || text(rank) !== text(rank - 1) || text(rank) !== text(rank + 1);
  }

  /** Colors and texts of what is drawn, with the shares of idle time over all ranks. */
  legend() {
    const { runs, kinds, causes } = this.data, theme = this.theme, items = [];
    kinds.forEach((kind, index) => {
      // Transfers and copies that are actions are drawn in their own layer.
      const drawn = kind.stream ? this.layers.p2p && !kind.receives : true;
      if (drawn && runs.some((run) => run.shows(index))) items.push({ color: kind.color, kind, text: `${kind.name} ${kind.title}` });
    });
    if (!this.layers.bubbles) items.push({ color: theme.idle, text: "idle" });
    // If all runs have marks, causes have their names.
    const looks = runs.every((run) => run.marks) ? runs[0].marks.looks : [];
    if (this.layers.bubbles) causes.forEach((cause, index) => {
      const shares = runs.map((run) => (run.marks ? run.marks.like(index) : run.idle[index].reduce((a, b) => a + b, 0)) / (run.makespan * run.ranks || 1));
      if (shares.every((share) => share < 1e-9)) return;
      items.push({ color: theme.causes[index][1], cause: index, ...withShares(looks.find(({ like }) => like === index)?.title ?? CAUSE_TITLES[cause], runs, shares) });
    });
    if (this.layers.bubbles) items.push(...markLegend(runs, theme));
    const longest = Math.max(...runs.map((run) => run.iterations));
    for (let k = 0; longest > 1 && k < Math.min(longest, theme.iterations.length); k++) {
      items.push({ color: theme.iterations[k], text: `line below: iteration ${k}${longest > k + 3 ? `, ${k + 3}, …` : ""}` });
    }
    for (const text of new Set(runs.map((run) => run.shades).filter(Boolean))) {
      const names = runs.filter((run) => run.shades === text).map((run) => run.name);
      items.push({ text: `${text}${runs.length > 1 ? ` (${names.join(", ")})` : ""}` });
    }
    if (this.layers.memory) items.push({ color: theme.memory, text: "activation memory" });
    if (this.layers.memory && this.data.limit != null) items.push({ color: theme.limit, text: `limit ${[this.data.limit].flat().map((limit) => this.amount(limit)).join(" / ")}` });
    return items;
  }

  drawLegend() {
    const chips = this.legend().map(({ color, kind, cause, hatched, text, title }) => {
      if (!color) return make("span", {}, text);
      const swatch = make("i", cause != null ? { class: `cause c${cause}` } : hatched ? { class: "hatched" } : {});
      swatch.style.backgroundColor = cause != null ? this.theme.causes[cause][0] : hatched ? this.theme.idle : color;
      if (cause != null) swatch.style.setProperty("--tone", this.theme.causes[cause][1]);
      if (kind?.edge) swatch.style.boxShadow = `inset 0 ${kind.edge === "top" ? "" : "-"}3px ${kind.stripe}`;
      return make("span", { title }, swatch, text);
    });
    this.parts.legend.replaceChildren(...chips);
  }

  #overview() {
    const { parts, view } = this, ranks = this.data.runs.reduce((sum, run) => sum + run.ranks, 0);
    const bar = Math.max(2, Math.ceil(64 / ranks)), painter = new Painter(parts.overview.firstChild);
    painter.resize(Math.max(1, Math.round(view.plot)), ranks * bar, 1);
    painter.setTheme(this.palette);
    view.paintAll(painter, bar);
    parts.overview.style.marginLeft = `${view.left}px`;
    parts.overview.style.width = `${view.plot}px`;
  }

  /** Draw a frame now. */
  draw(coarse = 1) {
    this.pending = false;
    const time = this.view.paint(this.painter, this.tall, coarse);
    this.#axis();
    this.#frame();
    this.overlay();
    return time;
  }

  /** Draw a frame soon, and notify the host of the new view. */
  changed(tell = true) {
    if (!this.pending) {
      this.pending = true;
      requestAnimationFrame(() => { if (this.pending) this.#soon(); });
    }
    if (tell) {
      clearTimeout(this.telling);
      this.telling = setTimeout(() => this.dispatchEvent(new Event("timeline-view")), 150);
    }
  }

  /** If frames take long, columns are wider while things move, and sharp when they rest. */
  #soon() {
    clearTimeout(this.sharpen);
    const coarse = this.coarse ?? 1, time = this.draw(coarse);
    this.coarse = time > 6 ? Math.min(4, 2 * coarse) : time < 2 ? Math.max(1, coarse / 2) : coarse;
    if (coarse > 1) this.sharpen = setTimeout(() => this.draw(), 140);
  }

  marks() {
    const { view } = this, wide = tickSpacing(view.span, view.plot / 90), marks = [];
    const first = Math.ceil(Math.max(0, view.from) / wide - 1e-9);
    for (let k = first; k * wide <= Math.min(view.to, view.total) + 1e-9 * view.total; k++) {
      const text = this.layers.normalize ? percent(k * wide) : number(k * wide);
      marks.push({ x: view.left + ((k * wide - view.from) / view.span) * view.plot, text });
    }
    return marks;
  }

  #axis() {
    const { parts: { axis }, view, palette } = this, context = axis.getContext("2d"), { scale } = this.painter;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, axis.width, axis.height);
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textAlign = "center";
    for (const { x, text } of this.marks()) {
      context.fillStyle = palette.faint;
      context.fillText(text, Math.min(x, view.left + view.plot + view.right - 14), 13);
      context.fillStyle = palette.line;
      context.fillRect(Math.round(x), 18, 1, 6);
    }
    context.textAlign = "left";
    context.fillStyle = palette.faint;
    context.fillText(this.data.unit ? this.data.unit : "time", 4, 13);
  }

  /** The part of the overview that is in view. */
  #frame() {
    const { parts: { window: pane }, view } = this;
    const a = Math.max(0, view.from / view.total), b = Math.min(1, view.to / view.total);
    pane.style.transform = `translateX(${(a * view.plot).toFixed(1)}px)`;
    pane.style.width = `${Math.max(4, (b - a) * view.plot).toFixed(1)}px`;
  }
}
