// What a program needs besides time: memory at its peak, the time to the first output, activations.

import { Chart } from "./chart.js";
import { inkOn, mix } from "./color.js";
import { h } from "./dom.js";
import { figure, mega } from "./format.js";
import { widthOf } from "./pen.js";

const AREA = 96, ROW = 19, HEAD = 16;
const LABEL = "Activations over the operators in order of execution. Up and down move between tensors, Enter selects the operator that writes one.";
const size = bytes => mega(bytes, "B");

/** Rows of one kind as one: the delegates are set up one after the other. */
function merge(rows, name, value) {
  const found = new Map();
  for (const row of rows) {
    const kind = row[name].startsWith("delegate") ? "delegates" : row[name], before = found.get(kind);
    found.set(kind, before ? { ...before, value: before.value + row[value], count: before.count + 1, name: `${before.count + 1} ${kind}` }
      : { kind, meaning: row.meaning, value: row[value], count: 1, name: row[name] });
  }
  return [...found.values()];
}

export class Memory {
  constructor(view) {
    this.view = view;
    this.bars = h("div", { class: "needs" });
    this.chart = new Activations(view);
    this.title = h("h3");
    this.plot = h("div", { class: "plot lives" }, this.title, this.chart.canvas);
    this.root = h("section", { class: "panel memory", "aria-label": "Memory and start" },
      h("header", { class: "bar" }, h("h2", null, "Memory and start")), this.bars, this.plot);
  }

  redraw() {
    const { sides, model } = this.view;
    const groups = [["Largest resident set", "MB", m => merge(m.memory.map(row => ({ ...row, mb: row.size_bytes / 1e6 })), "part", "mb")]];
    const caches = { warm: "", cold: ", files not cached" };
    for (const [cache, text] of model.head.emulated ? [] : Object.entries(caches)) {
      groups.push([`From exec to the first output${text}`, "ms",
        m => merge(m.start.filter(row => row.cache === cache), "stage", "mean_ms")]);
    }
    const columns = Math.max(1, Math.min(groups.length, Math.floor((this.bars.clientWidth + 24) / 324)));
    this.room = (this.bars.clientWidth + 24) / columns - 130;
    this.bars.replaceChildren(...groups.map(group => this.#group(...group)).filter(Boolean));
    this.plot.hidden = !sides.program.activations;
    this.root.hidden = this.plot.hidden && !this.bars.childElementCount;
    if (this.plot.hidden) return;
    this.chart.redraw();
    this.title.textContent = `Activations, in the order of execution: at most ${size(this.chart.most)} live`;
  }

  /** One bar for each side above a list of its parts, which is the legend. */
  #group(title, unit, partsOf) {
    const { sides, theme } = this.view;
    const shown = [["A", sides.a], ["B", sides.b]].map(([name, m]) => [name, m ? partsOf(m) : []]).filter(([, rows]) => rows.length);
    if (!shown.length) return null;
    const kinds = [...new Set(shown.flatMap(([, rows]) => rows.map(row => row.kind)))];
    const color = kind => mix(theme.time, theme.neutral, kinds.indexOf(kind) / kinds.length);
    const total = rows => rows.reduce((sum, row) => sum + row.value, 0);
    const longest = Math.max(...shown.map(([, rows]) => rows.reduce((sum, row) => sum + Math.max(0, row.value), 0)));
    const bar = ([name, rows]) => h("div", { class: "need" }, sides.a ? h("b", { class: "side" }, name) : null,
      h("div", { class: "cat-bar", "aria-hidden": "true" }, ...rows.filter(row => row.value > 0).map(row => h("span", { class: "seg", title: `${row.name} ${figure(row.value)} ${unit}: ${row.meaning}`,
        style: `width:${100 * row.value / longest}%;background:${color(row.kind)};color:${inkOn(color(row.kind))}` }, widthOf(row.name) * 1.2 + 10 < this.room * row.value / longest ? row.name : ""))),
      h("b", { class: "num" }, `${figure(total(rows))} ${unit}`));
    const values = kind => shown.map(([, rows]) => h("td", { class: "num" }, figure(rows.find(row => row.kind === kind)?.value)));
    const named = kind => shown.flatMap(([, rows]) => rows).find(row => row.kind === kind);
    return h("section", null, h("h3", null, title), ...shown.map(bar), h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "part"), ...shown.map(([name]) => h("th", { scope: "col", class: "num" }, [sides.a && name, unit].filter(Boolean).join(", "))))),
      h("tbody", null, ...kinds.map(kind => h("tr", { title: named(kind).meaning },
        h("th", { scope: "row" }, h("span", { class: "swatch", style: `background:${color(kind)}` }), named(kind).name), ...values(kind))))));
  }
}

/** Live bytes at every operator, and below them the largest tensors, from the operator that writes one to its last reader. */
class Activations extends Chart {
  constructor(view) {
    super(view, LABEL);
    this.cursor = -1;
    this.canvas.addEventListener("click", event => {
      const found = this.hit(event.offsetX, event.offsetY);
      if (found) this.#choose(found, event.ctrlKey || event.metaKey || event.shiftKey);
    });
  }

  measure() {
    this.data = this.view.sides.program.activations;
    const count = this.data.steps.length;
    this.total = this.data.steps.map((_, i) => Object.values(this.data.live).reduce((sum, live) => sum + (live[i] ?? 0), 0));
    this.most = Math.max(...this.total, 1);
    this.peak = this.total.indexOf(this.most);
    this.step = this.width / Math.max(1, count);
    return HEAD + AREA + 8 + ROW * this.data.tensors.length + 4;
  }

  draw(pen) {
    const { theme, state } = this.view, { data, step } = this;
    const places = Object.keys(data.live), base = this.total.map(() => 0);
    places.forEach((place, n) => {
      const color = mix(theme.time, theme.neutral, 0.25 + 0.45 * n);
      data.live[place].forEach((bytes, i) => {
        const height = AREA * bytes / this.most;
        const x = Math.floor(i * step);  // whole pixels leave no seams
        pen.rect(x, HEAD + AREA - base[i] - height, Math.max(1, Math.floor((i + 1) * step) - x), height, color);
        base[i] += height;
      });
      pen.rect(2 + 190 * n, 3, 8, 8, color);
      pen.text(place, 14 + 190 * n, 11, theme.soft);
    });
    const at = (this.peak + 0.5) * step;
    pen.line(at, HEAD, at, this.height, theme.accent);
    data.tensors.forEach((tensor, n) => {
      const y = HEAD + AREA + 8 + ROW * n, x = tensor.first * step, w = Math.max(2, (tensor.last + 1 - tensor.first) * step);
      const color = tensor.at_peak ? theme.time : theme.frame;
      pen.rect(x, y, w, ROW - 3, color);
      const text = `${size(tensor.size_bytes)} ${tensor.operator}${tensor.module ? ` of ${tensor.module}` : ""}`, room = widthOf(text);
      const inside = room < w - 8, start = inside ? x + 4 : x + w + 5 + room < this.width ? x + w + 5 : Math.max(2, x - 5 - room);
      pen.text(text, start, y + 12, inside ? inkOn(color) : theme.ink);
      const row = this.#row(tensor);
      if (row >= 0 && state.ops.includes(row)) pen.outline(x, y + 1, w, ROW - 5, theme.ink, 2);
      if (this.cursor === n && document.activeElement === this.canvas) pen.outline(x, y, w, ROW - 3, theme.accent, 2);
    });
    for (const [i, row] of data.steps.entries()) if (row >= 0 && state.ops.includes(row)) pen.rect(i * step, HEAD + AREA + 1, Math.max(step, 2), 4, theme.ink);
  }

  /** The operator that writes a tensor; -1 for inputs and those without a time of their own. */
  #row(tensor) { return tensor.operator === "input" ? -1 : this.data.steps[tensor.first]; }

  hit(x, y) {
    const n = Math.floor((y - HEAD - AREA - 8) / ROW), tensor = n >= 0 ? this.data.tensors[n] : null;
    if (tensor) return { n, tensor };
    const i = Math.floor(x / this.step);
    return y > HEAD && y < HEAD + AREA && i >= 0 && i < this.total.length ? { i } : null;
  }

  describe({ tensor, i }) {
    const { labels } = this.view.sides.program;
    if (!tensor) return [this.data.steps[i] >= 0 ? labels[this.data.steps[i]] : "no operator with a time of its own", `operator ${i + 1} of ${this.total.length}: ${size(this.total[i])} live`];
    const row = this.#row(tensor);
    return [`${size(tensor.size_bytes)}: ${tensor.operator}${tensor.module ? ` of ${tensor.module}` : ""}`, row >= 0 ? `written by ${labels[row]}` : "",
      `live from operator ${tensor.first + 1} to ${tensor.last + 1}, in ${tensor.memory}`, tensor.at_peak ? "live at the peak" : "", tensor.source];
  }

  #choose({ tensor, i }, more) {
    const row = tensor ? this.#row(tensor) : this.data.steps[i];
    if (row >= 0) this.view.select(row, more);
  }

  key({ key }) {
    const { tensors } = this.data, step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step) {
      this.cursor = Math.min(tensors.length - 1, Math.max(0, this.cursor + step));
      this.view.say(this.describe({ tensor: tensors[this.cursor] }).filter(Boolean).join(", "));
      this.redraw();
      return true;
    }
    if ((key === "Enter" || key === " ") && tensors[this.cursor]) { this.#choose({ tensor: tensors[this.cursor] }, key === " "); return true; }
    return false;
  }
}
