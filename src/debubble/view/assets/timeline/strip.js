// Bands of pixels: which columns take another color in which line. A column keeps its color until it changes, so
// a line is the one above it with some changes, and goes into the picture as a whole.

class Strip {
  constructor(columns, tall) {
    this.line = new Uint32Array(columns);
    this.heads = new Int32Array(tall + 1);
    this.#room(12 * columns);
  }

  #room(size) {
    const larger = (old, Kind) => { const found = new Kind(size); if (old) found.set(old); return found; };
    this.links = larger(this.links, Int32Array);
    this.from = larger(this.from, Uint16Array);
    this.to = larger(this.to, Uint16Array);
    this.tones = larger(this.tones, Uint32Array);
  }

  begin(tall) {
    this.tall = tall;
    this.count = 0;
    this.heads.fill(-1, 0, tall);
  }

  /** From a line on columns from..to-1 have a color. Within one line a column changes once. */
  put(y, from, to, tone) {
    if (y >= this.tall) return;
    const last = this.heads[y];
    if (last >= 0 && this.to[last] === from && this.tones[last] === tone) { this.to[last] = to; return; }
    const k = this.count++;
    if (k >= this.links.length) this.#room(2 * k);
    this.links[k] = this.heads[y];
    this.heads[y] = k;
    this.from[k] = from;
    this.to[k] = to;
    this.tones[k] = tone;
  }

  /** Into a picture, its left column at `left`, its first line at `top`; columns begin with a color. */
  copy(pixels, width, height, left, top, tone) {
    const { line, heads, links, from, to, tones } = this;
    line.fill(tone);
    const last = Math.min(this.tall, height - top);
    for (let y = 0; y < last; y++) {
      for (let k = heads[y]; k >= 0; k = links[k]) {
        const color = tones[k], end = to[k];
        for (let x = from[k]; x < end; x++) line[x] = color;
      }
      if (top + y >= 0) pixels.set(line, (top + y) * width + left);
    }
  }
}
