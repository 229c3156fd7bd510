// The explorer: views over one model and one state. A page mounts it; anywidget calls `render`.

import { CATEGORIES, COLORINGS, legendOf, themeOf } from "./color.js";
import { Tip } from "./chart.js";
import { h } from "./dom.js";
import { ms, ratio, share } from "./format.js";
import { FOLDED, Graph } from "./graph.js";
import { Categories, Findings, Head } from "./head.js";
import { Icicle } from "./icicle.js";
import { Inspector } from "./inspector.js";
import { Memory } from "./memory.js";
import { Menu } from "./menu.js";
import { Model } from "./model.js";
import { Source } from "./source.js";
import { fromHash, Store, toHash } from "./state.js";
import css from "./style.css";
import { Table } from "./table.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";

const KEYS = [
  ["/", "search operators and layers"], ["Enter, Shift + Enter", "in the search: select the next or previous match"], ["Esc", "clear selection, then filters"], ["?", "this list"],
  ["Tab", "next control or chart"], ["arrows, W A S D", "move within a chart or the table"],
  ["Enter", "select; a second Enter on the same operator clears it"], ["Space", "add to the selection, or remove"],
  ["+ − 0", "zoom timeline or graph; everything"], ["[ ]", "previous and next pair of inferences"],
  ["Shift + ← →", "filter the timeline by time"], ["Ctrl + wheel", "zoom; the wheel alone scrolls the page"],
];

const TERMS = [
  ["A, B", "the two sides of a comparison: baseline and candidate; notebook 03"],
  ["E2E latency", "time of Method::execute for one inference, without tracing; notebook 01"],
  ["mean", "over the traced inferences, scaled to the E2E latency, to which parts add up; notebook 04"],
  ["typical", "mean of the middle half of each process restart's inferences; speed-ups compare these; notebook 03"],
  ["[1.24, 1.31]", "95 % interval over process restarts; notebook 03"],
  ["category", "the kind of work; every nanosecond is in one; notebook 05"],
  ["layer", "the module of the PyTorch model that an operator works for; notebook 07"],
  ["machine code", "the function in which the program counter was sampled; notebook 08"],
  ["roof", "the rate that this machine's arithmetic or memory allows; notebook 09"],
];

class View {
  /** `only` names the one view to show, `levels` and `what-if` being bars of the categories. */
  constructor(root, data, { hash = "", embedded = false, only = "", changed = () => {} } = {}) {
    Object.assign(CATEGORIES, data.colors);
    Object.assign(this, { root, embedded, changed, model: new Model(data) });
    // Latencies have one unit, as in Python's sentences.
    this.longest = Math.max(...this.model.measurements.map(m => m.latency.latency));
    const over = { levels: "ms", "what-if": "what-if" }[only];
    this.store = new Store(fromHash(hash || (over ? `over=${over}` : ""), this.model));
    root.dataset.only = over ? "categories" : only;
    this.tip = new Tip();
    this.#readTheme();
    this.menu = new Menu(this);
    this.status = h("div", { class: "hidden", role: "status", "aria-live": "polite" });
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "What is shown" });
    this.size = 0;
    this.derive();
    this.headView = new Head(this);
    this.categories = new Categories(this);
    this.findings = new Findings(this);
    this.icicle = new Icicle(this);
    this.graph = new Graph(this);
    this.timeline = new Timeline(this);
    this.strip = new Strip(this);
    this.source = new Source(this);
    this.table = new Table(this);
    this.memory = new Memory(this);
    this.inspector = new Inspector(this);
    this.keys = this.#helpDialog();
    root.classList.add("wb-explorer");
    root.replaceChildren(h("style", null, css), this.headView.root, this.findings.root, this.categories.root, this.crumbs,
      h("div", { class: "columns" }, h("div", { class: "charts" }, this.#modelPanel(), this.source.root, this.#timelinePanel(), this.table.root, this.memory.root), this.inspector.root),
      this.status, this.keys, this.tip.box);
    this.store.listeners.push(() => this.update());
    (embedded ? root : document).addEventListener("keydown", event => this.#key(event));
    const redraw = () => { this.#readTheme(); this.redraw(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    // JupyterLab hides its notebook while it changes the theme.
    new MutationObserver(() => requestAnimationFrame(redraw)).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) > 1) { width = entry.contentRect.width; this.redraw(); }
    }).observe(root);
  }

  get state() { return this.store.state; }

  time(value) { return ms(value, this.longest); }

  /** JupyterLab says which theme it has; elsewhere the system does. */
  #readTheme() {
    const lab = document.body?.dataset.jpThemeLight;
    this.dark = lab ? lab === "false" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.theme = themeOf(this.dark);
    this.root.dataset.theme = this.dark ? "dark" : "light";
    if (!this.embedded) document.documentElement.dataset.theme = this.root.dataset.theme;
  }

  derive() {
    const { state, model } = this;
    this.sides = model.sides(state);
    this.left = model.filter(state);
    this.filtered = model.filtered(state);
  }

  update() {
    const { ops } = this.state;
    if (ops.length === 1 && ops[0] !== this.shown) this.reveal = ops[0];
    this.shown = ops.length === 1 ? ops[0] : null;
    this.redraw(false);
    this.changed(toHash(this.state), this.subject().map(i => this.sides.program.keys[i]));
  }

  /** Draws what depends on a changed part of the state; with `all`, everything, in its new size. */
  redraw(all = true) {
    const start = performance.now();
    const { state, drawn = {} } = this;
    const changed = (...names) => all || names.some(name => state[name] !== drawn[name]);
    const sides = changed("pair", "swap"), filters = sides || changed("category", "module", "finding", "query", "time");
    const selected = filters || changed("ops"), factors = changed("factor", "over", "what");
    this.drawn = state;
    if (all) this.size++;
    if (filters) this.derive();
    if (sides || factors || selected && state.factor > 1) this.headView.redraw();
    if (sides || changed("over", "what", "category")) this.categories.redraw();
    if (sides || changed("finding")) this.findings.redraw();
    if (selected) this.#crumb();
    const graph = state.view === "graph" && this.graph.possible;
    this.icicle.canvas.hidden = graph;
    this.graph.root.parentElement.hidden = !graph;
    if (sides || changed("view", "color", "depth", "inference")) this.controls.forEach(update => update());
    if (selected || factors) this.inspector.redraw();
    if (selected || changed("color", "inference")) { this.timeline.redraw(); this.strip.redraw(); }
    if (selected) this.source.redraw(filters);
    if (selected || changed("sort")) this.table.redraw(filters || changed("sort"), this.reveal);
    this.reveal = undefined;
    if (sides || changed("ops")) this.memory.redraw();
    // The graph comes last: to scroll, it needs the layout of the page.
    if (selected || changed("color", "view", "depth")) (graph ? this.graph : this.icicle).redraw();
    this.root.dataset.drawnMs = (performance.now() - start).toFixed(1);
  }

  chart() { return this.state.view === "graph" && this.graph.possible ? this.graph : this.icicle; }

  /** What colours say of an operator. */
  datum(i) {
    const { sides } = this, { texts } = sides.program;
    return {
      category: texts.category[i], confidence: texts.confidence[i], outcome: sides.outcomes[i], speedup: sides.speedup[i],
      part: (sides.meanB[i] ?? 0) / sides.most, roof: sides.b.roofline?.roof_share[i],
    };
  }

  programOf(side) { return side || !this.sides.a ? this.sides.program : this.model.programs[this.sides.a.program]; }

  shortName(i, side = 1) {
    const name = this.programOf(side).labels[i].split(" · ").at(-1);
    return name.replace(/^Fully Connected /, "");
  }

  describe(i) {
    const { sides } = this, { texts, labels } = sides.program;
    const { msA: { [i]: a }, msB: { [i]: b } } = sides, longest = Math.max(a, b);
    const times = sides.paired ? `A ${ms(a, longest)}, B ${ms(b, longest)}` : `mean ${ms(b)}`;
    const judged = sides.paired && sides.outcomes[i] !== "emulated" ? `${ratio(sides.speedup[i], sides.low[i], sides.high[i])}, ${sides.outcomes[i]}` : "";
    const roof = sides.b.roofline?.roof_share[i];
    const logged = texts.name[i].startsWith("Invalid Unary Op") ? `XNNPACK logs it as ${texts.name[i]}` : "";
    return [labels[i], texts.category[i], times, judged, roof ? `${share(roof)} of the roof` : "", texts.shapes[i], logged];
  }

  /** Selects an operator alone, or adds it; selecting the only one again clears it. */
  select(i, more = false) {
    const { ops } = this.state;
    const has = ops.includes(i);
    if (more) this.store.set({ ops: has ? ops.filter(each => each !== i) : [...ops, i] });
    else this.store.set({ ops: has && ops.length === 1 ? [] : [i] });
  }

  /** The selected operators; without any, those that the filters leave (all of them if `always`). */
  subject(always = false) {
    if (this.state.ops.length) return this.state.ops;
    return this.filtered || always ? [...this.left.keys()].filter(i => this.left[i]) : [];
  }

  prediction() {
    const { factor } = this.state, operators = this.subject();
    const factors = new Map();
    if (factor > 1) for (const i of operators) factors.set(i, factor);
    if (this.state.over === "what-if") this.sides.program.texts.category.forEach((category, i) => {
      if (this.state.what[category] > 1) factors.set(i, this.state.what[category]);
    });
    return factors.size && !this.model.head.emulated ? this.model.whatIf(this.sides.b, factors) : null;
  }

  turnInference(step) {
    const count = this.model.inferences(this.state);
    const shown = this.state.inference >= 0 ? this.state.inference : this.model.typical(this.state);
    this.store.set({ inference: (shown + step + count) % count, time: null });
  }

  say(text) { this.status.textContent = text; }

  help() {
    if (this.keys.open) this.keys.close();
    else this.keys.showModal();
  }

  #helpDialog() {
    const list = (rows, tag) => h("dl", null, ...rows.flatMap(([name, text]) => [h("dt", null, h(tag, null, name)), h("dd", null, text)]));
    const dialog = h("dialog", { class: "keys", "aria-label": "Terms and keys" }, h("h2", null, "Terms"), list(TERMS, "b"),
      h("p", { class: "soft" }, h("code", null, "workbench lab"), " opens the notebooks of the learning path."), h("h2", null, "Keys"), list(KEYS, "kbd"),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    return dialog;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation(); // JupyterLab would take the arrows of a slider, and Enter on a button
    const typing = event.target instanceof HTMLElement && event.target.matches("input[type=search], select, textarea");
    if (event.key === "Escape" && !this.keys.open) {
      if (this.state.ops.length) this.store.set({ ops: [] });
      else this.store.clear();
      if (typing) this.table.grid.focus();
    } else if (event.key === "/" && !typing) {
      this.table.search.focus();
      this.table.search.select();
    } else if (event.key === "?" && !typing) this.help();
    else return;
    event.preventDefault();
  }

  /** model > GEMM > classifier.3 > GEMM #42; each part goes back to itself. */
  #crumb() {
    const { state, store, sides, model } = this;
    const parts = [[model.head.model, () => store.clear()]];
    if (state.category) parts.push([state.category, () => store.set({ module: null, finding: -1, query: "", time: null, ops: [] })]);
    if (state.module) {
      const path = state.module.split(".");
      path.forEach((name, n) => parts.push([name, () => store.set({ module: path.slice(0, n + 1).join("."), ops: [] })]));
    }
    if (state.finding >= 0) parts.push([`finding ${state.finding + 1}`, () => store.set({ ops: [] })]);
    if (state.query) parts.push([`“${state.query}”`, () => store.set({ ops: [] })]);
    if (state.time) parts.push([`${ms(state.time[1], state.time[2])} to ${ms(state.time[2])} of ${sides.a ? "AB"[state.time[0]] : "the inference"}`, () => store.set({ ops: [] })]);
    if (state.ops.length === 1) {
      const [i] = state.ops, path = sides.program.texts.module[i];
      if (!state.category) parts.splice(1, 0, [sides.program.texts.category[i], () => store.set({ category: sides.program.texts.category[i], ops: [] })]);
      if (!state.module && path) parts.push([path, () => store.set({ module: path, ops: [] })]);
      parts.push([sides.program.labels[i].split(" · ").at(-1), null]);
    } else if (state.ops.length) parts.push([`${state.ops.length} operators`, null]);
    const items = parts.map(([text, act], n) => h("li", null, act && n < parts.length - 1
      ? h("button", { type: "button", class: "link", onclick: act }, text) : h("span", { "aria-current": n ? "true" : null }, text)));
    const clear = parts.length < 2 ? h("span", { class: "soft" }, "all operators: select a category, a layer or an operator") : h("button", { type: "button", class: "link soft", onclick: () => store.clear() }, "Clear (Esc)");
    this.crumbs.replaceChildren(h("ol", null, ...items), clear);
  }

  #modelPanel() {
    const { store } = this;
    const views = ["icicle", "graph"].map(name => h("button", { type: "button", onclick: () => store.set({ view: name }) }, name === "icicle" ? "Icicle" : "Graph"));
    const list = h("select", { "aria-label": "Colour by", onchange: () => store.set({ color: list.value }) },
      ...Object.entries(COLORINGS).map(([value, text]) => h("option", { value }, text)));
    const legend = h("div", { class: "legend" });
    const depth = h("select", { "aria-label": "Detail", onchange: () => store.set({ depth: Number(depth.value) }) },
      ...["automatic", "1 level of modules", ...[2, 3, 4, 5].map(n => `${n} levels`)].map((text, value) => h("option", { value }, text)),
      h("option", { value: FOLDED }, "repeated classes once"), h("option", { value: 99 }, "all operators"));
    const note = h("p", { class: "soft note" }, "Rows continue one another. Dashed boxes run outside of delegates. A module opens on a click; its strip shows the time of its operators.");
    const detail = h("label", { class: "inline" }, "Detail ", depth);
    const zoom = h("span", { class: "zoom" }, h("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.graph.zoom(0.8) }, "−"),
      h("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.graph.zoom(1.25) }, "+"));
    this.controls = [() => {
      const graph = this.state.view === "graph" && this.graph.possible;
      views.forEach((button, n) => button.setAttribute("aria-pressed", String(graph === (n === 1))));
      for (const button of views) button.hidden = !this.graph.possible;
      zoom.hidden = detail.hidden = note.hidden = !graph;
      depth.value = [...depth.options].some(option => Number(option.value) === this.state.depth) ? this.state.depth : 0;
      for (const option of list.options) {
        option.hidden = option.value === "speedup" && (!this.sides.paired || this.model.head.emulated) ||
          option.value === "roof" && !this.sides.b.roofline || option.value === "confidence" && !this.sides.program.modules.length;
      }
      list.value = this.state.color;
      legend.replaceChildren(...legendOf(this.state.color, this.theme).map(([text, color]) =>
        h("span", null, h("span", { class: "swatch", style: `background:${color}` }), text)));
    }];
    return h("section", { class: "panel model", "aria-label": "Model" },
      h("header", { class: "bar" }, h("h2", null, "Model"), h("span", { class: "segmented", role: "group", "aria-label": "View" }, ...views), zoom, detail,
        h("label", { class: "inline" }, "Colour by ", list), legend),
      h("div", { class: "plot" }, this.icicle.canvas, h("div", { class: "mapped" }, this.graph.root, this.graph.map.root)), note);
  }

  #timelinePanel() {
    const number = h("span", { class: "soft" });
    this.controls.push(() => {
      const count = this.model.inferences(this.state);
      const shown = this.state.inference >= 0 && this.state.inference < count ? this.state.inference : this.model.typical(this.state);
      number.textContent = `${this.model.traced(this.state).length > 1 ? "pair" : "inference"} ${shown + 1} of ${count}`;
      number.title = "Undisturbed traced inferences of the first process, evenly spread over it";
    });
    return h("section", { class: "panel timeline", "aria-label": "Timeline" },
      h("header", { class: "bar" }, h("h2", null, "Inference"),
        h("button", { type: "button", "aria-label": "Previous inference ( [ )", onclick: () => this.turnInference(-1) }, "‹"),
        h("button", { type: "button", "aria-label": "Next inference ( ] )", onclick: () => this.turnInference(1) }, "›"), number,
        h("span", { class: "spring" }),
        h("span", { class: "zoom" }, h("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.timeline.zoom(1 / 0.6) }, "−"),
          h("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.timeline.zoom(0.6) }, "+"),
          h("button", { type: "button", onclick: () => this.timeline.zoom(1e9) }, "All"))),
      h("div", { class: "plot pair" }, this.timeline.canvas),
      h("h3", null, "All of them on one axis, end to end"), h("div", { class: "plot" }, this.strip.canvas),
      h("p", { class: "soft note" }, "Drag to filter by time. XNNPACK logs durations only: operators of a delegate are laid end to end."));
  }
}

/** Shows a document of `explorer_data` in an element. */
export function mount(root, data, options) {
  return new View(root, data, options);
}

/** For anywidget; the picture that a saved notebook keeps is hidden while the explorer is there. */
function render({ model, el }) {
  const root = h("div"), still = model.get("still");
  el.append(root);
  if (still) el.append(h("style", null, `.${still} { display: none; }`));
  const view = mount(root, JSON.parse(model.get("data")), {
    hash: model.get("state"), embedded: true, only: model.get("view"),
    changed: (hash, keys) => { model.set("state", hash); model.set("selected", keys); model.save_changes(); },
  });
  view.redraw();
}

function openPage() {
  const place = document.getElementById("explorer-data");
  if (!place) return;
  const root = document.getElementById("explorer");
  const data = JSON.parse(place.textContent);
  const keep = hash => { try { history.replaceState(null, "", `#${hash}`); } catch { /* a frame without an address */ } };
  const view = mount(root, data, { hash: location.hash.slice(1), only: root.dataset.only, changed: keep });
  addEventListener("hashchange", () => view.store.set(fromHash(location.hash.slice(1), view.model)));
  root.explorer = view;
  // A page that holds it in a frame may make the frame as high.
  if (parent !== window) new ResizeObserver(() => parent.postMessage({ explorerHeight: root.scrollHeight }, "*")).observe(root);
}

openPage();
export default { render };
