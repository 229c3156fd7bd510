// The operators as a graph: boxes in the frames of their delegates, edges where one reads another's output.

import dagre from "@dagrejs/dagre";
import { colorOf, inkOn } from "./color.js";
import { h, svg } from "./dom.js";
import { ms } from "./format.js";
import { widthOf } from "./pen.js";

const BOX = 34, LETTERS = 26, MOST = 260;
const LABEL = "Graph of operators. Left and right follow edges, up and down change branches, Enter selects.";

export class Graph {
  constructor(view) {
    this.view = view;
    this.picture = svg("svg", { role: "presentation" });
    this.root = h("div", { class: "graph", tabindex: 0, role: "application", "aria-label": LABEL }, this.picture);
    this.scale = 1;
    this.cursor = null;
    this.layouts = new Map();
    this.root.addEventListener("keydown", event => { if (this.#key(event)) event.preventDefault(); });
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
  }

  redraw() {
    const { sides, state } = this.view;
    const name = `${this.view.model.programs.indexOf(sides.program)}/${state.module ?? ""}`;
    if (!this.layouts.has(name)) this.layouts.set(name, arrange(sides.program, state.module ?? ""));
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
    const edges = layout.edges.map(points => svg("polyline", { points: points.map(p => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join(" "), class: "edge" }));
    const nodes = layout.nodes.map(node => {
      const box = svg("rect", { width: node.width, height: node.height, rx: 4 });
      const texts = node.lines.map((line, n) => svg("text", { x: 7, y: 14 + 13 * n }, line));
      const group = svg("g", { transform: `translate(${node.x - node.width / 2} ${node.y - node.height / 2})`, class: "node" }, box, ...texts);
      group.addEventListener("click", event => this.#choose(node, event.ctrlKey || event.metaKey || event.shiftKey));
      group.addEventListener("pointermove", event => this.view.tip.show(this.#describe(node), event));
      group.addEventListener("pointerleave", () => this.view.tip.hide());
      this.boxes.set(node, { box, texts, group });
      return group;
    });
    const marker = svg("marker", { id: "wb-arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      svg("path", { d: "M0,0 L8,4 L0,8 z", fill: theme.soft }));
    this.picture.replaceChildren(svg("defs", null, marker), ...frames, ...edges, ...nodes);
    const room = this.root.clientHeight || 320;
    this.scale = Math.min(1, Math.max(0.55, (room - 16) / layout.height));
    this.#size();
  }

  #paint() {
    const { theme, state, left, filtered, sides } = this.view;
    const chosen = new Set(state.ops);
    for (const [node, { box, texts, group }] of this.boxes) {
      const dim = filtered && !node.operators.some(i => left[i]);
      const color = dim ? theme.faded : node.module === undefined ? colorOf(state.color, this.view.datum(node.operators[0]), theme)
        : theme.neutral;
      box.setAttribute("fill", color);
      const selected = node.operators.some(i => chosen.has(i));
      group.classList.toggle("chosen", selected);
      group.classList.toggle("cursor", node === this.cursor);
      for (const text of texts) text.setAttribute("fill", dim ? theme.soft : inkOn(color));
      if (selected && state.ops.length === 1 && this.shown !== state.ops[0]) this.#reveal(node);
    }
    this.shown = state.ops.length === 1 ? state.ops[0] : null;
    this.root.dataset.sides = sides.a ? "2" : "1";
  }

  #reveal(node) {
    const { root, scale } = this;
    root.scrollLeft = node.x * scale - root.clientWidth / 2;
    root.scrollTop = node.y * scale - root.clientHeight / 2;
  }

  #describe(node) {
    if (node.module === undefined) return this.view.describe(node.operators[0]);
    const { b } = this.view.sides.tree.get(this.view.sides.program.tree.nodes.get(node.module));
    return [node.module, `${node.operators.length} operators, mean ${ms(b)}`];
  }

  #choose(node, more) {
    this.cursor = node;
    if (node.module !== undefined) this.view.store.set({ module: node.module, ops: [] });
    else this.view.select(node.operators[0], more);
  }

  #key({ key }) {
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
      `.frame-name{fill:${theme.soft}}.chosen rect{stroke:${theme.ink};stroke-width:2}`;
    copy.prepend(svg("style", null, style));
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", this.layout.width);
    copy.setAttribute("height", this.layout.height);
    return `${copy.outerHTML}\n`;
  }
}

/** What to draw of a module: its operators, or, if there are too many, the modules in it. */
function choose(program, path) {
  const focus = program.tree.nodes.get(path) ?? program.tree.root;
  const linked = new Set(program.edges.flat());
  const groups = new Map();  // the node of each operator
  const nodes = [];
  const add = (operators, module, lines) => {
    const shown = operators.filter(i => linked.has(i));
    if (!shown.length) return;
    const node = { operators: shown, module, lines, before: [], after: [], number: nodes.length };
    nodes.push(node);
    for (const i of shown) groups.set(i, node);
  };
  const single = i => {
    const [module, name] = program.labels[i].includes(" · ") ? program.labels[i].split(" · ") : ["", program.labels[i]];
    add([i], undefined, [name, module.slice(path ? path.length + 1 : 0)].filter(Boolean));
  };
  const open = node => node.children.forEach(child => {
    if (child.operator !== undefined) single(child.operator);
    else if (room > 0 && child.operators.length <= room / 4) { room -= child.operators.length; open(child); }
    else add(child.operators, child.path, [child.path.slice(path ? path.length + 1 : 0), `${child.operators.length} operators`]);
  });
  let room = MOST - focus.children.length;
  if (focus.operators.filter(i => linked.has(i)).length <= MOST) focus.operators.forEach(single);
  else open(focus);
  return { nodes, groups };
}

const shorten = text => text.length > LETTERS ? `…${text.slice(1 - LETTERS)}` : text;

function arrange(program, path) {
  const { nodes, groups } = choose(program, path);
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: "LR", nodesep: 10, ranksep: 26, marginx: 12, marginy: 16, ranker: "longest-path" });
  graph.setDefaultEdgeLabel(() => ({}));
  const kinds = program.texts.kind;
  const frames = new Map();
  for (const node of nodes) {
    node.lines = node.lines.map(shorten);
    graph.setNode(String(node.number), { width: Math.ceil(Math.max(...node.lines.map(widthOf))) + 16, height: node.lines.length > 1 ? BOX : 22 });
    const [first] = node.operators;
    // Operators of one delegate share its instruction.
    if (node.module === undefined && kinds[first] === "delegated") {
      const number = program.instructions[first];
      if (!frames.has(number)) frames.set(number, []);
      frames.get(number).push(node);
    }
  }
  for (const [number, inside] of frames) {
    graph.setNode(`frame ${number}`, {});
    for (const node of inside) graph.setParent(String(node.number), `frame ${number}`);
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
  const { width, height } = graph.graph();
  return {
    nodes, width: Math.max(width, 1), height: Math.max(height, 1), edges: graph.edges().map(edge => graph.edge(edge).points),
    frames: [...frames.keys()].map(number => {
      const box = graph.node(`frame ${number}`);
      return { x: box.x - box.width / 2, y: box.y - box.height / 2, width: box.width, height: box.height, name: `delegate, instruction ${number}` };
    }),
  };
}
