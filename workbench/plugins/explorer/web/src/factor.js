// A slider for how many times as fast something could be.

import { h } from "./dom.js";

const STEPS = [1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10, Infinity];

export class Factor {
  constructor(label, changed) {
    this.slider = h("input", { type: "range", min: 0, max: STEPS.length - 1, step: 1, "aria-label": label,
      oninput: () => changed(STEPS[this.slider.value]) });
    this.text = h("output");
    this.root = h("div", { class: "slider" }, this.slider, this.text);
  }

  show(factor) {
    this.slider.value = Math.max(0, STEPS.indexOf(factor));
    this.text.textContent = factor === Infinity ? "removed" : `${factor}x faster`;
    this.slider.setAttribute("aria-valuetext", this.text.textContent);
  }
}
