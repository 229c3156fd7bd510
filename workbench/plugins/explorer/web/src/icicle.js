// The model as an icicle: modules above what they contain, in order of execution, as wide as their time.

import { Chart } from "./chart.js";
import { colorOf, inkOn } from "./color.js";
import { ms, share } from "./format.js";
import { widthOf } from "./pen.js";

const ROW = 22;
const CONTAINERS = new Set(["Sequential", "ModuleList", "ModuleDict", "block", "layers", "blocks"]);
const LABEL = "Model as an icicle. Arrow keys move, Enter selects, Backspace goes up.";

export class Icicle extends Chart {
  constructor(view) {
    super(view, LABEL);
    this.cells = [];
    this.cursor = null;
    this.canvas.addEventListener("click", event => {
      const found = this.hit(event.offsetX, event.offsetY);
      if (found) { this.cursor = found.node; this.choose(found.node, event.ctrlKey || event.metaKey || event.shiftKey); }
    });
  }

  /** Modules around the focus over the full width, then everything in it. */
  measure() {
    const { sides, state } = this.view;
    const { nodes, root } = sides.program.tree;
    const focus = nodes.get(state.module ?? "") ?? root;
    const above = [];
    for (let node = focus.parent; node; node = node.parent) above.unshift(node);
    this.cells = above.map((node, row) => ({ node, x: 0, w: this.width, row }));
    const total = sides.tree.get(focus).b;
    const place = (outer, x, row) => {
      const w = this.width * (total ? sides.tree.get(outer).b / total : 0);
      if (w < 0.25) return w;
      // Of modules that contain only one another, one cell shows the innermost.
      let node = outer;
      while (row > above.length && node.children?.length === 1 && node.children[0].children) [node] = node.children;
      this.cells.push({ node, x, w, row });
      let at = x;
      for (const child of node.children ?? []) at += place(child, at, row + 1);
      return w;
    };
    place(focus, 0, above.length);
    return ROW * (1 + Math.max(...this.cells.map(cell => cell.row)));
  }

  datum(node) {
    const { sides } = this.view;
    if (node.operator !== undefined) return this.view.datum(node.operator);
    const { a, b } = sides.tree.get(node);
    return { category: "", part: b / sides.tree.get(sides.program.tree.root).b, outcome: "" };
  }

  draw(pen) {
    const { state, theme, left, filtered, sides } = this.view;
    const chosen = new Set(state.ops);
    for (const { node, x, w, row } of this.cells) {
      const leaf = node.operator !== undefined;
      const dim = filtered && !(leaf ? left[node.operator] : node.operators.some(i => left[i]));
      const color = dim ? theme.faded : leaf ? colorOf(state.color, this.datum(node), theme)
        : row % 2 ? theme.frame : theme.neutral;
      const y = row * ROW;
      pen.rect(x, y, Math.max(w - (w > 3 ? 1 : 0), 0.5), ROW - 1, color);
      if (w > 16) {
        const text = this.label(node, w - 8);
        if (text) pen.text(text, x + 4, y + 15, dim ? theme.soft : inkOn(color));
      }
      if (leaf && chosen.has(node.operator)) pen.outline(x + 1, y + 1, Math.max(w - 3, 2), ROW - 3, theme.ink, 2);
    }
    const cursor = this.cells.find(cell => cell.node === this.cursor);
    if (cursor && document.activeElement === this.canvas) {
      pen.outline(cursor.x + 1, cursor.row * ROW + 1, Math.max(cursor.w - 3, 3), ROW - 3, theme.accent, 2);
    }
  }

  /** The longest of a few names that fits; half a name is none, nor is a bare number or a container. */
  label(node, room) {
    const tail = (node.path ?? "").split(".").slice(-2).join(".");
    const names = node.operator === undefined
      ? [node.path, tail, node.name].filter(name => name && /^[^\d.]/.test(name) && !CONTAINERS.has(name))
        .flatMap(name => [name === node.class || CONTAINERS.has(node.class) ? name : `${name} ${node.class}`, name])
        .concat(CONTAINERS.has(node.class) ? [] : [node.class])
      : [node.name, node.name.replace(/^Fully Connected /, ""), node.name.match(/(\w+) #\d+/)?.[1] ?? ""];
    return names.find(name => name && widthOf(name) <= room) ?? "";
  }

  hit(x, y) {
    const row = Math.floor(y / ROW);
    return this.cells.find(cell => cell.row === row && x >= cell.x && x < cell.x + Math.max(cell.w, 1)) ?? null;
  }

  describe({ node }) {
    const { sides } = this.view;
    if (node.operator !== undefined) return this.view.describe(node.operator);
    const { b } = sides.tree.get(node);
    const total = sides.tree.get(sides.program.tree.root).b;
    const count = node.operators.length;
    return [node.path || node.name, node.class, `mean ${ms(b)}, ${share(b / total)} of the latency`,
      `${count} operator${count === 1 ? "" : "s"}`];
  }

  choose(node, more) {
    if (node.operator !== undefined) this.view.select(node.operator, more);
    else this.view.store.set({ module: node.path === "" ? null : node.path, ops: [] });
  }

  key({ key }) {
    const shown = this.cells.find(cell => cell.node === this.cursor);
    const node = shown?.node ?? this.cells[0].node;
    const visible = list => list.find(child => this.cells.some(cell => cell.node === child));
    const siblings = node.parent?.children ?? [];
    const at = siblings.indexOf(node);
    const moves = {
      ArrowUp: () => node.parent, ArrowDown: () => visible(node.children ?? []),
      ArrowLeft: () => siblings.slice(0, Math.max(at, 0)).findLast(child => this.cells.some(c => c.node === child)),
      ArrowRight: () => visible(siblings.slice(at + 1)),
    };
    if (moves[key]) {
      this.cursor = shown ? moves[key]() ?? node : node;
      this.view.say(this.describe({ node: this.cursor }).filter(Boolean).join(", "));
      this.redraw();
      return true;
    }
    if (key === "Enter" || key === " ") { this.choose(node, key === " "); return true; }
    if (key === "Backspace") {
      const focus = this.view.sides.program.tree.nodes.get(this.view.state.module ?? "");
      if (focus?.parent) this.choose(focus.parent);
      return true;
    }
    return false;
  }
}
