// All traced inferences that are kept, end to end on one time axis, A above B; a click shows that pair.

import { scaleLinear } from "d3-scale";
import { Chart } from "./chart.js";
import { colorOf } from "./color.js";
import { ms } from "./format.js";

const ROW = 18, HEAD = 18, RULER = 16;
const LABEL = "All traced inferences on one time axis. Left and right show another one in the timeline above.";

export class Strip extends Chart {
  constructor(view) {
    super(view, LABEL);
    this.canvas.addEventListener("click", event => {
      const found = this.hit(event.offsetX, event.offsetY);
      if (found) view.store.set({ inference: found.number, time: null });
    });
  }

  measure() {
    const { model, state } = this.view, count = model.inferences(state);
    this.lanes = [0, 1].map(side => model.listSpans(state, side, count)).map((all, side) => {
      let end = 0;
      return { side, inferences: all.map((spans, number) => ({ spans, number, start: end, end: end += spans.length })), length: end };
    }).filter(lane => lane.length);
    this.lanes.forEach((lane, place) => { lane.top = RULER + place * (HEAD + ROW) + HEAD; });
    const longest = Math.max(...this.lanes.map(lane => lane.length), 1e-6);
    this.scale = scaleLinear([0, longest], [0, this.width]);
    return RULER + this.lanes.length * (HEAD + ROW) + 4;
  }

  draw(pen) {
    const { theme, sides, model, state } = this.view;
    for (const tick of this.scale.ticks(Math.max(3, this.width / 110))) {
      pen.line(this.scale(tick), 14, this.scale(tick), this.height, theme.faded);
      pen.text(`${tick} ms`, this.scale(tick) + 3, 11, theme.soft);
    }
    const shown = state.inference >= 0 ? state.inference : model.typical(state);
    for (const { side, inferences, top, length } of this.lanes) {
      const m = side ? sides.b : sides.a, name = sides.a ? `${side ? "B" : "A"}  ${m.label}` : m.label;
      pen.text(`${name}: ${inferences.length} inference${inferences.length === 1 ? "" : "s"}, ${ms(length)}`, 2, top - 5, theme.ink);
      for (const each of inferences) this.#inference(pen, each, top, side);
      const { start, end } = inferences[Math.min(shown, inferences.length - 1)];
      pen.outline(this.scale(start), top - 1, Math.max(2, this.scale(end) - this.scale(start)), ROW + 1, theme.accent, 2);
    }
  }

  /** The longest operator of each pixel. */
  #inference(pen, { spans, start, end }, top, side) {
    const { theme, state, sides, left, filtered } = this.view;
    const theirs = sides.rows && !side ? this.view.programOf(0).texts.category : null;
    const [from, to] = [start, end].map(this.scale);
    pen.rect(from, top, Math.max(0.5, to - from - 0.5), ROW, theme.neutral);
    const longest = new Map();
    for (let i = 0; i < spans.count; i++) {
      if (spans.inner[i] || spans.operators[i] < 0) continue;
      const x = Math.floor(this.scale(start + spans.start[i])), before = longest.get(x);
      if (before === undefined || spans.end[i] - spans.start[i] > spans.end[before] - spans.start[before]) longest.set(x, i);
    }
    for (const [x, i] of longest) {
      const row = spans.rows[i];
      const datum = row >= 0 && !theirs ? this.view.datum(row) : { category: theirs?.[spans.operators[i]] };
      const color = filtered && !left[row] ? theme.faded : colorOf(state.color, datum, theme);
      const right = Math.min(this.scale(start + spans.end[i]), to - 0.5);
      pen.rect(Math.max(x, from), top, Math.max(0.5, right - Math.max(x, from)), ROW, color);
    }
  }

  hit(x, y) {
    const at = this.scale.invert(x), lane = this.lanes.find(({ top }) => y >= top && y < top + ROW);
    const found = lane?.inferences.find(({ start, end }) => at >= start && at < end);
    return found ? { side: lane.side, ...found } : null;
  }

  describe({ side, spans, number }) {
    const { sides } = this.view;
    return [`${sides.a ? `${side ? "B" : "A"}, ` : ""}inference ${number + 1}: ${ms(spans.length)}`, `run ${spans.run}`];
  }

  key({ key }) {
    if (!["ArrowLeft", "ArrowRight"].includes(key)) return false;
    this.view.turnInference(key === "ArrowRight" ? 1 : -1);
    return true;
  }
}
