// What is chosen: the comparison, filters, the selection. It is written into the URL's hash.

import { CATEGORIES, COLORINGS } from "./color.js";
import { findingsOf } from "./model.js";

export const EMPTY = {
  pair: 0, swap: false, category: "", module: null, finding: -1, ops: [], query: "", time: null,
  color: "category", view: "icicle", depth: 0, over: "", sort: "", factor: 1, what: {}, inference: -1,
};
const SHORT = { color: EMPTY.color, view: EMPTY.view, over: "", sort: "", category: "", query: "" };
const SORTED = /^-?(label|category|a|b|bars|delta|share|run|speedup|outcome)$/;

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
export function fromHash(text, model) {
  const parts = new URLSearchParams(text);
  const state = { ...EMPTY };
  const whole = (name, below) => {
    const value = Number(parts.get(name));
    return parts.has(name) && Number.isInteger(value) && value >= 0 && value < below ? value : null;
  };
  state.pair = whole("pair", model.pairs.length) ?? 0;
  state.swap = parts.get("swap") === "1";
  const sides = model.sides(state), { program } = sides, factorOf = text => Number(text) >= 1 ? Number(text) : 1;
  state.finding = whole("finding", findingsOf(sides).length) ?? -1;
  state.inference = whole("inference", model.inferences(state)) ?? -1;
  state.what = Object.fromEntries(parts.getAll("what").map(text => text.split("~"))
    .filter(([category]) => Object.hasOwn(CATEGORIES, category)).map(([category, factor]) => [category, factorOf(factor)]));
  state.depth = whole("depth", 100) ?? 0;
  if (program.tree.nodes.has(parts.get("module"))) state.module = parts.get("module");
  state.ops = [...new Set((parts.get("ops") ?? "").split(".").filter(Boolean).map(Number))]
    .filter(op => Number.isInteger(op) && op >= 0 && op < program.count);
  const time = (parts.get("time") ?? "").split("~").map(Number), [side, from, to] = time;
  const length = model.inference(state)[side]?.length;
  if (time.length === 3 && from >= 0 && from < to && from < length) state.time = time;
  state.factor = factorOf(parts.get("factor") ?? 1);
  const allowed = { color: Object.keys(COLORINGS), view: ["icicle", "graph"], over: ["ms", "share", "what-if"], category: program.texts.category };
  for (const name of Object.keys(SHORT)) if (allowed[name]?.includes(parts.get(name)) ?? parts.has(name)) state[name] = parts.get(name);
  if (!SORTED.test(state.sort)) state.sort = "";
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
