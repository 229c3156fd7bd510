// Numbers as text. Times are always in milliseconds: one unit in every column and sentence.

export const MISSING = "–";
const known = value => value !== null && value !== undefined && Number.isFinite(value);

/** Decimals that show three significant digits. */
export const decimalsOf = value =>
  known(value) && value !== 0 ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9)) : 0;

/** A number with a true minus; five and more digits before the point are in groups of three. */
export const fixed = (value, decimals) => known(value)
  ? value.toFixed(decimals).replace("-", "−").replace(/^−?\d{5,}/, digits => digits.replace(/\B(?=(\d{3})+$)/g, "\u202f")) : MISSING;

/** Three significant digits, as in the tables of the report. */
export const figure = value => fixed(value, decimalsOf(value));

/** B less A with its sign, and no more decimals than both have. */
export const difference = (a, b) => known(a) && known(b)
  ? `${b > a ? "+" : ""}${fixed(b - a, Math.min(decimalsOf(a), decimalsOf(b)))}` : MISSING;

export const ms = value => known(value) ? `${figure(value)} ms` : MISSING;

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
