// Numbers as text. Times are always in milliseconds: one unit in every column and sentence.

export const MISSING = "–";
const known = value => value !== null && value !== undefined && Number.isFinite(value);

/** Decimals that show three significant digits. */
export const decimalsOf = value =>
  known(value) && value !== 0 ? Math.min(5, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))) : 2;

export const fixed = (value, decimals) => known(value) ? value.toFixed(decimals).replace("-", "−") : MISSING;

export const ms = (value, decimals = decimalsOf(value)) => known(value) ? `${fixed(value, decimals)} ms` : MISSING;

export const share = part => known(part) ? `${(100 * part).toFixed(Math.abs(part) < 0.0995 ? 1 : 0)} %` : MISSING;

/** Decimals that an interval supports: to the first digit of its half width, two or three. */
const digits = (low, high) => {
  const half = (high - low) / 2;
  return half > 0 ? Math.min(3, Math.max(2, Math.ceil(-Math.log10(half)))) : 2;
};

/** A speed-up: `1.36x`; with its interval, `1.36x [1.30, 1.41]`. */
export function ratio(value, low, high) {
  if (!known(value)) return MISSING;
  if (!known(low) || !known(high)) return `${value.toFixed(2)}x`;
  const places = digits(low, high);
  return `${value.toFixed(places)}x [${low.toFixed(places)}, ${high.toFixed(places)}]`;
}

/** Decimals of the verdict: to the first digit of the half width of its interval, as in Python. */
const verdictDigits = (low, high) => {
  const half = (high - low) / 2;
  return half > 0 ? Math.min(3, Math.max(0, Math.ceil(-Math.log10(half)))) : half === 0 ? 3 : 2;
};

/** `1.36x faster` and `[1.30, 1.41]`, or what else a comparison showed. */
export function verdictTexts(outcome, { speedup, low, high }) {
  if (outcome !== "faster" && outcome !== "slower") return [outcome, ratio(speedup, low, high)];
  const turn = value => outcome === "slower" ? 1 / value : value;
  const [l, h] = [turn(low), turn(high)].sort((x, y) => x - y);
  const places = verdictDigits(l, h);
  return [`${turn(speedup).toFixed(places)}x ${outcome}`, `[${l.toFixed(places)}, ${h.toFixed(places)}] 95 % interval`];
}

/** A count with separators: `10 838 016`. */
export const count = value => known(value) ? Math.round(value).toLocaleString("en").replace(/,/g, " ") : MISSING;

const SCALES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** A quantity with a prefix: `10.8 MFLOP`. */
export function quantity(value, unit) {
  if (!known(value)) return MISSING;
  const [scale, prefix] = SCALES.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  const scaled = value / scale;
  return `${scaled.toFixed(scale === 1 ? 0 : decimalsOf(scaled))} ${prefix}${unit}`;
}

export { known };
