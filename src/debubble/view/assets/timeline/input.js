// Pointers, wheel and keys. Keys go by their place on the keyboard, so that W, A, S, D are together.

const HELP = [
  ["W S", "zoom in, out"], ["A D", "pan"], ["F", "zoom to the selection, or fit all"], ["0", "fit all"],
  [", .", "previous, next action on the rank"], ["← → ↑ ↓", "select along and across ranks"],
  ["/", "search: 3F7, F7, 3B, m7, r2"], ["B M P C N", "layers"], ["X", "summary of what is in view"], ["Esc", "clear"], ["?", "this help"],
  ["ctrl + wheel, pinch", "zoom"], ["shift + drag or wheel", "pan"], ["drag", "summary of an area"], ["wheel", "scroll through the schedules"],
  ["click, tap", "details"], ["double click", "zoom to the action"],
];

class Input {
  constructor(host) {
    this.host = host;
    this.held = new Set();
    this.pointers = new Map();
    const { surface, root, overview } = host.parts;
    surface.addEventListener("pointerdown", (event) => this.down(event));
    surface.addEventListener("pointermove", (event) => this.move(event));
    surface.addEventListener("pointerup", (event) => this.up(event));
    surface.addEventListener("pointercancel", (event) => this.up(event));
    surface.addEventListener("pointerleave", () => host.hover(null));
    surface.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    surface.addEventListener("dblclick", () => host.focusSelection());
    root.addEventListener("keydown", (event) => {
      this.key(event);
      // A notebook would take single letters for its own commands, of cells.
      if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
    });
    root.addEventListener("keyup", (event) => this.held.delete(event.code));
    root.addEventListener("blur", () => this.held.clear());
    const jump = (event) => {
      if (!event.buttons) return;
      const box = overview.getBoundingClientRect(), { view } = host;
      const about = ((event.clientX - box.left) / box.width) * view.total;
      view.show(about - view.span / 2, about + view.span / 2);
      host.changed();
    };
    overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
    overview.addEventListener("pointermove", jump);
  }

  /** Keys for a page that has nothing else to do with them. */
  listenEverywhere() {
    document.addEventListener("keydown", (event) => {
      const target = event.composedPath()[0];
      if (target instanceof Element && target.matches("input, select, textarea, button, a, summary")) return;
      if (!event.composedPath().includes(this.host)) this.key(event);
    });
    document.addEventListener("keyup", (event) => this.held.delete(event.code));
    addEventListener("blur", () => this.held.clear());
  }

  point(event) {
    const box = this.host.parts.surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top + this.host.view.scroll };
  }

  down(event) {
    if (event.button > 1) return;
    const { host } = this, at = this.point(event);
    host.parts.root.focus({ preventScroll: true });
    host.parts.surface.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, at);
    if (this.pointers.size === 2) {
      this.drag = null;
      this.pinch = { ...this.two(), from: host.view.from, to: host.view.to };
      return;
    }
    const pans = event.shiftKey || event.button === 1 || (event.pointerType === "touch" && !host.areaMode);
    this.drag = { at, pans, from: host.view.from, to: host.view.to, moved: false };
    if (event.button === 1) event.preventDefault();
  }

  two() {
    const [a, b] = [...this.pointers.values()];
    return { middle: (a.x + b.x) / 2, apart: Math.max(20, Math.abs(a.x - b.x)) };
  }

  move(event) {
    const { host } = this, { view } = host, at = this.point(event);
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, at);
    if (this.pinch && this.pointers.size === 2) {
      const now = this.two(), { middle, apart, from, to } = this.pinch;
      const span = (to - from) * (apart / now.apart);
      const about = from + ((middle - view.left) / view.plot) * (to - from);
      const place = (now.middle - view.left) / view.plot;
      view.show(about - place * span, about + (1 - place) * span);
      host.changed();
      return;
    }
    if (!this.drag) {
      if (event.pointerType !== "touch") host.hover(view.hit(at.x, at.y), at);
      return;
    }
    const { drag } = this;
    if (!drag.moved && Math.hypot(at.x - drag.at.x, at.y - drag.at.y) < 4) return;
    drag.moved = true;
    if (drag.pans) {
      const by = ((drag.at.x - at.x) / view.plot) * (drag.to - drag.from);
      view.show(drag.from + by, drag.to + by);
      host.changed();
    } else {
      host.setArea(drag.at, at);
    }
  }

  up(event) {
    const { host, drag } = this;
    this.pointers.delete(event.pointerId);
    if (this.pinch) {
      if (!this.pointers.size) this.pinch = null;
      return;
    }
    this.drag = null;
    if (!drag || event.type === "pointercancel") return;
    if (!drag.moved) {
      const hit = host.view.hit(drag.at.x, drag.at.y);
      host.setArea(null);
      host.select(hit && hit.bar != null ? { panel: hit.panel.index, index: hit.bar } : null, hit);
    }
  }

  wheel(event) {
    const { view } = this.host, at = this.point(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const place = Math.min(1, Math.max(0, (at.x - view.left) / view.plot));
      view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.005), place);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan((event.deltaX || event.deltaY) / view.plot);
    } else return;
    this.host.changed();
  }

  key(event) {
    const { host } = this, { code, key } = event;
    const origin = event.composedPath()[0];
    if (origin instanceof HTMLInputElement && origin.type !== "checkbox") return;
    if (event.ctrlKey || event.metaKey || event.altKey || host.parts.help.open || !host.view) return;
    if (["Enter", "Space"].includes(code) && origin instanceof Element && origin.matches("button, a, summary, input")) return;
    const layer = Object.keys(LAYERS).find((name) => LAYERS[name][2] === code);
    if (key === "?") host.help();
    else if (key === "/" || code === "Slash") host.startSearch();
    else if (["KeyW", "KeyS", "KeyA", "KeyD"].includes(code)) this.#hold(code, event.repeat);
    else if (code === "Comma" || code === "ArrowLeft") host.advance(-1);
    else if (code === "Period" || code === "ArrowRight") host.advance(1);
    else if (code === "ArrowUp" || code === "ArrowDown") host.cross(code === "ArrowUp" ? -1 : 1);
    else if (code === "KeyF" || code === "Enter") host.focusSelection();
    else if (code === "Digit0") { host.view.fit(); host.changed(); }
    else if (code === "Escape") { host.setArea(null); host.select(null); }
    else if (code === "KeyX") host.areaOfView();
    else if (layer) host.toggle(layer);
    else return;
    event.preventDefault();
  }

  /** One move at once, then on and on while the key is down. */
  #hold(code, repeated) {
    if (repeated) return;
    this.#move(code, 0.12);
    this.held.add(code);
    if (this.ticking) return;
    this.ticking = true;
    let last = performance.now() + 120;
    const tick = (now) => {
      if (!this.held.size) { this.ticking = false; return; }
      const seconds = Math.min(0.1, Math.max(0, (now - last) / 1000));
      last = Math.max(last, now);
      for (const key of this.held) this.#move(key, seconds * 1.6);
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  #move(code, amount) {
    if (!amount) return;
    const { host } = this, { view } = host;
    if (code === "KeyA" || code === "KeyD") view.pan(code === "KeyA" ? -amount : amount);
    else view.zoom(Math.exp(code === "KeyW" ? -2 * amount : 2 * amount), host.pointerPlace());
    host.changed();
  }
}
