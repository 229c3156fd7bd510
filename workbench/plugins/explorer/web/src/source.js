// The model's source with the time of each line; a line selects its operators.

import { CATEGORIES } from "./color.js";
import { h, keyOf } from "./dom.js";
import { cell, estimate, known, ms, operatorsOf, share, unitOf } from "./format.js";
import { findingsOf } from "./model.js";

const CONTEXT = 3, MOST_FAR = 2000, WIDEST = 400;

/** The file and the line of `file:line`; of anything else, an empty file and 0. */
export function splitPlace(place) {
  const cut = place.lastIndexOf(":"), line = Number(place.slice(cut + 1));
  return cut > 0 && Number.isInteger(line) && line > 0 ? [place.slice(0, cut), line] : ["", 0];
}

/** The lines of a file by their numbers, as far as the run has them. */
export function linesOf(program, file) {
  const lines = new Map();
  for (const [start, text] of Object.entries(program.sources[file] ?? {})) {
    text.split("\n").forEach((line, n) => lines.set(Number(start) + n, line.slice(0, WIDEST)));
  }
  return lines;
}

export class Source {
  constructor(view) {
    this.view = view;
    this.byTime = false;
    this.grouped = new Map();
    this.files = h("select", { "aria-label": "File", onchange: () => { this.file = this.files.value; this.redraw(true); } });
    this.orders = [["In order", false], ["By time", true]].map(([text, byTime]) =>
      [byTime, h("button", { type: "button", onclick: () => { this.byTime = byTime; this.redraw(true); } }, text)]);
    this.note = h("span", { class: "soft" });
    this.body = h("div", { class: "s-body", role: "group", "aria-label": "Lines of the source", onkeydown: event => this.#key(event) });
    this.root = h("section", { class: "panel source-lines", "aria-label": "Source" },
      h("header", { class: "bar" }, h("h2", null, "Source"), h("span", { class: "segmented", role: "group", "aria-label": "Order" }, ...this.orders.map(([, button]) => button)),
        this.files, this.note), this.body);
  }

  /** The operators of each line of a program, by file and line; those of none under an empty file. */
  #group(program) {
    if (!this.grouped.has(program)) {
      const files = new Map();
      program.texts.source.forEach((place, i) => {
        const [file, line] = splitPlace(place);
        if (!files.has(file)) files.set(file, new Map());
        const lines = files.get(file);
        lines.set(line, [...lines.get(line) ?? [], i]);
      });
      this.grouped.set(program, files);
    }
    return this.grouped.get(program);
  }

  /** `all`: other times, filters or lines, not only another selection. */
  redraw(all) {
    const { sides, state } = this.view, groups = this.#group(sides.program);
    const time = lines => [...lines.values()].flat().reduce((sum, i) => sum + (sides.meanB[i] ?? 0), 0);
    const files = [...groups.keys()].filter(Boolean).sort((p, q) => time(groups.get(q)) - time(groups.get(p)));
    this.root.hidden = !files.length && this.view.root.dataset.only !== "source";
    if (this.root.hidden) return;
    if (!files.includes(this.file)) { this.file = files[0]; all = true; }
    // A selection elsewhere leads to its line.
    const [file] = state.ops.length ? splitPlace(sides.program.texts.source[state.ops[0]]) : [""];
    if (file && file !== this.file && !this.byTime) { this.file = file; all = true; }
    if (all) this.#fill(files, groups, time);
    this.#mark();
  }

  #fill(files, groups, time) {
    const { sides } = this.view;
    for (const [byTime, button] of this.orders) button.setAttribute("aria-pressed", String(byTime === this.byTime));
    this.files.hidden = this.byTime || files.length < 2;
    this.files.replaceChildren(...files.map(file => h("option", { value: file }, `${file}${sides.b.blank ? "" : ` (${share(time(groups.get(file)) / sides.b.total)})`}`)));
    this.files.value = this.file ?? "";
    this.most = Math.max(...[...groups.values()].flatMap(lines => [...lines.values()].map(each => time(new Map([[0, each]])))), 1e-9);
    this.body.classList.toggle("s-pale", Boolean(sides.b.pale));
    this.places = this.#placeFindings();
    this.rows = [];
    const none = groups.get("")?.get(0);
    const shown = !files.length ? [h("p", { class: "soft" }, "No line is known of any operator.")]
      : this.byTime ? files.flatMap(file => [...groups.get(file)].map(([line, operators]) => [file, line, operators, linesOf(sides.program, file).get(line) ?? ""]))
        .sort((p, q) => time(new Map([[0, q[2]]])) - time(new Map([[0, p[2]]]))).flatMap(each => this.#line(...each, true))
        : this.#file(this.file, groups.get(this.file));
    const rest = none ? this.#line("", 0, none, "no line: the runtime, and delegates as a whole") : [];
    this.body.replaceChildren(...shown, ...rest);
    this.note.textContent = `${files.length ? `${[...groups].filter(([file]) => file).reduce((sum, [, lines]) => sum + lines.size, 0)} lines` : ""}${sides.b.blank || !none ? "" : `; ${ms(time(new Map([[0, none]])))} of no line`}${sides.b.blank ? "" : `; times in ${unitOf(this.view.longest)[1]}`}`;
    if (this.rows[0]) this.rows[0].button.tabIndex = 0;
  }

  /** The findings by the place where their operators take most time. */
  #placeFindings() {
    const { sides } = this.view, { source } = sides.program.texts, places = new Map();
    findingsOf(sides).forEach((finding, number) => {
      const spent = new Map();
      for (const i of finding.operators) if (source[i]) spent.set(source[i], (spent.get(source[i]) ?? 0) + (sides.meanB[i] ?? 0));
      const [place] = [...spent].sort(([, x], [, y]) => y - x)[0] ?? [""];
      if (place) places.set(place, [...places.get(place) ?? [], number]);
    });
    return places;
  }

  /** The lines of a file; those far from any with time are folded. */
  #file(file, groups) {
    const text = linesOf(this.view.sides.program, file), numbers = [...new Set([...text.keys(), ...groups.keys()])].sort((x, y) => x - y);
    const near = new Set([...groups.keys()].flatMap(line => Array.from({ length: 2 * CONTEXT + 1 }, (_, n) => line + n - CONTEXT)));
    const shown = [];
    let far = [];
    const flush = () => {
      if (far.some(n => text.get(n)?.trim())) {
        shown.push(h("details", null, h("summary", { class: "soft" }, `${far.length} lines`),
          h("pre", null, far.slice(0, MOST_FAR).map(n => `${String(n).padStart(4)}  ${text.get(n)}`).join("\n"))));
      }
      far = [];
    };
    for (const n of numbers) {
      if (!near.has(n)) { far.push(n); continue; }
      flush();
      if (groups.has(n)) shown.push(...this.#line(file, n, groups.get(n), text.get(n) ?? ""));
      else shown.push(h("div", { class: "s-row s-plain" }, ...["s-bar", "s-ms", "s-share", "s-on", "s-in"].map(name => h("span", { class: name })), h("span", { class: "s-no" }, String(n)), h("code", null, text.get(n))));
    }
    flush();
    if (!text.size) shown.unshift(h("p", { class: "soft" }, "The text of this file was not kept: only its lines are known."));
    return shown;
  }

  /** A line with its operators, and the findings at it. */
  #line(file, line, operators, text, named = false) {
    const { view } = this, { sides, state, model } = view, { program, a, b } = sides, emulated = model.head.emulated;
    const timed = !emulated && !b.blank, spent = model.sum(b, operators), before = a && model.sum(a, operators).mean, [scale] = unitOf(view.longest), [mean, low, high] = estimate(spent);
    const { category, kind, dtype, module } = program.texts;
    const work = operators.filter(i => program.own[i]);
    const add = list => list.reduce((sum, i) => sum + (b.mean_ms[i] ?? 0), 0);
    const inside = add(work.filter(i => kind[i] === "delegated")) / (add(work) || 1);
    const place = inside > 0.999 ? "delegate" : inside < 0.001 ? "kernel" : `${share(inside)} delegate`;
    const where = work.length ? [place, ...new Set(work.map(i => dtype[i]).filter(Boolean))].join(", ") : "";
    const layers = [...new Set(operators.map(i => module[i]).filter(Boolean))];
    const whole = add(operators) || 1;
    const parts = timed ? Object.keys(CATEGORIES).map(name => h("i", { style: `width:${100 * add(operators.filter(i => category[i] === name)) / whole}%;background:${CATEGORIES[name]};opacity:${state.category && state.category !== name ? 0.25 : 1}` })) : [];
    const title = [timed ? `${mean}${known(spent.low) ? `, 95 % interval ${low} to ${high}` : ""}` : "", operatorsOf(work.length), where,
      layers.length > 4 ? `${layers.length} layers` : layers.join(", ")].filter(Boolean).join("; ");
    const button = h("button", { type: "button", class: "s-row", title, tabindex: -1, onclick: event => this.#select(operators, event.ctrlKey || event.metaKey) },
      h("span", { class: "s-bar" }, h("span", { style: `width:${timed ? 100 * add(operators) / this.most : 0}%` }, ...parts)),
      h("span", { class: "s-ms" }, timed ? cell(spent.mean, scale) : ""), h("span", { class: "s-share" }, timed ? share(spent.mean / b.total) : ""),
      h("span", { class: "s-on" }, timed && before ? `${cell(before, scale)} → ${cell(spent.mean, scale)}` : ""), h("span", { class: "s-in" }, place.includes("%") && where ? place : where),
      h("span", { class: "s-no" }, named ? `${file.split(/[\\/]/).at(-1)}:${line}` : line || ""), h("code", null, named ? text.trim() : text));
    this.rows.push({ button, operators });
    const notes = (this.places.get(`${file}:${line}`) ?? []).map(number => {
      const finding = findingsOf(sides)[number];
      return h("p", { class: "s-note" }, h("button", { type: "button", class: "link", onclick: () => view.store.set({ finding: number, ops: [], category: "", module: null, query: "", time: null }) }, `${number + 1}. ${finding.title}`), ` Gain: ${finding.gain}`);
    });
    return [button, ...notes];
  }

  #select(operators, more) {
    const { store, state } = this.view, chosen = new Set(state.ops);
    const all = operators.every(i => chosen.has(i));
    if (more) store.set({ ops: all ? state.ops.filter(i => !operators.includes(i)) : [...new Set([...state.ops, ...operators])] });
    else store.set({ ops: all && chosen.size === operators.length ? [] : operators });
  }

  #mark() {
    const { state, left, filtered } = this.view, chosen = new Set(state.ops);
    let first = null;
    for (const { button, operators } of this.rows) {
      const here = operators.some(i => chosen.has(i));
      button.setAttribute("aria-pressed", String(here));
      button.classList.toggle("s-left", filtered && !operators.some(i => left[i]));
      if (here) first ??= button;
    }
    if (first && !this.body.contains(document.activeElement)) {
      const { offsetTop } = first, { scrollTop, clientHeight } = this.body;
      if (offsetTop < scrollTop || offsetTop > scrollTop + clientHeight - 30) this.body.scrollTop = offsetTop - clientHeight / 3;
    }
  }

  #key(event) {
    const buttons = this.rows.map(({ button }) => button), at = buttons.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[keyOf(event)];
    if (at < 0 || to === undefined || !buttons[to]) return;
    buttons[at].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
    event.preventDefault();
  }
}
