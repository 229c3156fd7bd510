// One traced inference of each side on one time axis, A above B; dragging filters by time.

import { scaleLinear } from "d3-scale";
import { Chart } from "./chart.js";
import { colorOf, inkOn } from "./color.js";
import { pointIn } from "./dom.js";
import { ms, share } from "./format.js";
import { widthOf } from "./pen.js";

const ROW = 17, HEAD = 20, RULER = 20, GAP = 16;
const LABEL = "Timeline of one inference of each side. Left and right move from operator to operator, up and down " +
  "change sides, Enter selects, plus and minus zoom, square brackets show other inferences. Shift with left and right filters by time.";

export class Timeline extends Chart {
  constructor(view) {
    super(view, LABEL);
    this.from = 0;
    this.to = null;
    this.cursor = null;
    this.drag = null;
    this.canvas.addEventListener("pointerdown", event => this.#start(event));
    this.canvas.addEventListener("pointerup", event => this.#end(event));
    this.canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 300), this.scale.invert(pointIn(this.canvas, event)[0]));
    }, { passive: false });
  }

  measure() {
    const { model, state } = this.view;
    this.lanes = model.inference(state).map((spans, side) => spans && { spans, side });
    const longest = Math.max(...this.lanes.filter(Boolean).map(lane => lane.spans.length));
    if (longest !== this.longest) Object.assign(this, { longest, from: 0, to: longest });
    this.scale = scaleLinear([this.from, this.to], [0, this.width]);
    let top = RULER;
    for (const lane of this.lanes.filter(Boolean)) {
      lane.top = top + HEAD;
      top = lane.top + ROW * (lane.spans.deepest + 1) + GAP;
    }
    return top - GAP + 4;
  }

  /** Zooms by a factor around a time, within the inference. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const from = around + (this.from - around) * factor, to = around + (this.to - around) * factor;
    [this.from, this.to] = [Math.max(0, from), Math.min(this.longest, to)];
    if (this.to - this.from < 1e-4) this.to = this.from + 1e-4;
    this.redraw();
  }

  draw(pen) {
    const { theme, sides } = this.view;
    const decimals = Math.max(0, -Math.floor(Math.log10((this.to - this.from) / 8)));
    for (const tick of this.scale.ticks(Math.max(3, this.width / 110))) {
      const x = this.scale(tick);
      pen.line(x, 14, x, this.height, theme.faded);
      pen.text(`${tick.toFixed(decimals)} ms`, x + 3, 11, theme.soft);
    }
    const lanes = this.lanes.filter(Boolean);
    this.#link(pen);
    for (const lane of lanes) {
      const m = lane.side ? sides.b : sides.a;
      const name = `${sides.a ? (lane.side ? "B  " : "A  ") : ""}${m.label}`;
      pen.text(`${name}: run ${lane.spans.run}, ${ms(lane.spans.length)}`, 2, lane.top - 6, theme.ink);
      this.#spans(pen, lane);
    }
    const range = this.drag?.range ?? this.view.state.time;
    if (range) {
      const lane = this.lanes[range[0]];
      const [x1, x2] = [this.scale(range[1]), this.scale(range[2])];
      if (lane) pen.outline(x1, lane.top - 2, Math.max(2, x2 - x1), ROW * (lane.spans.deepest + 1) + 2, theme.accent, 2);
    }
  }

  #spans(pen, { spans, top, side }) {
    const { theme, state, left, filtered, sides } = this.view;
    const chosen = new Set(state.ops);
    const own = sides.rows && !side ? this.view.programOf(0).texts.category : null;  // of another program
    const perPixel = this.width / (this.to - this.from);
    // Of spans narrower than a pixel, the longest of each pixel and row is drawn.
    const last = new Map();
    for (let i = 0; i < spans.count; i++) {
      if (spans.end[i] < this.from || spans.start[i] > this.to) continue;
      const x = Math.max(0, (spans.start[i] - this.from) * perPixel);
      const w = Math.min(this.width, (spans.end[i] - this.from) * perPixel) - x;
      const operator = spans.operators[i], row = spans.rows[i], depth = spans.depths[i];
      if (w < 0.7) {
        const pixel = depth * 100000 + Math.floor(x), before = last.get(pixel);
        if (before !== undefined && before >= w) continue;
        last.set(pixel, w);
      }
      const call = spans.inner[i] || operator < 0;
      const datum = row >= 0 && !(own && state.color === "category") ? this.view.datum(row) : { category: own?.[operator] };
      const color = call ? theme.neutral : filtered && !left[row] ? theme.faded : colorOf(state.color, datum, theme);
      const y = top + depth * ROW;
      pen.rect(x, y, w > 3 ? w - 0.6 : Math.max(w, 0.6), ROW - 1, color);
      if (w > 30) {
        const name = operator < 0 ? "" : this.view.shortName(operator, side);
        if (name && widthOf(name) < w - 6) pen.text(name, x + 3, y + 12, color === theme.faded ? theme.soft : inkOn(color));
      }
      if (!call && chosen.has(row)) pen.outline(x, y + 1, Math.max(w, 2), ROW - 3, theme.ink, 2);
      if (this.cursor && this.cursor.side === side && this.cursor.span === i && document.activeElement === this.canvas) {
        pen.outline(x, y + 1, Math.max(w, 3), ROW - 3, theme.accent, 2);
      }
    }
  }

  /** Joins the one selected operator of A with that of B. */
  #link(pen) {
    const { state, theme } = this.view;
    if (state.ops.length !== 1 || !this.lanes[0] || !this.lanes[1]) return;
    const ends = this.lanes.map(({ spans, top }) => {
      const i = spans.rows.findIndex((row, at) => row === state.ops[0] && !spans.inner[at]);
      return i < 0 ? null : { x1: this.scale(spans.start[i]), x2: this.scale(spans.end[i]), top: top + spans.depths[i] * ROW };
    });
    if (!ends[0] || !ends[1]) return;
    const [a, b] = ends;
    pen.shape([[a.x1, a.top + ROW], [a.x2, a.top + ROW], [b.x2, b.top], [b.x1, b.top]], theme.frame);
  }

  #laneAt(y) {
    return this.lanes.find(lane => lane && y >= lane.top && y < lane.top + ROW * (lane.spans.deepest + 1)) ?? null;
  }

  hit(x, y) {
    const lane = this.#laneAt(y);
    if (!lane) return null;
    const at = this.scale.invert(x), row = Math.floor((y - lane.top) / ROW), { spans } = lane;
    const slack = 2 * (this.to - this.from) / this.width;
    let best = null, distance = slack;
    for (let i = 0; i < spans.count; i++) {
      if (spans.depths[i] !== row) continue;
      const away = Math.max(spans.start[i] - at, at - spans.end[i], 0);
      if (away < distance || (away === 0 && best === null)) { best = i; distance = away; }
    }
    return best === null ? null : { side: lane.side, span: best };
  }

  describe({ side, span }) {
    const { spans } = this.lanes[side];
    const operator = spans.operators[span], row = spans.rows[span], time = spans.end[span] - spans.start[span];
    const here = `this inference: ${ms(time)}, ${share(time / spans.length)}`;
    const named = this.view.programOf(side).labels[operator] ?? "call";
    if (spans.inner[span] || row < 0) return [named, here, operator < 0 || spans.inner[span] ? "" : "no counterpart in B"];
    return [...this.view.describe(row), here];
  }

  #start(event) {
    if (event.button) return;
    const [x, y] = pointIn(this.canvas, event);
    const lane = this.#laneAt(y);
    if (!lane) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { side: lane.side, x, range: null, hit: this.hit(x, y) };
  }

  point(event) {
    if (!this.drag) { super.point(event); return; }
    const [x] = pointIn(this.canvas, event);
    if (!this.drag.range && Math.abs(x - this.drag.x) < 5) return;
    const ends = [this.drag.x, x].map(each => this.scale.invert(Math.min(Math.max(each, 0), this.width))).sort((p, q) => p - q);
    this.drag.range = [this.drag.side, ...ends.map(end => +end.toFixed(4))];
    this.view.tip.hide();
    this.redraw();
  }

  #end(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.range) { this.view.store.set({ time: drag.range, ops: [] }); return; }
    const found = drag.hit;
    const row = found ? this.lanes[found.side].spans.rows[found.span] : -1;
    if (row >= 0) {
      this.cursor = found;
      this.view.select(row, event.ctrlKey || event.metaKey || event.shiftKey);
    } else this.view.store.set({ time: null, ops: [] });
  }

  key({ key, shiftKey }) {
    const { store, state } = this.view;
    if (key === "+" || key === "=") { this.zoom(0.6, this.#middle()); return true; }
    if (key === "-") { this.zoom(1 / 0.6, this.#middle()); return true; }
    if (key === "0") { this.zoom(1e9); return true; }
    if (key === "[" || key === "]") { this.view.turnInference(key === "]" ? 1 : -1); return true; }
    if (key === "Enter" || key === " ") {
      const row = this.cursor ? this.lanes[this.cursor.side].spans.rows[this.cursor.span] : -1;
      if (row >= 0) this.view.select(row, key === " ");
      return true;
    }
    if (!key.startsWith("Arrow")) return false;
    if (key === "ArrowUp" || key === "ArrowDown") {
      const side = key === "ArrowUp" ? 0 : 1;
      if (this.lanes[side]) this.#move(side, this.cursor ? this.#find(side) : this.#next(side, -1, 1));
      return true;
    }
    const side = this.cursor?.side ?? (this.lanes[0] ? 0 : 1);
    this.#move(side, this.#next(side, this.cursor?.span ?? -1, key === "ArrowRight" ? 1 : -1));
    if (shiftKey && this.cursor) {
      const { spans } = this.lanes[side];
      const [start, end] = [spans.start[this.cursor.span], spans.end[this.cursor.span]];
      const before = state.time?.[0] === side ? state.time : [side, start, end];
      store.set({ time: [side, Math.min(before[1], start), Math.max(before[2], end)], ops: [] });
    }
    return true;
  }

  #middle() {
    return this.cursor ? this.lanes[this.cursor.side].spans.start[this.cursor.span] : undefined;
  }

  #next(side, span, step) {
    const { spans } = this.lanes[side];
    for (let i = span + step; i >= 0 && i < spans.count; i += step) if (!spans.inner[i]) return i;
    return span;
  }

  /** The span of a side with the operator that the cursor is on; without one, the first. */
  #find(side) {
    const row = this.lanes[this.cursor.side].spans.rows[this.cursor.span], { spans } = this.lanes[side];
    const found = row < 0 ? -1 : spans.rows.findIndex((each, i) => each === row && !spans.inner[i]);
    return found < 0 ? this.#next(side, -1, 1) : found;
  }

  #move(side, span) {
    if (span < 0) return;
    this.cursor = { side, span };
    const { spans } = this.lanes[side], size = this.to - this.from;
    if (spans.start[span] < this.from || spans.end[span] > this.to) {
      this.from = Math.max(0, Math.min(spans.start[span] - size / 4, this.longest - size));
      this.to = this.from + size;
    }
    this.view.say(this.describe(this.cursor).filter(Boolean).join(", "));
    this.redraw();
  }
}
