// The operators as a table; only the rows in sight are in the page.

import { CATEGORIES } from "./color.js";
import { h, keyOf, marked } from "./dom.js";
import { cell as timeCell, difference, known, operatorsOf, ratio, share, unitOf } from "./format.js";

const ROW = 27, MARGIN = 8, HEIGHT = 440;  // as in style.css

export class Table {
  constructor(view) {
    this.view = view;
    this.active = this.top = 0;
    this.row = ROW;
    this.order = [];
    this.anchor = null;
    this.search = h("input", { type: "search", placeholder: "Search operators and layers  ( / )", "aria-label": "Search operators and layers",
      oninput: () => view.store.set({ query: this.search.value, ops: [] }) });
    this.search.addEventListener("keydown", event => {
      if (event.key === "Enter") { event.preventDefault(); this.#step(event.shiftKey ? -1 : 1); }
    });
    this.count = h("span", { class: "soft" });
    this.match = h("span", { class: "soft", role: "status" });
    const step = (text, name, by) => h("button", { type: "button", "aria-label": `${name} match`, title: `${name} match`, onclick: () => this.#step(by) }, text);
    this.steps = h("span", { class: "zoom" }, step("‹", "Previous", -1), step("›", "Next", 1), this.match);
    this.none = h("p", { class: "none", hidden: true }, h("span"), h("button", { type: "button", onclick: () => view.store.clear() }, "Clear (Esc)"));
    this.heads = h("div", { class: "t-row t-heads", role: "row" });
    this.body = h("div", { class: "t-body", role: "rowgroup" });
    this.grid = h("div", { class: "t-grid", role: "grid", tabindex: 0, "aria-label": "Operators", "aria-multiselectable": "true",
      onscroll: () => { this.top = this.grid.scrollTop; this.#rows(); }, onkeydown: event => { if (event.target === this.grid && this.#key({ key: keyOf(event), shiftKey: event.shiftKey, ctrlKey: event.ctrlKey })) event.preventDefault(); } },
      h("div", { role: "rowgroup", class: "t-top" }, this.heads), this.body);
    this.root = h("section", { class: "panel operators", "aria-label": "Operators" },
      h("header", { class: "bar" }, h("h2", null, "Operators"), this.search, this.steps, this.count), this.grid, this.none);
  }

  columns(unit = "ms") {
    const { sides } = this.view;
    const index = i => i, of = side => `${side.toUpperCase()}, ${unit}`;
    if (!sides.paired) return [
      ["label", "Operator", i => sides.program.labels[i]], ["category", "Category", i => sides.program.texts.category[i]],
      ["b", `Mean, ${unit}`, i => sides.msB[i]], ["bars", "", i => sides.msB[i]], ["share", "Share", i => sides.msB[i]], ["run", "Order", index],
    ];
    return [
      ["label", "Operator", i => sides.program.labels[i]], ["a", of("a"), i => sides.msA[i]], ["b", of("b"), i => sides.msB[i]],
      ["bars", "A above B", i => Math.max(sides.msA[i] ?? 0, sides.msB[i] ?? 0)],
      ["delta", `B − A, ${unit}`, i => known(sides.msA[i]) && known(sides.msB[i]) ? sides.msB[i] - sides.msA[i] : null],
      ["speedup", "Speed-up, 95 % interval", i => sides.speedup[i]], ["outcome", "Verdict", i => sides.outcomes[i]],
    ];
  }

  /** `all`: other rows or another order, not only another selection. `shown`: an operator to scroll to. */
  redraw(all, shown) {
    if (all) this.#arrange();
    if (shown !== undefined) this.#reveal(this.order.indexOf(shown));
    this.#rows(all);
    const { ops, query } = this.view.state, at = ops.length === 1 ? this.order.indexOf(ops[0]) : -1;
    this.steps.hidden = !query || !this.order.length;
    this.match.textContent = at < 0 ? "" : `${at + 1} of ${this.order.length}`;
  }

  /** Selects the next or previous operator that the filters leave, in the order of the table. */
  #step(by) {
    const { view, order } = this, count = order.length, at = order.indexOf(view.state.ops[0]);
    if (count) view.store.set({ ops: [order[at < 0 ? (by > 0 ? 0 : count - 1) : (at + by + count) % count]] });
  }

  #arrange() {
    const { view } = this, { sides, left, state } = view;
    const columns = this.columns(unitOf(view.longest)[1]);
    if (this.size !== view.size) {
      // In little room, a label has a line of its own.
      Object.assign(this, { size: view.size, row: parseInt(getComputedStyle(this.grid).getPropertyValue("--row")) || ROW });
    }
    const [name, down] = state.sort ? [state.sort.replace("-", ""), state.sort.startsWith("-")] : [sides.paired ? "bars" : "b", true];
    const value = (columns.find(([each]) => each === name) ?? columns[0])[2];
    const values = sides.program.keys.map((_, i) => value(i));
    const { own, operators: total } = sides.program;
    const operators = [...left.keys()].filter(i => left[i] && own[i]);
    const missing = x => x === null || x === "" || x === undefined;
    operators.sort((i, j) => {
      const [x, y] = [values[i], values[j]];
      if (missing(x) || missing(y)) return missing(x) - missing(y) || i - j;
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return (down ? -order : order) || i - j;
    });
    this.order = operators;
    this.active = Math.min(this.active, Math.max(0, operators.length - 1));
    if (this.search.value !== state.query) this.search.value = state.query;
    this.count.textContent = operators.length === total ? operatorsOf(total) : `${operators.length} of ${total} operators`;
    this.none.hidden = operators.length > 0;
    this.grid.hidden = !this.none.hidden;
    this.none.firstChild.textContent = state.query ? `Nothing found for “${state.query}”.` : "No operator passes all filters.";
    this.grid.setAttribute("aria-rowcount", operators.length + 1);
    this.grid.className = `t-grid ${sides.paired ? "t-pair" : "t-one"}`;
    this.heads.replaceChildren(...columns.map(([each, text]) => {
      const sorted = name === each ? (down ? "descending" : "ascending") : null;
      return h("div", { role: "columnheader", class: `t-${each}`, "aria-sort": sorted },
        text ? h("button", { type: "button", title: `Sort by ${text}`, onclick: () => this.#sort(each) }, text.split(", 9")[0], h("span", { class: "t-more" }, /, 9.*/.exec(text)?.[0])) : h("span", { class: "hidden" }, "Time as a bar"));
    }));
    const most = Math.max(...operators.flatMap(i => [sides.msA[i] ?? 0, sides.msB[i] ?? 0]), 1e-9);
    this.most = most;
    const gains = operators.flatMap(i => [sides.low[i], sides.high[i]]).filter(x => known(x) && x > 0).map(x => Math.abs(Math.log2(x)));
    // Wide intervals of tiny operators would squeeze all others: the axis ends at the 90th percentile.
    this.reach = Math.max(0.2, gains.sort((x, y) => x - y)[Math.floor(0.9 * (gains.length - 1))] ?? 1);
    this.body.style.height = `${operators.length * this.row}px`;
    this.top = Math.min(this.top, Math.max(0, operators.length * this.row + ROW - HEIGHT));
  }

  #reveal(at) {
    if (at < 0) return;
    this.active = at;
    const top = at * this.row;
    if (top < this.top || top + 3 * this.row > this.top + HEIGHT) this.#scroll(top - HEIGHT / 2);
  }

  #scroll(top) {
    this.grid.scrollTop = Math.max(0, top);
    this.top = this.grid.scrollTop;
  }

  #sort(name) {
    const { store, state } = this.view;
    const text = name === "label" || name === "outcome" || name === "category" || name === "run";
    const first = text ? name : `-${name}`;
    store.set({ sort: state.sort === first ? (text ? `-${name}` : name) : first });
  }

  /** Makes the rows in sight if they are others (`all`: all of them), and marks those selected. */
  #rows(all = false) {
    const first = Math.max(0, Math.floor(this.top / this.row) - MARGIN);
    const shown = Math.ceil(HEIGHT / this.row) + 2 * MARGIN, chosen = new Set(this.view.state.ops);
    if (all || first !== this.first) {
      this.made = new Map(this.order.slice(first, first + shown).map((operator, i) =>
        [operator, !all && this.made.get(operator) || this.#row(operator, first + i)]));
      this.body.replaceChildren(...this.made.values());
      this.first = first;
    }
    for (const [operator, row] of this.made) {
      row.setAttribute("aria-selected", String(chosen.has(operator)));
      row.classList.toggle("t-active", operator === this.order[this.active]);
    }
    const active = this.order.length ? `wb-row-${this.active}` : "";
    if (active && this.active >= first && this.active < first + shown) this.grid.setAttribute("aria-activedescendant", active);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  #row(i, at) {
    const { sides, state, theme } = this.view, [scale] = unitOf(this.view.longest);
    const { category } = sides.program.texts;
    const cell = (name, ...content) => h("div", { role: "gridcell", class: `t-${name}` }, ...content);
    const bar = (value, name) => h("span", { class: `t-bar t-bar-${name}`, style: `width:${known(value) ? 100 * value / this.most : 0}%` });
    const swatch = h("span", { class: "swatch", style: `background:${CATEGORIES[category[i]] ?? theme.neutral}`, title: category[i] });
    const text = sides.program.labels[i], cut = Math.max(0, text.lastIndexOf(" · "));
    // What tells operators apart, layer and number, is cut last: `features.3 · Fully… GEMM #6`.
    const kind = text.slice(cut).match(/^( · )?(.* )?(\S+ #\d.*)$/) ?? [null, "", text.slice(cut), ""];
    const part = (name, words) => words ? h("span", { class: name }, ...marked(words, state.query)) : null;
    const label = h("div", { role: "gridcell", class: "t-label", title: text }, swatch,
      cut ? h("span", { class: "t-path" }, h("bdi", null, ...marked(text.slice(0, cut), state.query))) : null,
      part("t-name", kind[1]), part("t-kind", kind[2]), part("t-name", kind[3]));
    const number = (name, value) => cell(name, timeCell(value, scale));
    const cells = sides.paired ? [
      label, number("a", sides.msA[i]), number("b", sides.msB[i]), cell("bars", bar(sides.msA[i], "a"), bar(sides.msB[i], "b")),
      cell("delta", difference(sides.msA[i], sides.msB[i], scale)),
      cell("speedup", this.#whisker(i), h("span", null, ratio(sides.speedup[i], sides.low[i], sides.high[i]))),
      cell("outcome", h("span", { class: `v-${sides.outcomes[i]}`, title: sides.reasons[i] ?? "" }, sides.outcomes[i])),
    ] : [
      label, cell("category", category[i]), number("b", sides.msB[i]), cell("bars", bar(sides.msB[i], "b")),
      cell("share", share(sides.msB[i] / sides.tree.get(sides.program.tree.root).b)), cell("run", String(i + 1)),
    ];
    return h("div", { role: "row", id: `wb-row-${at}`, "aria-rowindex": at + 2, class: "t-row", style: `top:${at * this.row}px`,
      onclick: event => this.#click(at, event) }, ...cells);
  }

  /** The speed-up as a dot with its interval, 1 in the middle, on a logarithmic axis. */
  #whisker(i) {
    const { sides } = this.view;
    const place = value => Math.min(100, Math.max(0, 50 + 50 * Math.log2(value) / this.reach));
    const box = h("span", { class: "whisker", "aria-hidden": "true" });
    const { [i]: value } = sides.speedup, { [i]: low } = sides.low, { [i]: high } = sides.high;
    if (!known(value)) return box;
    if (known(low) && known(high)) {
      box.append(h("i", { class: `v-line v-${sides.outcomes[i]}`, style: `left:${place(low)}%;width:${Math.max(1, place(high) - place(low))}%` }));
    }
    box.append(h("b", { class: `v-dot v-${sides.outcomes[i]}`, style: `left:${place(value)}%` }));
    return box;
  }

  #click(at, event) {
    const operator = this.order[at];
    this.active = at;
    if (event.shiftKey && this.anchor !== null) {
      const [from, to] = [this.order.indexOf(this.anchor), at].sort((x, y) => x - y);
      this.view.store.set({ ops: this.order.slice(Math.max(0, from), to + 1) });
      return;
    }
    this.anchor = operator;
    this.view.select(operator, event.ctrlKey || event.metaKey);
  }

  #key({ key, shiftKey, ctrlKey }) {
    const page = Math.max(1, Math.floor(HEIGHT / this.row) - 2), last = this.order.length - 1;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 };
    if (key in moves) {
      this.active = Math.min(last, Math.max(0, this.active + moves[key]));
      const top = this.active * this.row;
      if (top < this.top) this.#scroll(top);
      if (top + 2 * this.row > this.top + HEIGHT) this.#scroll(top + 2 * this.row - HEIGHT);
      if (shiftKey && this.order.length) this.view.store.set({ ops: [...new Set([...this.view.state.ops, this.order[this.active]])] });
      else this.#rows();
      return true;
    }
    if (key === "Enter" || key === " ") {
      if (this.order.length) this.view.select(this.order[this.active], key === " " || ctrlKey);
      return true;
    }
    return false;
  }

  /** The rows that the filters leave, or those selected, as lists of texts, the heads first. */
  rows() {
    const { sides, state } = this.view;
    const columns = this.columns().filter(([name]) => !["bars", "share", "run"].includes(name));
    const chosen = state.ops.length ? this.order.filter(i => state.ops.includes(i)) : this.order;
    const heads = columns.map(([name, text]) => name === "speedup" ? "speed-up" : text.toLowerCase().replace(/^([ab]),/, (_, side) => `${side.toUpperCase()},`));
    const more = sides.paired ? ["low", "high", "category", "source"] : ["category", "source"];
    const { category, source } = sides.program.texts;
    const lists = { low: sides.low, high: sides.high, category, source };
    const names = [...new Set([...heads, ...more])];
    return [names, ...chosen.map(i => [...columns.map(([, , value]) => value(i)), ...names.slice(columns.length).map(name => lists[name][i])]
      .map(value => value ?? ""))];
  }
}
