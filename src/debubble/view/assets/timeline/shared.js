// Elements and numbers, for the component and for the playground, which imports this file as a module.

const DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 12 });

/** A number for people: six digits, no trailing zeros. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  return DIGITS.format(Math.abs(value) >= 1e6 ? Math.round(value) : Number(value.toPrecision(6)));
}

export function percent(share) { return `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : 1)} %`; }

/** Round distance of about `wanted` marks on a span. */
export function tickSpacing(span, wanted) {
  const raw = span / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
}

/** An element with attributes, listeners (on…) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** An SVG element with attributes and children. */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Have the browser save a file. */
export function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
