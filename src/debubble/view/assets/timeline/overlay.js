// A layer over the rows that follows the pointer, so that the rows need not be drawn again.

Object.assign(DebubbleTimeline.prototype, {
  /** The way of a microbatch, the selection, an area, the pointer's time. */
  overlay() {
    const { parts: { surface }, view, palette, hovered, area } = this, context = surface.getContext("2d"), { scale } = this.painter;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, surface.width, surface.height);
    context.save();
    context.beginPath();
    context.rect(view.left, 0, view.plot, this.tall);
    context.clip();
    const { selected } = view;
    const lit = hovered?.bar != null ? { panel: hovered.panel.index, index: hovered.bar } : selected;
    if (lit) this.lightWay(context, view.panels[lit.panel], lit.index, lit === selected ? 0.4 : 0.62);
    if (selected) this.outline(context, view.panels[selected.panel], selected.index, palette.accent, 2);
    if (area) {
      const { panel } = area, { run } = panel, x = view.x(run, area.from), y = panel.y + area.first * view.rows.pitch - view.scroll;
      context.fillStyle = context.strokeStyle = palette.accent;
      context.globalAlpha = 0.16;
      const box = [x, y - 1, view.x(run, area.to) - x, (area.last - area.first + 1) * view.rows.pitch];
      context.fillRect(...box);
      context.globalAlpha = 1;
      context.strokeRect(...box);
    }
    if (this.pointer) {
      context.fillStyle = palette.faint;
      context.fillRect(Math.round(this.pointer.x), 0, 1, this.tall);
    }
    context.restore();
    if (this.pointer && !area) {
      const place = view.place(this.pointer.x), text = this.layers.normalize ? percent(place) : this.time(place);
      const x = Math.min(this.pointer.x + 6, view.left + view.plot - 60), y = Math.max(12, this.pointer.y - view.scroll - 8);
      context.font = '600 11px system-ui, "DejaVu Sans", sans-serif';
      context.textAlign = "left";
      const mark = hovered?.bar == null && hovered?.mark;
      const label = hovered?.bar != null ? `${hovered.panel.run.actionName(hovered.bar)} at ${text}` : mark ? `${mark.look.title}: ${this.time(mark.end - mark.start)}` : text;
      const wide = context.measureText(label).width + 8;
      const left = Math.min(x, view.left + view.plot + view.right - wide);
      context.fillStyle = palette.ink;
      context.fillRect(left, y - 11, wide, 16);
      context.fillStyle = palette.paper;
      context.fillText(label, left + 4, y + 1);
    }
  },

  /** Box of an action: x, y, width, height. */
  boxOf(panel, i) {
    const { view } = this, { run } = panel, half = run.halfOf[run.style[i]], { bar } = view.rows;
    const x = view.x(run, run.start[i]), wide = Math.max(2, view.x(run, run.end(i)) - x);
    const row = run.rowOf(i), rank = row % run.ranks;
    const y = panel.y + rank * view.rows.pitch - view.scroll + (half === LOWER ? bar / 2 : 0);
    return row >= run.ranks ? [x, y + bar + 1, wide, view.rows.p2p] : [x, y, wide, half ? bar / 2 : bar];
  },

  outline(context, panel, i, color, width) {
    const [x, y, wide, tall] = this.boxOf(panel, i);
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(x, y, wide, tall);
  },

  /** Dim everything but the work for a microbatch, and join what waits for each other. */
  lightWay(context, panel, i, dim) {
    const { view, palette } = this, { run } = panel;
    if (!run.labelled(run.kind(i))) { this.outline(context, panel, i, palette.ink, 2); return; }
    const members = run.workOf(run.unit[i]);
    context.globalAlpha = dim;
    context.fillStyle = palette.paper;
    context.fillRect(view.left, panel.y - view.scroll, view.plot, panel.height);
    context.globalAlpha = 1;
    context.strokeStyle = palette.ink;
    context.lineWidth = 1;
    context.font = '500 11px system-ui, "DejaVu Sans", sans-serif';
    context.textAlign = "center";
    for (const j of members) {
      const line = run.waits.way(j);
      if (!line) continue;
      const [x, y, wide, tall] = this.boxOf(panel, line.from), [to, level, , high] = this.boxOf(panel, j);
      context.setLineDash(line.dashed ? [3, 3] : []);
      context.beginPath();
      context.moveTo(x + wide, y + tall / 2);
      context.lineTo(to, level + high / 2);
      context.stroke();
    }
    context.setLineDash([]);
    for (const j of members) {
      const [x, y, wide, tall] = this.boxOf(panel, j), s = run.style[j];
      context.fillStyle = run.palette[run.kindOf[s]][run.styles.shade[s]][0];
      context.fillRect(x, y, wide, tall);
      context.strokeStyle = palette.ink;
      context.strokeRect(x, y, wide, tall);
      if (wide < 6.2 * run.label(j).length + 4 || tall < 11) continue;
      context.fillStyle = run.palette[run.kindOf[s]][run.styles.shade[s]][1];
      context.fillText(wide < 34 ? run.label(j) : `${run.kinds[run.kindOf[s]].letter}${run.label(j)}`, x + wide / 2, y + tall / 2 + 4);
    }
  },
});
