// Colours and texts. Idle time differs by pattern as well as by colour.

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

/** Where idle time has the darker of its two colours: every so many pixels across and down, slanted or not. */
const PATTERNS = [null, null, { across: 6, down: 1, slant: 1 }, { across: 4, down: 4, slant: 0 }, { across: 5, down: 1, slant: 0 }];

/** Pixels of an optimizer step that takes no time. */
const STEP_WIDE = 3;

const CAUSE_TITLES = {
  fill: "not begun (fill)", drain: "done (drain)", data: "waiting for data", p2p: "waiting for p2p",
  memory: "waiting for memory",
};

const DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 12 });

/** A number for people: six digits, no trailing zeros. */
function number(value) {
  if (!Number.isFinite(value)) return "–";
  return DIGITS.format(Math.abs(value) >= 1e6 ? Math.round(value) : Number(value.toPrecision(6)));
}

function percent(share) { return `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : 1)} %`; }

/** Round distance of about `wanted` marks on a span. */
function tickSpacing(span, wanted) {
  const raw = span / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
}

/** An element with attributes, listeners (on…) and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
