// An overview beside a chart that scrolls: a frame shows the part in sight, and moves it.

import { h, pointIn } from "./dom.js";

const WIDTH = 112, TALLEST = 260;

export class Minimap {
  constructor(scroller) {
    this.scroller = scroller;
    this.canvas = h("canvas");
    this.frame = h("div");
    this.root = h("div", { class: "minimap", "aria-hidden": "true", title: "All of the graph: drag to move" }, this.canvas, this.frame);
    scroller.addEventListener("scroll", () => this.follow(), { passive: true });
    const move = event => {
      const [x, y] = pointIn(this.canvas, event), { clientWidth, clientHeight } = scroller;
      scroller.scrollTo(x / this.size[0] * scroller.scrollWidth - clientWidth / 2, y / this.size[1] * scroller.scrollHeight - clientHeight / 2);
    };
    this.root.addEventListener("pointerdown", event => { this.root.setPointerCapture(event.pointerId); move(event); });
    this.root.addEventListener("pointermove", event => { if (event.buttons === 1) move(event); });
  }

  /** `boxes` are the places and colours of what is in the chart, of that width and height. */
  draw(boxes, width, height) {
    const tall = Math.min(TALLEST, WIDTH * height / width), dots = devicePixelRatio || 1;
    this.size = [WIDTH, tall];
    Object.assign(this.canvas, { width: WIDTH * dots, height: tall * dots });
    Object.assign(this.canvas.style, { width: `${WIDTH}px`, height: `${tall}px` });
    const pen = this.canvas.getContext("2d");
    pen.scale(dots * WIDTH / width, dots * tall / height);
    for (const { x, y, w, t, fill } of boxes) {
      pen.fillStyle = fill;
      pen.fillRect(x, y, w, t);
    }
    this.follow();
  }

  /** Moves the frame to what is in sight; without anything beyond it, there is no map. */
  follow() {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = this.scroller;
    if (!this.size || !clientWidth) return;
    this.root.style.visibility = scrollWidth > clientWidth || scrollHeight > clientHeight ? "" : "hidden";
    const [x, y] = [this.size[0] / scrollWidth, this.size[1] / scrollHeight];
    this.frame.style.cssText = `left:${scrollLeft * x}px;top:${scrollTop * y}px;width:${clientWidth * x}px;height:${clientHeight * y}px`;
  }
}
