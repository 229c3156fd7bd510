// The operators as a graph: boxes in the frames of their delegates, edges where one reads another's output.

import dagre from "@dagrejs/dagre";
import { colorOf, inkOn } from "./color.js";
import { h, keyOf, svg } from "./dom.js";
import { ms, share } from "./format.js";
import { Minimap } from "./minimap.js";
import { widthOf } from "./pen.js";

export const FOLDED = 98;  // the detail that has repeated classes in one box
const BOX = 34, STRIP = 7, LETTERS = 26, MOST = 120, GAP = 12;
const LABEL = "Graph of operators. Left and right follow edges, up and down change branches, Enter selects.";

export class Graph {
  constructor(view) {
    this.view = view;
    this.picture = svg("svg", { role: "presentation" });
    this.root = h("div", { class: "graph", tabindex: 0, role: "application", "aria-label": LABEL }, this.picture);
    this.map = new Minimap(this.root);
    this.scale = 1;
    this.cursor = null;
    this.root.addEventListener("pointermove", event => {
      if (event.buttons === 1) this.root.scrollBy(-event.movementX, -event.movementY);
    });
    this.layouts = new Map();
    this.root.addEventListener("keydown", event => { if (this.#key(keyOf(event))) event.preventDefault(); });
    this.root.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 300));
    }, { passive: false });
  }

  get possible() { return this.view.sides.program.edges.length > 0; }

  zoom(factor) {
    this.scale = Math.min(2, Math.max(0.05, this.scale * factor));
    this.#size();
  }

  #size() {
    if (!this.layout) return;
    this.picture.setAttribute("width", this.layout.width * this.scale);
    this.picture.setAttribute("height", this.layout.height * this.scale);
    this.map.follow();
  }

  redraw() {
    const { sides, state, model } = this.view;
    if (this.size !== this.view.size) Object.assign(this, { size: this.view.size, width: this.root.clientWidth || 800 });
    const width = Math.max(480, 100 * Math.floor(this.width / 100));
    const name = `${model.programs.indexOf(sides.program)}/${state.module ?? ""}/${state.depth}/${width}`;
    if (!this.layouts.has(name)) this.layouts.set(name, arrange(sides.program, state.module ?? "", state.depth, width));
    const layout = this.layouts.get(name);
    if (layout !== this.layout) { this.layout = layout; this.#build(); }
    this.#paint();
  }

  /** All elements of a layout; `#paint` gives them their colours. */
  #build() {
    const { layout } = this;
    const { theme } = this.view;
    this.boxes = new Map();
    this.picture.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
    const frames = layout.frames.map(frame => svg("g", null,
      svg("rect", { x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: 6, class: "frame" }),
      svg("text", { x: frame.x + 6, y: frame.y + 12, class: "frame-name" }, frame.name)));
    const edges = layout.edges.map(({ points, end }) => svg("polyline", {
      points: points.map(p => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join(" "), class: end ? "edge" : "edge cut",
    }));
    const nodes = layout.nodes.map(node => {
      const box = svg("rect", { width: node.width, height: node.height, rx: 4 });
      const strip = svg("g");
      const texts = node.lines.map((line, n) => svg("text", { x: 7, y: 14 + 13 * n }, line));
      const group = svg("g", { transform: `translate(${node.left - node.width / 2} ${node.top - node.height / 2})`, class: kind(node) }, box, strip, ...texts);
      group.addEventListener("click", event => this.#choose(node, event.ctrlKey || event.metaKey || event.shiftKey));
      group.addEventListener("pointermove", event => this.view.tip.show(this.#describe(node), event));
      group.addEventListener("pointerleave", () => this.view.tip.hide());
      this.boxes.set(node, { box, strip, texts, group });
      return group;
    });
    const marker = svg("marker", { id: "wb-arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      svg("path", { d: "M0,0 L8,4 L0,8 z", fill: theme.soft }));
    this.picture.replaceChildren(svg("defs", null, marker), ...frames, ...edges, ...nodes);
    this.scale = Math.min(1, Math.max(0.5, this.width / layout.width));
    this.#size();
    this.painted = [];
    this.marked = new Map();
  }

  /** Colours when they changed; otherwise only marks of the selection and of the cursor. */
  #paint() {
    const { theme, state, left, sides } = this.view;
    const reasons = [theme, left, sides, state.color];
    if (reasons.some((reason, n) => reason !== this.painted[n])) this.#color();
    this.painted = reasons;
    const marks = new Map(state.ops.map(i => [this.layout.boxOf.get(i), "chosen"]));
    if (this.cursor) marks.set(this.cursor, `${marks.get(this.cursor) ?? ""} cursor`);
    for (const node of new Set([...this.marked.keys(), ...marks.keys()])) {
      if (this.marked.get(node) !== marks.get(node)) this.boxes.get(node)?.group.setAttribute("class", `${kind(node)} ${marks.get(node) ?? ""}`);
    }
    this.marked = marks;
    const [only = null] = state.ops.length === 1 ? state.ops : [];
    const node = this.layout.boxOf.get(only);
    if (node && this.shown !== only) this.#reveal(node);
    this.shown = only;
  }

  #color() {
    const { theme, state, left, filtered, sides } = this.view;
    const colorFor = i => filtered && !left[i] ? theme.faded : colorOf(state.color, this.view.datum(i), theme);
    for (const [node, { box, strip, texts }] of this.boxes) {
      const several = node.operators.length > 1, dim = filtered && !node.operators.some(i => left[i]);
      const color = !several ? colorFor(node.operators[0]) : dim ? theme.faded : theme.neutral;
      box.setAttribute("fill", color);
      if (several) strip.replaceChildren(...this.#parts(node, colorFor));
      for (const text of texts) text.setAttribute("fill", dim ? theme.soft : inkOn(color));
    }
    const { width, height } = this.layout;
    this.map.draw([...this.boxes].map(([node, { box }]) => ({
      x: node.left - node.width / 2, y: node.top - node.height / 2, w: node.width, t: node.height, fill: box.getAttribute("fill") })), width, height);
    this.root.dataset.sides = sides.a ? "2" : "1";
  }

  /** The colours of a module's operators, each as wide as their time. */
  #parts(node, colorFor) {
    const times = new Map();
    for (const i of node.operators) {
      const color = colorFor(i);
      times.set(color, (times.get(color) ?? 0) + (this.view.sides.meanB[i] ?? 0));
    }
    const total = [...times.values()].reduce((sum, x) => sum + x, 0) || 1;
    let x = 0;
    return [...times].sort((p, q) => q[1] - p[1]).map(([fill, time]) => {
      const width = node.width * time / total;
      x += width;
      return svg("rect", { x: x - width, y: node.height - STRIP, width, height: STRIP, fill });
    });
  }

  #reveal(node) {
    const { root, scale } = this;
    root.scrollLeft = node.left * scale - root.clientWidth / 2;
    root.scrollTop = node.top * scale - root.clientHeight / 2;
  }

  #describe(node) {
    if (node.operators.length === 1) return this.view.describe(node.operators[0]);
    const { b } = this.view.sides, { mean } = this.view.model.sum(b, node.operators);
    return [node.lines[0], node.outside ? "outside of delegates" : "", `${node.operators.length} operators, mean ${ms(mean)}, ${share(mean / b.total)} of the latency`];
  }

  #choose(node, more) {
    this.cursor = node;
    if (node.module !== undefined) this.view.store.set({ module: node.module, ops: [] });
    else if (node.operators.length > 1) this.view.store.set({ ops: node.operators });
    else this.view.select(node.operators[0], more);
  }

  #key(key) {
    if (key === "+" || key === "=") { this.zoom(1.25); return true; }
    if (key === "-") { this.zoom(0.8); return true; }
    const { nodes } = this.layout;
    if (key === "Enter" || key === " ") { if (this.cursor) this.#choose(this.cursor, key === " "); return true; }
    const at = this.cursor && nodes.includes(this.cursor) ? this.cursor : null;
    const near = (list) => list.toSorted((p, q) => Math.abs(p.y - at.y) - Math.abs(q.y - at.y))[0];
    const beside = down => nodes.filter(n => Math.abs(n.x - at.x) < 60 && (down ? n.y > at.y : n.y < at.y));
    const moves = { ArrowRight: () => near(at.after), ArrowLeft: () => near(at.before),
      ArrowDown: () => near(beside(true)), ArrowUp: () => near(beside(false)) };
    if (!moves[key]) return false;
    this.cursor = at ? moves[key]() ?? at : nodes[0];
    this.#reveal(this.cursor);
    this.#paint();
    this.view.say(this.#describe(this.cursor).join(", "));
    return true;
  }

  toSVG() {
    const copy = this.picture.cloneNode(true);
    const { theme } = this.view;
    const style = `.frame{fill:none;stroke:${theme.line}}.edge{fill:none;stroke:${theme.soft}}text{font:11px system-ui,sans-serif}` +
      `.frame-name{fill:${theme.soft}}.cut{marker-end:none}.outside rect{stroke:${theme.ink};stroke-dasharray:3 2}.chosen rect{stroke:${theme.ink};stroke-width:2}`;
    copy.prepend(svg("style", null, style));
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    const { width, height } = this.layout;
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
    return `${copy.outerHTML}\n`;
  }
}

const kind = node => node.outside ? "node outside" : "node";

/** The boxes of a module: its operators, or the modules so many levels below it (0: as many as are readable). */
function choose(program, path, depth) {
  const linked = new Set(program.edges.flat());
  const inside = (program.tree.nodes.get(path) ?? program.tree.root).operators.filter(i => linked.has(i));
  const base = path ? path.split(".").length : 0;
  const parts = new Map(inside.map(i => [i, (program.texts.module[i] || "").split(".").filter(Boolean)]));
  const deepest = Math.max(...[...parts.values()].map(each => each.length - base), 0);
  const group = level => {
    const groups = new Map();
    for (const i of inside) {
      const own = parts.get(i), name = level > deepest || own.length < base + level ? `#${i}` : own.slice(0, base + level).join(".");
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(i);
    }
    return groups;
  };
  const folded = depth === FOLDED ? foldClasses(program.tree.nodes.get(path) ?? program.tree.root, linked) : null;
  const automatic = !depth || folded?.size > MOST;
  let level = automatic || folded ? deepest + 1 : depth;
  let groups = automatic ? group(level) : folded ?? group(level);
  while (automatic && groups.size > MOST && level > 1) groups = group(--level);
  if (groups.size > 2 * MOST) {  // no modules, or too many: stretches of the execution
    const size = Math.ceil(inside.length / MOST);
    groups = new Map(Array.from({ length: Math.ceil(inside.length / size) }, (_, n) => [`#${n}`, inside.slice(n * size, (n + 1) * size)]));
  }
  const shorter = name => name.slice(path ? path.length + 1 : 0);
  return [...groups].map(([name, operators], number) => {
    const one = operators.length === 1, label = program.labels[operators[0]], cut = label.lastIndexOf(" · ");
    const several = name.startsWith("#") ? label : /^\d+× /.test(name) ? name.split("\n")[0] : shorter(name);
    const lines = one ? [cut < 0 ? label : label.slice(cut + 3), cut < 0 ? "" : shorter(label.slice(0, cut))] : [several, `${operators.length} operators`];
    return { operators, module: one || several !== shorter(name) ? undefined : name, lines: lines.filter(Boolean).map(shorten), before: [], after: [], number };
  });
}

/** The boxes of a module, where neighbours of one class and size are one; others open. */
function foldClasses(module, linked) {
  const groups = new Map(), like = (p, q) => q && p.class && p.class === q.class && p.operators.length === q.operators.length;
  const visit = ({ children }) => {
    for (let n = 0; n < children.length;) {
      const child = children[n];
      let end = n + 1;
      while (like(child, children[end])) end++;
      const same = children.slice(n, end), operators = same.flatMap(each => each.operators ?? [each.operator]).filter(i => linked.has(i));
      if (same.length > 1 && operators.length) groups.set(`${same.length}× ${child.class}\n${child.path}`, operators);
      else if (child.children) visit(child);
      else if (operators.length) groups.set(`#${child.operator}`, operators);
      n = end;
    }
  };
  visit(module);
  return groups;
}

const shorten = text => text.length > LETTERS ? `…${text.slice(1 - LETTERS)}` : text;

function arrange(program, path, depth, width) {
  const nodes = choose(program, path, depth);
  const groups = new Map(nodes.flatMap(node => node.operators.map(i => [i, node])));
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 10, ranksep: 26, marginx: 12, marginy: 16, ranker: "longest-path" });
  graph.setDefaultEdgeLabel(() => ({}));
  const frames = new Map();
  for (const node of nodes) {
    const height = (node.lines.length > 1 ? BOX : 22) + (node.operators.length > 1 ? STRIP : 0);
    graph.setNode(String(node.number), { width: Math.ceil(Math.max(...node.lines.map(widthOf))) + 16, height });
    // Operators of one delegate share its instruction.
    const calls = new Set(node.operators.map(i => program.texts.kind[i] === "delegated" ? program.instructions[i] : -1));
    const [call] = calls;
    node.outside = calls.has(-1);
    if (calls.size > 1 || call < 0) continue;
    if (!frames.has(call)) frames.set(call, []);
    frames.get(call).push(node);
  }
  for (const [from, to] of program.edges) {
    const [p, q] = [groups.get(from), groups.get(to)];
    if (!p || !q || p === q || p.after.includes(q)) continue;
    p.after.push(q);
    q.before.push(p);
    graph.setEdge(String(p.number), String(q.number));
  }
  dagre.layout(graph);
  for (const node of nodes) Object.assign(node, graph.node(String(node.number)));
  const edges = graph.edges().map(edge => graph.edge(edge).points);
  return { ...fold(nodes, edges, frames, width), boxOf: groups };
}

/** A long layout in rows, as words in lines: what ends at the right edge goes on at the left. */
function fold(nodes, edges, delegates, width) {
  const ranks = new Map();
  for (const { x, width: w } of nodes) {
    const rank = ranks.get(x) ?? { left: x, right: x };
    ranks.set(x, { left: Math.min(rank.left, x - w / 2), right: Math.max(rank.right, x + w / 2) });
  }
  const columns = [...ranks.values()].sort((p, q) => p.left - q.left);
  const rows = [];
  for (const { left, right } of columns) {
    const row = rows.at(-1);
    if (row && right - row.from <= width - 2 * GAP) row.to = Math.max(row.to, right);
    else {
      if (row) row.to = (row.to + left) / 2;
      rows.push({ from: row ? row.to : left - GAP, to: right });
    }
  }
  if (rows.length) rows.at(-1).to += GAP;
  const within = ({ from, to }, x) => x >= from && x < to;
  const found = { nodes, edges: [], frames: [], width: Math.max(...rows.map(row => row.to - row.from), 1), height: GAP };
  for (const row of rows) {
    const inside = nodes.filter(node => within(row, node.x));
    const lines = edges.map(points => ({ points: clip(points, row), end: within(row, points.at(-1).x) })).filter(line => line.points.length > 1);
    const frames = [...delegates].map(([call, all]) => [call, all.filter(node => within(row, node.x))]).filter(([, held]) => held.length);
    const tops = [...inside.map(node => node.y - node.height / 2), ...lines.flatMap(line => line.points.map(p => p.y))];
    const bottoms = [...inside.map(node => node.y + node.height / 2), ...lines.flatMap(line => line.points.map(p => p.y))];
    const [high, low] = [Math.min(...tops), Math.max(...bottoms)], head = frames.length ? 20 : 4;
    const shift = found.height + head - high;
    for (const node of inside) Object.assign(node, { left: node.x - row.from, top: node.y + shift });
    for (const { points, end } of lines) found.edges.push({ end, points: points.map(p => ({ x: p.x - row.from, y: p.y + shift })) });
    for (const [call, held] of frames) {
      const left = Math.min(...held.map(node => node.left - node.width / 2)) - 6, right = Math.max(...held.map(node => node.left + node.width / 2)) + 6;
      const top = Math.min(...held.map(node => node.top - node.height / 2)) - 16, bottom = Math.max(...held.map(node => node.top + node.height / 2)) + 6;
      found.frames.push({ x: left, y: top, width: right - left, height: bottom - top, name: `delegate, instruction ${call}` });
    }
    found.height += low - high + head + 2 * GAP;
  }
  return found;
}

/** The part of a line between two edges. */
function clip(line, { from, to }) {
  const points = line[0].x <= line.at(-1).x ? line : line.toReversed(), part = [];
  for (let i = 1; i < points.length; i++) {
    const [p, q] = [points[i - 1], points[i]];
    if (q.x < from || p.x > to) continue;
    const at = x => ({ x, y: q.x === p.x ? q.y : p.y + (q.y - p.y) * (x - p.x) / (q.x - p.x) });
    if (!part.length) part.push(at(Math.max(p.x, from)));
    part.push(at(Math.min(q.x, to)));
  }
  return part;
}
