// What was measured and what came out: verdict, caveats, selectors, categories, findings.

import { CATEGORIES, inkOn, mix } from "./color.js";
import { h } from "./dom.js";
import { Factor } from "./factor.js";
import { findingsOf } from "./model.js";
import { widthOf } from "./pen.js";
import { decimalsOf, estimate, fixed, known, ms, ratio, share, unitOf, verdictTexts } from "./format.js";

/** Percent of the axis below which an interval would look like dust. */
const LEAST_LINE = 0.5;
/** How far the colours of a measurement on a busy machine are mixed with the panel's. */
const PALE = 0.6;
/** Ends of an interval that many times apart are not written. */
const VAGUE = 4;

/** The 95 % interval of a latency, with the digits and the unit of the latency. */
function interval({ latency, low, high }, longest) {
  const [scale] = unitOf(longest);
  return known(low) && known(high) ? ` [${[low, high].map(value => fixed(scale * value, decimalsOf(scale * latency))).join(", ")}]` : "";
}

/** Whether the interval of a ratio is so wide that its numbers say nothing. */
const vague = ({ outcome, low, high }) => outcome === "inconclusive" && high > VAGUE * low;

const SCALED = "Parts are timed in traced inferences, and scaled to add up to the latency";

const measured = m => m.untraced ? "without tracing" : "of traced inferences";

function unpaired({ a, rows }) {
  const paired = a.mean_ms.reduce((sum, x) => sum + (x ?? 0), 0);
  return `${rows.filter(row => row < 0).length} of A, ${ms(a.total - paired)}, have no counterpart in B`;
}

export class Head {
  constructor(view) {
    this.view = view;
    const { head } = view.model;
    const day = head.started && `${head.started.slice(0, 16).replace("T", " ")} UTC`;
    this.verdict = h("div", { class: "verdict" });
    this.gain = h("div", { class: "gain", role: "group", "aria-label": "What you could gain" });
    this.caveats = h("div", { class: "caveats" });
    this.selectors = h("div", { class: "selectors" });
    const notes = (head.notes ?? []).map(text => h("p", { class: "note" }, `Note: ${text}`));
    this.root = h("header", { class: "head" },
      h("div", { class: "facts" },
        h("h1", null, head.label || head.model),
        ...[head.label && head.model, head.dtype, head.program, head.device, day].filter(Boolean).map(text => h("span", { class: "fact" }, text)),
        h("span", { class: `grade grade-${head.grade}`, title: head.summary }, `quality ${head.grade}`),
        h("span", { class: "spring" },
          // The report is written beside explore.html.
          location.pathname.endsWith("/explore.html") && !view.embedded ? h("a", { href: "report.html" }, "Report") : null, view.menu.root,
          h("button", { type: "button", title: "Terms and keys ( ? )", "aria-label": "Terms and keys", onclick: () => view.help() }, "?"))),
      h("div", { class: "answer" }, this.verdict, this.selectors), ...notes, this.gain, this.caveats);
    this.#select();
  }

  /** A list for everything that more than one choice exists of. */
  #select() {
    const { model, store } = this.view;
    const side = number => number === null ? null : model.measurements[number];
    const described = model.pairs.map(pair => {
      const [a, b] = [side(pair.baseline), side(pair.candidate)];
      const threads = a && a.threads !== b.threads ? `${a.threads} → ${b.threads}` : String(b.threads);
      return { names: a ? (a.experiment === b.experiment ? b.experiment : `${a.experiment} → ${b.experiment}`) : b.experiment, threads, phase: b.phase };
    });
    const parts = { names: model.pairs.some(pair => pair.baseline !== null) ? "A → B" : "Measurement", threads: "Threads", phase: "Phase" };
    this.lists = Object.entries(parts).flatMap(([part, text]) => {
      const options = [...new Set(described.map(each => each[part]))];
      if (options.length < 2) return [];
      const list = h("select", { onchange: () => {
        const wanted = { ...described[store.state.pair], [part]: list.value };
        const score = each => (each[part] === wanted[part] ? 10 : 0) + Object.keys(parts).filter(name => each[name] === wanted[name]).length;
        const scores = described.map(score);
        store.set({ pair: scores.indexOf(Math.max(...scores)), finding: -1, time: null, inference: -1 });
      } }, ...options.map(option => h("option", { value: option }, option)));
      this.selectors.append(h("label", null, h("span", null, text), list));
      return [() => { list.value = described[store.state.pair][part]; }];
    });
    if (model.data.comparisons.length) {
      this.selectors.append(h("button", { type: "button", title: "Swap A and B",
        onclick: () => store.set({ swap: !store.state.swap, finding: -1 }) }, "⇄ Swap A and B"));
    }
  }

  /** One bar of today's latency: what was tried, what is left, and the machine's floor. */
  #drawGain({ potential, pale }) {
    this.gain.hidden = !potential;
    if (!potential) return;
    const { texts: [first, ...others] } = potential;
    const parts = potential.parts.map(([name, part, color]) => [name, part, mix(color, this.view.theme.panel, pale ? PALE : 0)]);
    this.gain.replaceChildren(h("p", null, h("b", null, "What you could gain: "), first),
      h("div", { class: "cat-bar", role: "img", "aria-label": parts.map(([name]) => name).join(", ") },
        ...parts.map(([name, part, color]) => h("span", { class: "seg", title: name, style: `width:${100 * part}%;background:${color};color:${inkOn(color)}` }, part > 0.11 ? share(part) : ""))),
      h("p", { class: "soft" }, ...parts.map(([name, , color]) => h("span", { class: "part" }, h("span", { class: "swatch", style: `background:${color}` }), name))),
      ...others.map(text => h("p", { class: "soft" }, text)));
  }

  redraw() {
    const { sides, state, model } = this.view;
    const { a, b, latency, outcome, pair } = sides;
    this.lists.forEach(update => update());
    const lines = [];
    if (latency) {
      const [text, interval95] = verdictTexts(outcome, latency);
      const ends = `${measured(b)}${known(b.latency.low) ? ", 95 % intervals" : ""}`;
      lines.push(h("p", { class: "big" }, h("strong", { class: `v-${outcome}` }, text),
        ["emulated", "wrong outputs"].includes(outcome) ? null : h("span", null, interval95)));
      const time = m => outcome === "emulated" ? [] : [h("b", null, this.view.time(m.latency.latency)), h("span", { class: "soft" }, interval(m.latency, this.view.longest))];
      const note = outcome === "emulated" ? null : h("span", { class: "soft" }, `E2E latency ${ends}`);
      lines.push(h("p", { class: "sides" }, h("span", null, h("b", { class: "side" }, "A"), `${a.label} `, ...time(a)), h("span", null, "→"),
        h("span", null, h("b", { class: "side" }, "B"), `${b.label} `, ...time(b)), note));
    } else {
      lines.push(h("p", { class: "big" }, h("strong", null, this.view.time(b.latency.latency)), h("span", null, `${interval(b.latency, this.view.longest)} E2E latency ${measured(b)}`)));
      lines.push(h("p", null, `${b.label}, n = ${b.latency.n}, ${b.latency.restarts} process restart${b.latency.restarts === 1 ? "" : "s"}`));
    }
    const guess = this.view.prediction();
    if (guess) {
      const headline = b.latency.latency;
      lines.push(h("p", { class: "guess" }, `what if: ${this.view.time(headline)} → `, h("b", null, this.view.time(headline / guess.speedup)),
        `, ${ratio(guess.speedup, guess.low, guess.high)}${latency ? "; against A: " : ""}`,
        latency ? h("b", null, `${ratio(latency.speedup * guess.speedup)}`) : null));
    }
    this.verdict.replaceChildren(...lines);
    this.#drawGain(b);
    const notes = [...(pair.caveats ?? b.caveats ?? [])];
    if (sides.twins) notes.push(`A and B are different programs: operators are paired by layer, kind, shapes and cost; ${unpaired(sides)}`);
    if (state.swap && sides.a) notes.push("A and B are swapped");
    const whole = text => text.split(/(--\S+(?: \d+)?)/).map((part, n) => n % 2 ? h("span", { class: "option" }, part) : part);
    const shown = notes.map(text => h("p", { role: "note" }, ...whole(text)));
    const line = `${shown.length} caveats: ${notes.join("; ")}`;
    const fold = shown.length > 1 ? [h("details", null, h("summary", { title: line }, line), ...shown)] : shown;
    this.caveats.replaceChildren(...fold);
  }
}

const OVER = { "": "A and B", ms: "All, in ms", share: "All, in %", "what-if": "What if" };

export class Categories {
  constructor(view) {
    this.view = view;
    this.body = h("div", { class: "cat-body" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Filter by category" });
    this.note = h("span", { class: "soft", title: SCALED });
    const { measurements, programs } = view.model;
    // Bars of all measurements are of use where there are more than two, of one program.
    const several = measurements.length > 2 && programs.length === 1;
    const usable = { "": true, ms: several, share: several, "what-if": !view.model.head.emulated };
    this.choices = Object.entries(OVER).filter(([value]) => usable[value]).map(([value, text]) =>
      [value, h("button", { type: "button", onclick: () => view.store.set({ over: value }) }, value || view.model.data.comparisons.length ? text : "Measured")]);
    this.factors = new Map(Object.keys(CATEGORIES).map(name => [name, new Factor(`What if ${name} were faster?`,
      factor => view.store.set({ what: { ...view.state.what, [name]: factor } }))]));
    this.sliders = h("div", { class: "factors" }, ...[...this.factors].map(([name, { root }]) =>
      h("div", null, h("span", null, h("span", { class: "swatch", style: `background:${CATEGORIES[name]}` }), name), root)));
    this.root = h("section", { class: "panel categories", "aria-label": "Categories" },
      h("header", { class: "bar" }, h("h2", null, "Where the time goes"),
        h("span", { class: "segmented", role: "group", "aria-label": "Bars" }, ...this.choices.map(([, button]) => button)),
        this.note), this.body, this.sliders, this.chips);
  }

  redraw() {
    const { sides, state, model } = this.view;
    const chosen = this.choices.some(([value]) => value === state.over) ? state.over : "";
    this.choices.forEach(([value, button]) => button.setAttribute("aria-pressed", String(value === chosen)));
    const side = m => m === sides.b ? "B" : m === sides.a ? "A" : " ";
    const guess = chosen === "what-if" && this.#whatIf(sides.b, state.what);
    this.sliders.hidden = !guess;
    const rows = guess ? [["B", sides.b], ["→", guess]] : chosen ? model.measurements.map(m => [side(m), m]) : [sides.a && ["A", sides.a], [sides.a ? "B" : "", sides.b]].filter(Boolean);
    const ends = rows.flatMap(([, m]) => m.categories.reduce(([at, all], row) => [at + row.mean_ms, [...all, at + (row.high_ms ?? 0), at + row.mean_ms]], [0, []])[1]);
    const longest = Math.max(...ends, 1e-9);
    const lines = chosen === "share" ? "" : sides.b.restarts_ms.length ? "; lines, where long enough to be seen: 95 % intervals over the restarts" : "";
    this.note.textContent = `mean time in the latency${lines}`;
    this.body.replaceChildren(...rows.map(([name, m]) => this.#bar(name, m, chosen === "share" ? null : longest)));
    const judged = new Map((sides.categories ?? []).map(row => [row.name, row]));
    const pale = rows.every(([, m]) => m.pale) ? PALE : 0;
    this.chips.replaceChildren(...sides.b.categories.map(row => {
      const found = row.mean_ms > 0 || judged.get(row.category)?.baseline_ms > 0 ? judged.get(row.category) : null;
      const pressed = state.category === row.category;
      return h("button", { type: "button", class: "chip", "aria-pressed": String(pressed), onclick: () => this.#toggle(row.category) },
        h("span", { class: "swatch", style: `background:${mix(CATEGORIES[row.category], this.view.theme.panel, pale)}` }), row.category,
        found && found.outcome !== "emulated" ? h("span", { class: `num v-${found.outcome}` }, vague(found) ? "inconclusive" : ratio(found.speedup, found.low, found.high)) : h("span", { class: "num" }, sides.b.blank ? "" : share(row.share)));
    }));
  }

  #toggle(category) {
    const { store, state } = this.view;
    store.set({ category: state.category === category ? "" : category, ops: [] });
  }

  /** A measurement whose categories are some times as fast; their intervals are left out. */
  #whatIf(m, what) {
    for (const [name, factor] of this.factors) {
      factor.show(what[name] ?? 1);
      factor.root.parentElement.hidden = !m.categories.some(row => row.category === name && row.mean_ms > 0);
    }
    const rows = m.categories.map(row => ({ ...row, mean_ms: row.mean_ms / (what[row.category] ?? 1), low_ms: null, high_ms: null }));
    const total = rows.reduce((sum, row) => sum + row.mean_ms, 0) || 1;
    return { ...m, label: "prediction", categories: rows.map(row => ({ ...row, share: row.mean_ms / total })) };
  }

  /** What a level adds to the one before, where both hide features of the CPU. */
  #adds(m) {
    const { measurements } = this.view.model, before = measurements[measurements.indexOf(m) - 1];
    if (!before || before.threads !== m.threads || m.hidden.length >= before.hidden.length) return "";
    const added = before.hidden.filter(name => !m.hidden.includes(name));
    return m.hidden.every(name => before.hidden.includes(name)) ? `adds ${added.join(", ")}` : "";
  }

  /** Shows a comparison with a measurement, if possible the one in which it replaces the same baseline. */
  #choose(m) {
    const { model, sides, store } = this.view, number = model.measurements.indexOf(m);
    const suits = pair => (pair.candidate === number ? 2 : 0) + (pair.baseline === number ? 1 : 0) + (pair.baseline === sides.pair.baseline ? 0.5 : 0);
    const scores = model.pairs.map(suits);
    store.set({ pair: scores.indexOf(Math.max(...scores)), finding: -1, time: null, inference: -1 });
  }

  #bar(name, m, scale) {
    const { state, theme } = this.view;
    let at = 0;
    const whiskers = [];
    const total = m.categories.reduce((sum, row) => sum + row.mean_ms, 0);
    const longest = scale ?? total, room = this.body.clientWidth - (this.body.clientWidth > 600 ? 290 : 20);
    const parts = m.categories.filter(row => row.mean_ms > 0).map(row => {
      const color = CATEGORIES[row.category], part = 100 * row.mean_ms / longest;
      const width = 100 * (row.high_ms - row.low_ms) / longest;
      if (scale && known(row.low_ms) && known(row.high_ms) && width >= LEAST_LINE) {
        whiskers.push(h("i", { style: `left:${100 * (at + row.low_ms) / longest}%;width:${width}%;background:${color};top:${2 * whiskers.length}px` }));
      }
      at += row.mean_ms;
      const dim = state.category && state.category !== row.category;
      const whole = m.pale ? PALE : 0, fill = mix(color, theme.panel, dim ? 0.78 : whole);
      const [time, ...ends] = estimate({ mean: row.mean_ms, low: row.low_ms, high: row.high_ms });
      const text = m.blank ? row.category : `${row.category} ${share(row.share)}, ${time}`;
      const labels = m.blank ? [row.category] : [`${row.category} ${share(row.share)}`, share(row.share)];
      return h("button", { type: "button", class: "seg",
        title: m.blank ? `${text}: its share is unknown` : `${text}${known(row.low_ms) ? `, 95 % interval ${ends.join(" to ")}` : ""}`, "aria-label": `${text}${name && `, ${name}`}`,
        "aria-pressed": String(state.category === row.category),
        style: `width:${part}%;background:${fill};color:${inkOn(fill)}`, onclick: () => this.#toggle(row.category) },
        h("span", null, labels.find(name => widthOf(name) * 1.15 + 12 < room * part / 100) ?? ""));
    });
    return h("div", { class: "cat-row" }, name ? h("b", { class: name === " " ? "side none" : "side" }, name) : null,
      name === " " ? h("button", { type: "button", class: "link cat-name", title: this.#adds(m) || "Compare", onclick: () => this.#choose(m) }, m.label) : h("span", { class: "cat-name", title: this.#adds(m) }, m.label),
      h("div", { class: "cat-track" }, h("div", { class: "cat-bar" }, ...parts), h("div", { class: "whiskers" }, ...whiskers)),
      h("span", { class: "num" }, this.view.time(total)));
  }
}

export class Findings {
  constructor(view) {
    this.view = view;
    this.list = h("div", { class: "cards" });
    this.root = h("section", { class: "findings", "aria-label": "Findings" }, h("h2", null, "Findings, most promising first"), this.list);
  }

  redraw() {
    const { sides, state, store } = this.view;
    const findings = findingsOf(sides);
    this.root.hidden = !findings.length;
    this.list.replaceChildren(...findings.map((finding, number) => h("button", {
      type: "button", class: "card", "aria-pressed": String(state.finding === number),
      onclick: () => store.set({ finding: state.finding === number ? -1 : number, ops: [], category: "", module: null, query: "", time: null }),
    }, h("b", null, `${number + 1}. ${finding.title}`), h("span", { class: "soft where" }, finding.where), h("span", { class: "soft" }, `Gain: ${finding.gain}`))));
  }
}
