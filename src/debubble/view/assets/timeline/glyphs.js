// Letters of labels, drawn once: for each one its pixels that are not clear, and how dense they are.

class Glyphs {
  /** `signs` are drawn beside digits. */
  constructor(scale, canvasWidth, signs) {
    const glyphs = [...new Set(`0123456789.${signs}`)];
    const size = Math.round(11 * scale), height = Math.round(size * 1.25), stride = size + 2;
    const sheet = document.createElement("canvas");
    Object.assign(sheet, { width: stride * glyphs.length, height });
    const context = sheet.getContext("2d", { willReadFrequently: true });
    context.font = `500 ${size}px system-ui, "DejaVu Sans", sans-serif`;
    context.textBaseline = "middle";
    glyphs.forEach((letter, index) => context.fillText(letter, index * stride + 1, height / 2 + scale * 0.5));
    Object.assign(this, { height, stride, canvasWidth, letters: [], ramps: new Map() });
    glyphs.forEach((letter, index) => {
      const { data } = context.getImageData(index * stride, 0, stride, height), spots = [];
      for (let k = 0; k < stride * height; k++) if (data[4 * k + 3]) spots.push(k);
      this.letters[letter.charCodeAt(0)] = {
        width: Math.round(context.measureText(letter).width),
        dx: Uint8Array.from(spots, (k) => k % stride), dy: Uint8Array.from(spots, (k) => Math.floor(k / stride)),
        at: Int32Array.from(spots, (k) => Math.floor(k / stride) * canvasWidth + (k % stride)),
        dense: Uint8Array.from(spots, (k) => data[4 * k + 3]),
      };
    });
  }

  of(text, k) { return this.letters[text.charCodeAt(k)] ?? this.letters[48]; }

  measure(text) {
    let sum = 0;
    for (let k = 0; k < text.length; k++) sum += this.of(text, k).width;
    return sum;
  }

  /** A text in black or white into pixels that mostly have one color, between two columns. */
  draw(text, x, y, { pixels, canvasHeight, fill, tone, left, right }) {
    const ramp = this.#ramp(fill, tone), inside = y >= 0 && y + this.height <= canvasHeight;
    for (let k = 0; k < text.length; k++) {
      const { width, dx, dy, at, dense } = this.of(text, k), corner = y * this.canvasWidth + x;
      const whole = inside && x >= left && x + this.stride <= right;
      for (let n = 0; n < at.length; n++) {
        if (!whole && (x + dx[n] < left || x + dx[n] >= right || y + dy[n] < 0 || y + dy[n] >= canvasHeight)) continue;
        const p = corner + at[n], under = pixels[p];
        pixels[p] = under === fill ? ramp[dense[n]] : mixed(under, tone, dense[n]);
      }
      x += width;
    }
  }

  #ramp(fill, tone) {
    let ramp = this.ramps.get(fill);
    if (!ramp) {
      ramp = Uint32Array.from({ length: 256 }, (_, dense) => mixed(fill, tone, dense));
      this.ramps.set(fill, ramp);
    }
    return ramp;
  }
}

/** A pixel under one of a grey tone of some density, both up to 255. */
function mixed(under, tone, dense) {
  const channel = (shift) => { const value = (under >>> shift) & 255; return Math.round(value + ((tone - value) * dense) / 255) << shift; };
  return ((255 << 24) | channel(16) | channel(8) | channel(0)) >>> 0;
}
