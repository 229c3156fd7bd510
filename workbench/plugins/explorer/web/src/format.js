// Numbers as text. Times have one unit in every column and sentence: that of the longest.

export const MISSING = "–";
const known = value => value !== null && value !== undefined && Number.isFinite(value);

/** Decimals that show three significant digits, or as many as are given. */
export const decimalsOf = (value, figures = 3) =>
  known(value) && value !== 0 ? Math.max(0, figures - 1 - Math.floor(Math.log10(Math.abs(value)) + 1e-9)) : 0;

/** Decimals that show at most three digits, down to the first one of half of the interval. */
const fitDecimals = (value, low, high) => known(low) && known(high) && high > low
  ? Math.max(decimalsOf(value, 1), Math.min(decimalsOf(value), decimalsOf((high - low) / 4, 1))) : decimalsOf(value);

/** A number with a true minus; five and more digits before the point are in groups of three. */
export const fixed = (value, decimals) => known(value)
  ? value.toFixed(decimals).replace("-", "−").replace(/^−?\d{5,}/, digits => digits.replace(/\B(?=(\d{3})+$)/g, "\u202f")) : MISSING;

/** Three significant digits, as in the tables of the report. */
export const figure = value => fixed(value, decimalsOf(value));

/** How many units a millisecond has, and the unit's name: microseconds where the longest time is short. */
export const unitOf = longest => longest > 0 && longest < 0.1 ? [1000, "µs"] : [1, "ms"];

/** In milliseconds, less is not told apart: XNNPACK logs whole microseconds. */
const LEAST = 0.001;
function write(value, decimals, scale, sign = "") {
  if (!known(value)) return MISSING;
  return scale === 1 && value && Math.abs(value) < LEAST ? `<${LEAST}` : sign + fixed(scale * value, decimals);
}

/** A time of a column, as in the tables of the report; microseconds have a scale of 1000. */
export const cell = (value, scale) => write(value, decimalsOf(scale * value), scale);

/** B less A with its sign, and no more decimals than both have. */
export const difference = (a, b, scale) => known(a) && known(b)
  ? write(b - a, Math.min(decimalsOf(scale * a), decimalsOf(scale * b)), scale, b > a ? "+" : "") : MISSING;

/** A time in ms as text, in the unit of the longest in its sentence. */
export function ms(value, longest = value) {
  const [scale, unit] = unitOf(longest);
  return known(value) ? `${cell(value, scale)} ${unit}` : MISSING;
}

/** A time and the ends of its interval, with no more digits than that allows. */
export function estimate({ mean, low, high }, longest = mean) {
  const [scale, unit] = unitOf(longest), decimals = fitDecimals(scale * mean, scale * low, scale * high);
  return [mean, low, high].map((value, n) => known(value) ? `${write(value, decimals, scale)}${n ? "" : ` ${unit}`}` : MISSING);
}

/** Bytes or operations: `10.8 MFLOP`; always in millions. */
export const mega = (value, unit) => known(value) ? `${figure(value / 1e6)} M${unit}` : MISSING;

export const share = part => known(part) ? `${(100 * part).toFixed(Math.abs(part) < 0.0995 ? 1 : 0)} %` : MISSING;

/** `1 operator`, `2 operators`. */
export const operatorsOf = count => `${count} operator${count === 1 ? "" : "s"}`;

/** Two decimals, and no more than three figures from 10 on. */
const times = value => value < 10 ? value.toFixed(2) : figure(value);

/** A speed-up: `1.36x`; with its interval, `1.36x [1.30, 1.41]`. */
export function ratio(value, low, high) {
  if (!known(value)) return MISSING;
  return `${times(value)}x${known(low) && known(high) ? ` [${times(low)}, ${times(high)}]` : ""}`;
}

/** `1.36x faster` and `[1.30, 1.41]`, or what else a comparison showed. */
export function verdictTexts(outcome, { speedup, low, high }) {
  if (outcome !== "faster" && outcome !== "slower") return [outcome, ratio(speedup, low, high)];
  const turn = value => outcome === "slower" ? 1 / value : value;
  const [l, h] = [turn(low), turn(high)].sort((x, y) => x - y);
  return [`${times(turn(speedup))}x ${outcome}`, `[${times(l)}, ${times(h)}] 95 % interval`];
}

export { known };
