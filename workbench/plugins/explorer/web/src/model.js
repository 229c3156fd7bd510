// The data by operator, for the chosen pair; and which operators the filters leave.
// What Python computed is looked up here; only sums and ratios of a selection are computed.

const decode = coded => coded ? coded.codes.map(code => code < 0 ? "" : coded.values[code]) : null;
const OPERATORS = ["delegated", "portable"];
const FLIPPED = { faster: "slower", slower: "faster" };
const invert = values => values.map(value => value ? 1 / value : null);

export class Model {
  constructor(data) {
    this.data = data;
    this.head = data.head;
    this.programs = data.programs.map(program => {
      const texts = Object.fromEntries(Object.entries(program.texts).map(([name, coded]) => [name, decode(coded)]));
      const blank = program.keys.map(() => "");
      const tree = growTree(program, texts.module, data.measurements.find(m => data.programs[m.program] === program).mean_ms);
      // Rows of calls and of the runtime are time, but no operators.
      const own = program.keys.map((_, i) => OPERATORS.includes(texts.kind[i]));
      return { ...program, texts: new Proxy(texts, { get: (known, name) => known[name] ?? blank }), tree, own, count: program.keys.length, operators: own.filter(Boolean).length };
    });
    this.measurements = data.measurements.map(m => ({
      memory: [], start: [], ...m, bound: decode(m.bound), total: m.mean_ms.reduce((sum, x) => sum + (x ?? 0), 0),
      functions: m.functions && { function: decode(m.functions.function), code: decode(m.functions.code) },
    }));
    const alone = data.measurements.map((m, number) => ({ baseline: null, candidate: number, label: m.label }));
    this.pairs = data.comparisons.length ? data.comparisons : alone;
    this.cached = new Map();
  }

  /** One comparison, A the baseline and B the candidate, or the other way round. */
  sides(state) {
    const name = `${state.pair} ${state.swap}`;
    if (!this.cached.has(name)) this.cached.set(name, this.#arrange(this.pairs[state.pair], state.swap));
    return this.cached.get(name);
  }

  #arrange(pair, swap) {
    const both = [pair.baseline === null ? null : this.measurements[pair.baseline], this.measurements[pair.candidate]];
    const [other, b] = swap && both[0] ? both.toReversed() : both;
    const program = this.programs[b.program];
    const none = program.keys.map(() => null);
    // Rows are the operators of B; `twins` are those of A, where A is another program.
    const twins = pair.partners && (swap ? invertRows(pair.partners, program.count) : pair.partners);
    const a = twins ? reindex(other, twins) : other;
    const turned = column => twins && swap ? pick(column, twins) : column;
    const judged = a && turn(Object.fromEntries(Object.entries(pair.operators).map(([name, column]) => [name, turned(column)])), swap);
    const outcomes = judged ? turned(decode(pair.outcomes)).map(o => (swap ? FLIPPED[o] ?? o : o) ?? "") : none.map(() => "");
    const latency = a ? turnRow(pair.latency, swap) : null;
    const timed = judged && !this.head.emulated;  // an emulator's times do not show speed
    return {
      a, b, program, pair, latency, paired: Boolean(judged), outcomes, twins,
      // Why an interval without 1 shows nothing.
      reasons: judged ? turned(decode(pair.reasons)) : none,
      rows: twins && invertRows(twins, this.programs[other.program].count),
      outcome: a ? (swap ? FLIPPED[pair.outcome] ?? pair.outcome : pair.outcome) : "",
      categories: a ? pair.categories.map(row => turnRow(row, swap)) : null,
      msA: judged ? judged.baseline_ms : none, msB: judged ? judged.candidate_ms : b.mean_ms,
      speedup: timed ? judged.speedup : none, low: timed ? judged.low : none, high: timed ? judged.high : none,
      detectable: timed ? judged.detectable : none, changes: pair.changes ? turned(decode(pair.changes)) : none,
      meanB: b.mean_ms,
      most: Math.max(...b.mean_ms.filter(value => value !== null), 1e-9),
      tree: growTimes(program, b.mean_ms, a?.mean_ms ?? none),
    };
  }

  /** Which operators the filters leave: one byte for each. */
  filter(state) {
    const sides = this.sides(state);
    const { program } = sides;
    const { category, module } = program.texts;
    const left = new Uint8Array(program.count).fill(1);
    const keep = test => { for (let i = 0; i < left.length; i++) if (left[i] && !test(i)) left[i] = 0; };
    if (state.category) keep(i => category[i] === state.category);
    if (state.module) keep(i => module[i] === state.module || module[i].startsWith(`${state.module}.`));
    const finding = findingsOf(sides)[state.finding];
    if (finding) { const wanted = new Set(finding.operators); keep(i => wanted.has(i)); }
    if (state.query) {
      const wanted = state.query.toLowerCase();
      keep(i => program.labels[i].toLowerCase().includes(wanted));
    }
    if (state.time) {
      const seen = this.operatorsDuring(state);
      keep(i => seen.has(i));
    }
    return left;
  }

  filtered(state) {
    return Boolean(state.category || state.module || state.finding >= 0 || state.query || state.time);
  }

  /** The operators that ran on a side in the brushed part of the inference shown. */
  operatorsDuring(state) {
    const [side, from, to] = state.time;
    const spans = this.inference(state)[side];
    const found = new Set();
    if (spans) for (let i = 0; i < spans.count; i++) {
      if (spans.rows[i] >= 0 && !spans.inner[i] && spans.start[i] < to && spans.end[i] > from) found.add(spans.rows[i]);
    }
    return found;
  }

  /** The sides that are shown. */
  traced(state) {
    const { a, b } = this.sides(state);
    return [a, b].filter(Boolean);
  }

  /** How many pairs of inferences there are. */
  inferences(state) {
    return Math.min(...this.traced(state).map(m => m.trace.inferences.length));
  }

  /** The pair that is shown first: both nearest to the median of their sides. */
  typical(state) {
    const total = Array.from({ length: this.inferences(state) }, () => 0);
    for (const m of this.traced(state)) {
      const lengths = m.trace.inferences.map(each => each.durations[0]);
      const middle = lengths.toSorted((x, y) => x - y)[lengths.length >> 1];
      total.forEach((_, i) => { total[i] += Math.abs(Math.log((lengths[i] || 1) / (middle || 1))); });
    }
    return total.indexOf(Math.min(...total));
  }

  /** The spans of the shown inference of A and B; null where a side has none. */
  inference(state) {
    const number = state.inference >= 0 && state.inference < this.inferences(state) ? state.inference : this.typical(state);
    const { a, b } = this.sides(state);
    return [a, b].map((m, side) => m ? this.#spans(state, m, side, number) : null);
  }

  /** The spans of every inference of a side, none where it has no trace. */
  listSpans(state, side, count) {
    const { a, b } = this.sides(state), m = side ? b : a;
    return m ? Array.from({ length: count }, (_, number) => this.#spans(state, m, side, number)) : [];
  }

  /** Spans of an inference; `rows` are the operators of B that they belong to, -1 for none. */
  #spans(state, m, side, number) {
    const name = `${state.pair} ${state.swap} ${side} ${number}`;
    if (!this.cached.has(name)) {
      const spans = layOut(m.trace, number), { rows } = this.sides(state);
      this.cached.set(name, { ...spans, rows: side || !rows ? spans.operators : spans.operators.map(i => rows[i] ?? -1) });
    }
    return this.cached.get(name);
  }

  /** Mean time of some operators on a side, with the ends of a 95 % interval over the restarts. */
  sum(m, operators) {
    const add = column => operators.reduce((total, i) => total + (column[i] ?? 0), 0);
    return { mean: add(m.mean_ms), ...interval(m, m.restarts_ms.map(add)) };
  }

  /** E2E if operators were as many times as fast as `factors` say. */
  whatIf(m, factors) {
    const add = column => column.reduce((total, value) => total + (value ?? 0), 0);
    const saved = column => [...factors].reduce((total, [i, factor]) => total + (column[i] ?? 0) * (1 - 1 / factor), 0);
    const before = add(m.mean_ms), after = before - saved(m.mean_ms);
    const logs = m.restarts_ms.map(column => Math.log(add(column) / (add(column) - saved(column))));
    const { half } = interval(m, logs);
    const gain = Math.log(before / after);
    const ends = half === null ? { low: null, high: null } : { low: Math.exp(gain - half), high: Math.exp(gain + half) };
    return { before, after, speedup: before / after, ...ends };
  }
}

function interval(m, blocks) {
  if (blocks.length < 2 || m.quantile === null) return { low: null, high: null, half: null };
  const mean = blocks.reduce((sum, x) => sum + x, 0) / blocks.length;
  const variance = blocks.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (blocks.length - 1);
  const half = m.quantile * Math.sqrt(variance / blocks.length);
  return { low: Math.max(0, mean - half), high: mean + half, half };
}

const pick = (column, rows) => rows.map(i => i < 0 ? null : column[i]);

/** Where every one of `count` rows stands in a list of rows; -1 for nowhere. */
function invertRows(rows, count) {
  const found = Array.from({ length: count }, () => -1);
  rows.forEach((row, i) => { if (row >= 0) found[row] = i; });
  return found;
}

/** A measurement whose columns follow the operators of another program. */
function reindex(m, rows) {
  const all = columns => columns && Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, pick(column, rows)]));
  return { ...m, mean_ms: pick(m.mean_ms, rows), std_ms: pick(m.std_ms, rows), restarts_ms: m.restarts_ms.map(column => pick(column, rows)),
    roofline: all(m.roofline), bound: m.bound && pick(m.bound, rows), functions: all(m.functions), samples: all(m.samples) };
}

/** The findings about the candidate; those of another program name other operators. */
export const findingsOf = ({ a, b, twins }) => b.findings.length || !a || twins ? b.findings : a.findings;

const turn = (columns, swap) => swap ? {
  ...columns, baseline_ms: columns.candidate_ms, candidate_ms: columns.baseline_ms,
  speedup: invert(columns.speedup), low: invert(columns.high), high: invert(columns.low),
} : columns;

const turnRow = (row, swap) => swap ? {
  ...row, baseline_ms: row.candidate_ms, candidate_ms: row.baseline_ms,
  speedup: row.speedup && 1 / row.speedup, low: row.high && 1 / row.high, high: row.low && 1 / row.low,
  outcome: FLIPPED[row.outcome] ?? row.outcome,
} : row;

/** The modules as a tree in order of execution, each where its slowest operator ran; operators are its leaves. */
function growTree(program, modules, times) {
  const root = { path: "", name: "model", children: [], parent: null, depth: 0, first: 0, operators: [] };
  const nodes = new Map([["", root]]);
  const known = new Map(program.modules.map((path, i) => [path, i]));
  const at = path => {
    if (nodes.has(path)) return nodes.get(path);
    const cut = path.lastIndexOf(".");
    const parent = at(cut < 0 ? "" : path.slice(0, cut));
    const node = { path, name: path.slice(cut + 1), children: [], parent, depth: parent.depth + 1, operators: [] };
    nodes.set(path, node);
    parent.children.push(node);
    return node;
  };
  program.keys.forEach((_, i) => {
    const node = at(modules?.[i] ?? "");
    node.children.push({ operator: i, name: program.labels[i].split(" · ").at(-1), parent: node, depth: node.depth + 1 });
    for (let above = node; above; above = above.parent) above.operators.push(i);
  });
  for (const node of nodes.values()) {
    node.layer = known.get(node.path) ?? -1;
    node.class = node.layer >= 0 ? program.classes[node.layer] : "";
  }
  root.name = root.class || "model";
  const slowest = node => node.operator ?? node.operators.reduce((best, i) => (times[i] ?? 0) > (times[best] ?? 0) ? i : best);
  for (const node of nodes.values()) {
    const places = new Map(node.children.map(child => [child, slowest(child)]));
    node.children.sort((p, q) => places.get(p) - places.get(q));
  }
  return { root, nodes };
}

/** Mean time of every node of the tree on both sides: the sum of its operators. */
function growTimes(program, meanB, meanA) {
  const times = new Map();
  const visit = node => {
    const found = node.operator !== undefined
      ? { a: meanA[node.operator] ?? 0, b: meanB[node.operator] ?? 0 }
      : node.children.map(visit).reduce((sum, each) => ({ a: sum.a + each.a, b: sum.b + each.b }), { a: 0, b: 0 });
    times.set(node, found);
    return found;
  };
  visit(program.tree.root);
  return times;
}

/** Starts and ends of the spans of an inference, in ms. */
function layOut(trace, number) {
  const { run, shape, gaps, durations } = trace.inferences[number];
  const [operators, depths] = trace.shapes[shape];
  const count = operators.length;
  const start = new Float64Array(count), end = new Float64Array(count), inner = new Uint8Array(count);
  let at = 0, deepest = 0;
  const open = [];
  for (let i = 0; i < count; i++) {
    at += gaps[i];
    start[i] = at / 1e4;
    end[i] = (at + durations[i]) / 1e4;
    open[depths[i]] = i;
    // A span with others in it is a call; its time belongs to what it calls.
    if (depths[i] > 0 && open[depths[i] - 1] !== undefined) inner[open[depths[i] - 1]] = 1;
    deepest = Math.max(deepest, depths[i]);
  }
  return { run, count, operators, depths, start, end, inner, deepest, length: end[0] };
}
