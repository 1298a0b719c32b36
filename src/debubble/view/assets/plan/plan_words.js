// Numbers of a plan as text: the same digits and units as in the terminal.

/** A number with so many significant digits, trailing zeros included. */
export function digits(value, count = 3) {
  if (!value) return "0";
  const rounded = Number(value.toPrecision(count)), decimals = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
}

/** The unit to write a time in, as [seconds, name]. */
export function unitOf(value) {
  const size = Math.abs(Number(value.toPrecision(3)));
  if (size >= 1 || size === 0) return [1, "s"];
  return size >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
}

/** A time in seconds with its unit, as [number, unit]. */
export function timeParts(value) {
  const [size, unit] = unitOf(value);
  return [digits(value / size), unit];
}

export const seconds = (value) => timeParts(value).join(" ");

/** The range between two times in the unit of the longer one. */
export function secondsRange([low, high]) {
  const [size, unit] = unitOf(high);
  return `${digits(low / size)} to ${digits(high / size)} ${unit}`;
}

export const gigabytes = (value) => `${(value / 1e9).toFixed(1)} GB`;

/** A share as a percentage with two digits. */
export function roughPercent(value) {
  const percent = Math.abs(value) < 1 ? Number((100 * value).toPrecision(2)) : 100 * value, size = Math.abs(percent);
  return `${percent.toFixed(size >= 10 ? 0 : size >= 1 ? 1 : 2)} %`;
}

export const signed = (value, text) => `${value < 0 ? "−" : "+"}${text}`;

/** Degrees above one, or all of `names`. */
export const degreesText = ({ degrees }) => Object.entries(degrees).filter(([, size]) => size > 1).map(([name, size]) => `${name} ${size}`).join(", ") || "no parallelism";

export const peakOf = (plan) => Math.max(...plan.memory.map(({ peak }) => peak));
