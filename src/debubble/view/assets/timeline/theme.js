// Colors, and titles of causes. Idle time differs by pattern as well as by color.

const THEMES = {
  light: {
    paper: "#ffffff", ink: "#1f2530", faint: "#5d6675", line: "#d5dae1", idle: "#e8ebef", accent: "#0b63ce",
    memory: "#a3acb9", limit: "#c2185b", iterations: ["#d8c6ea", "#9a6fc4", "#4a1f73"],
    causes: [["#e9edf2", "#e9edf2"], ["#d6dce4", "#d6dce4"], ["#f8dde1", "#eeb6c0"], ["#c9e8e4", "#8fcbc4"], ["#e4d8f5", "#bda5e2"]],
  },
  dark: {
    paper: "#14171c", ink: "#e6e9ef", faint: "#9aa4b4", line: "#333a46", idle: "#262c35", accent: "#6cb2ff",
    memory: "#667085", limit: "#ff6b9d", iterations: ["#ead9fa", "#b48be0", "#7c43b8"],
    causes: [["#20262e", "#20262e"], ["#2f3743", "#2f3743"], ["#41262e", "#74404e"], ["#15393a", "#2c7470"], ["#332749", "#634a96"]],
  },
};

/** "#rrggbb" as a pixel of image data. */
function pixel(color) {
  const value = parseInt(color.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Patterns of idle time, in the darker of its two colors: every so many pixels across and down, slanted or not. */
const PATTERNS = [null, null, { across: 6, down: 1, slant: 1 }, { across: 4, down: 4, slant: 0 }, { across: 5, down: 1, slant: 0 }];

/** Pixels of an optimizer step that takes no time. */
const STEP_WIDE = 3;

const CAUSE_TITLES = {
  fill: "not begun (fill)", drain: "done (drain)", data: "waiting for data", p2p: "waiting for p2p",
  memory: "waiting for memory",
};

/** Colors of a run's styles as pixels, worked out on first use. */
function colorsOf(run) {
  if (!run.colors) {
    const { kind, shade } = run.styles;
    const pick = (tone) => Uint32Array.from(kind, (k, s) => pixel(run.palette[k][shade[s]][tone]));
    const stripe = (edge) => Uint32Array.from(kind, (k) => (run.kinds[k].edge === edge ? pixel(run.kinds[k].stripe) : 0));
    run.colors = {
      fill: pick(0), dark: Uint8Array.from(kind, (k, s) => run.palette[k][shade[s]][1] === "#000000"),
      top: stripe("top"), bottom: stripe("bottom"),
      classes: run.classes.map((k) => pixel(run.kinds[k].color)), kinds: run.kinds.map((k) => pixel(k.color)),
    };
  }
  return run.colors;
}
