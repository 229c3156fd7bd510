// What is chosen: the comparison, filters, the selection. It is written into the URL's hash.

export const EMPTY = {
  pair: 0, swap: false, category: "", module: null, finding: -1, ops: [], query: "", time: null,
  color: "category", view: "icicle", depth: 0, over: "", sort: "", factor: 1, what: {}, inference: -1,
};
const SHORT = { color: EMPTY.color, view: EMPTY.view, over: "", sort: "", category: "", query: "" };

export function toHash(state) {
  const parts = new URLSearchParams();
  if (state.pair) parts.set("pair", state.pair);
  if (state.swap) parts.set("swap", 1);
  if (state.module !== null) parts.set("module", state.module);
  if (state.finding >= 0) parts.set("finding", state.finding);
  if (state.ops.length) parts.set("ops", state.ops.join("."));
  if (state.time) parts.set("time", state.time.join("~"));
  if (state.factor !== 1) parts.set("factor", state.factor);
  if (state.inference >= 0) parts.set("inference", state.inference);
  for (const [category, factor] of Object.entries(state.what)) if (factor > 1) parts.append("what", `${category}~${factor}`);
  if (state.depth) parts.set("depth", state.depth);
  for (const [name, usual] of Object.entries(SHORT)) if (state[name] !== usual) parts.set(name, state[name]);
  return parts.toString();
}

/** The state in a hash; whatever does not fit the data is left out. */
export function fromHash(text, limits) {
  const parts = new URLSearchParams(text);
  const state = { ...EMPTY };
  const whole = (name, below) => {
    const value = Number(parts.get(name));
    return parts.has(name) && Number.isInteger(value) && value >= 0 && value < below ? value : null;
  };
  state.pair = whole("pair", limits.pairs) ?? 0;
  state.swap = parts.get("swap") === "1";
  state.finding = whole("finding", 1000) ?? -1;
  state.inference = whole("inference", 1000) ?? -1;
  state.what = Object.fromEntries(parts.getAll("what").map(text => text.split("~")).filter(([, factor]) => Number(factor) >= 1)
    .map(([category, factor]) => [category, Number(factor)]));
  state.depth = whole("depth", 100) ?? 0;
  if (parts.has("module")) state.module = parts.get("module");
  state.ops = (parts.get("ops") ?? "").split(".").filter(Boolean).map(Number)
    .filter(op => Number.isInteger(op) && op >= 0 && op < limits.operators);
  const time = (parts.get("time") ?? "").split("~").map(Number);
  if (time.length === 3 && time.every(Number.isFinite) && time[0] in [0, 1]) state.time = time;
  const factor = Number(parts.get("factor") ?? 1);
  state.factor = factor >= 1 ? factor : 1;
  for (const name of Object.keys(SHORT)) if (parts.has(name)) state[name] = parts.get(name);
  return state;
}

/** Holds the state; listeners run after each change, all in one frame. */
export class Store {
  constructor(state) {
    this.state = state;
    this.listeners = [];
  }

  set(change) {
    this.state = { ...this.state, ...change };
    if (!this.state.ops.length) this.state.ops = EMPTY.ops;
    for (const listener of this.listeners) listener(this.state);
  }

  clear() {
    const { pair, swap, color, view, depth, over, sort, what, inference } = this.state;
    this.set({ ...EMPTY, pair, swap, color, view, depth, over, sort, what, inference });
  }
}
