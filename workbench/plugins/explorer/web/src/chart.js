// What the canvas charts share: a canvas that fits its place, a tip, and files of what it shows.

import { h, keyOf, pointIn } from "./dom.js";
import { canvasPen, svgPen } from "./pen.js";

export class Chart {
  /** `label` says what is drawn and which keys work. */
  constructor(view, label) {
    this.view = view;
    this.canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": label, class: "chart" });
    this.width = 800;
    this.height = 100;
    this.canvas.addEventListener("pointermove", event => this.point(event));
    this.canvas.addEventListener("pointerleave", () => view.tip.hide());
    this.canvas.addEventListener("keydown", event => {
      const { ctrlKey, metaKey, altKey, shiftKey } = event;
      if (!ctrlKey && !metaKey && !altKey && this.key({ key: keyOf(event), shiftKey })) event.preventDefault();
    });
  }

  redraw() {
    if (this.size !== this.view.size) {
      this.size = this.view.size;
      this.width = Math.max(200, Math.floor(this.canvas.parentElement?.clientWidth || 800));
    }
    this.height = this.measure();
    this.canvas.style.height = `${this.height}px`;
    this.draw(canvasPen(this.canvas, this.width, this.height, this.view.theme.panel));
  }

  toSVG() {
    const pen = svgPen(this.width, this.height, this.view.theme.panel);
    this.draw(pen);
    return pen.toString();
  }

  point(event) {
    const found = this.hit(...pointIn(this.canvas, event));
    this.canvas.style.cursor = found ? "pointer" : "default";
    if (found) this.view.tip.show(this.describe(found), event);
    else this.view.tip.hide();
  }
}

export class Tip {
  constructor() {
    this.box = h("div", { class: "tip", role: "tooltip", hidden: true });
  }

  /** Lines of text, the first of them bold. */
  show(lines, event) {
    this.box.replaceChildren(...lines.filter(Boolean).map((line, i) => h("div", i ? null : { class: "tip-head" }, line)));
    this.box.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - this.box.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + this.box.offsetHeight > innerHeight ? event.clientY - this.box.offsetHeight - 10 : below;
    this.box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  hide() { this.box.hidden = true; }
}
