// An operator below the roof of its machine, on logarithmic axes.

import { scaleLog } from "d3-scale";
import { svg } from "./dom.js";
import { figure } from "./format.js";

const WIDTH = 300, HEIGHT = 170, LEFT = 40, BOTTOM = 28, TOP = 10, RIGHT = 10;

/** `dots` have name, peak (GFLOP/s), bandwidth (GB/s), intensity (FLOP/B), gflops; a number, or whether they are `before`. */
export function drawRoof(dots, theme) {
  const ridges = dots.map(dot => dot.peak / dot.bandwidth);
  const xs = [...dots.map(dot => dot.intensity), ...ridges].filter(x => x > 0);
  const ys = [...dots.map(dot => dot.gflops), ...dots.map(dot => dot.peak)].filter(y => y > 0);
  const x = scaleLog([Math.min(...xs) / 4, Math.max(...xs) * 4], [LEFT, WIDTH - RIGHT]);
  const y = scaleLog([Math.min(...ys) / 3, Math.max(...ys) * 2], [HEIGHT - BOTTOM, TOP]);
  const text = dots.map(dot => `${dot.name}: ${figure(dot.gflops)} GFLOP/s at ${dot.intensity.toPrecision(2)} FLOP/B`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Roofline. ${text}`, class: "roof-plot" });
  const decades = scale => scale.ticks().filter(tick => Number.isInteger(Math.round(1e9 * Math.log10(tick)) / 1e9));
  for (const tick of decades(x)) {
    picture.append(svg("line", { x1: x(tick), x2: x(tick), y1: TOP, y2: HEIGHT - BOTTOM, stroke: theme.line }),
      svg("text", { x: x(tick), y: HEIGHT - BOTTOM + 12, "text-anchor": "middle", fill: theme.soft }, String(+tick.toPrecision(3))));
  }
  for (const tick of decades(y)) {
    picture.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick), stroke: theme.line }),
      svg("text", { x: LEFT - 4, y: y(tick) + 3, "text-anchor": "end", fill: theme.soft }, String(+tick.toPrecision(3))));
  }
  picture.append(svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end", fill: theme.soft }, "FLOP/B"),
    svg("text", { x: 2, y: TOP, fill: theme.soft }, "GFLOP/s"));
  const [low, high] = x.domain();
  const roofs = new Set();
  for (const dot of dots) {
    const ridge = Math.min(Math.max(dot.peak / dot.bandwidth, low), high);
    const roof = at => Math.min(dot.peak, dot.bandwidth * at);
    const points = [low, ridge, high].filter(at => roof(at) > 0).map(at => `${x(at)},${Math.min(HEIGHT - BOTTOM, y(roof(at)))}`).join(" ");
    const place = { cx: x(dot.intensity), cy: y(dot.gflops), r: dot.number ? 7 : 4.5 };
    if (!roofs.has(points)) picture.prepend(svg("polyline", { points, fill: "none", stroke: theme.ink, "stroke-width": 1.4, "stroke-dasharray": dot.before ? "4 3" : null }));
    roofs.add(points);
    if (!dot.number) picture.append(svg("line", { x1: place.cx, x2: place.cx, y1: place.cy, y2: y(roof(dot.intensity)), stroke: theme.accent, "stroke-dasharray": "2 2" }));
    picture.append(svg("circle", { ...place, fill: dot.before || dot.number ? theme.panel : theme.accent, stroke: theme.accent, "stroke-width": 1.6 }),
      svg("text", { x: place.cx + (dot.number ? 0 : 8), y: place.cy + 4, fill: theme.ink, "text-anchor": dot.number ? "middle" : null }, String(dot.number ?? dot.name)));
  }
  return picture;
}
