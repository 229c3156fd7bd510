// All about what is selected: operator, layer, shapes, source line, machine code, roof, what if.

import { h } from "./dom.js";
import { CATEGORIES } from "./color.js";
import { Factor } from "./factor.js";
import { estimate, figure, fixed, known, mega, ms, operatorsOf, ratio, share } from "./format.js";
import { findingsOf } from "./model.js";
import { drawRoof } from "./roof.js";
import { linesOf, splitPlace } from "./source.js";

const ABOVE = 4, BELOW = 5;  // lines of a source excerpt

const facts = rows => h("dl", null, ...rows.filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .flatMap(([name, ...value]) => [h("dt", null, name), h("dd", null, ...value)]));

export class Inspector {
  constructor(view) {
    this.view = view;
    this.body = h("div");
    this.factor = new Factor("What if it were faster?", factor => view.store.set({ factor }));
    this.effect = h("p", { class: "effect" });
    this.what = h("section", null, h("h3", null, "What if it were faster?"), this.factor.root, this.effect);
    this.title = h("b");
    this.brief = h("span", { class: "soft" });
    this.handle = h("button", { type: "button", class: "handle", onclick: () => this.#open(!this.opened) }, this.title, this.brief);
    this.root = h("aside", { class: "panel inspector", "aria-label": "Selection", tabindex: -1 }, this.handle,
      h("div", { class: "sheet" }, this.body, this.what));
    this.#open(false);
  }

  /** Where there is no room beside the charts, details are a drawer at the bottom edge: a selection opens it. */
  #open(opened) {
    this.opened = opened;
    this.root.classList.toggle("opened", opened);
    this.handle.setAttribute("aria-expanded", String(opened));
  }

  redraw() {
    const { view } = this, { state } = view;
    const content = state.ops.length === 1 ? this.#operator(state.ops[0]) : this.#several();
    this.body.replaceChildren(...content.filter(Boolean));
    this.#whatIf();
    const [only] = state.ops, chosen = state.ops.length > 0 || state.finding >= 0;
    this.title.textContent = content[0].textContent;
    this.brief.textContent = state.ops.length === 1 ? view.describe(only).slice(2, 4).filter(Boolean).join("; ") : operatorsOf(view.subject(true).filter(i => view.sides.program.own[i]).length);
    if (chosen !== this.chosen) this.#open(chosen);
    this.root.classList.toggle("chosen", chosen);
    this.chosen = chosen;
  }

  #whatIf() {
    const { view } = this, { state, sides } = view;
    const subject = view.subject();
    this.what.hidden = !subject.length || view.model.head.emulated;
    this.factor.show(state.factor);
    const guess = state.factor > 1 ? view.prediction() : null;
    this.effect.textContent = guess
      ? `Traced E2E ${view.time(guess.before)} → ${view.time(guess.after)}, ${ratio(guess.speedup, guess.low, guess.high)}, if all else stays as in ${sides.b.label}.`
      : `Move the slider: E2E if ${subject.length === 1 ? "this operator" : `these ${subject.length} operators`} took less time.`;
  }

  #operator(i) {
    const { view } = this, { sides } = view, { program, a, b } = sides, { texts, costs } = program;
    const same = sides.paired;
    const cost = name => costs[name]?.[i];
    const longest = Math.max(a?.mean_ms[i] ?? 0, b.mean_ms[i] ?? 0);
    const mean = m => known(m?.mean_ms[i]) ? `${estimate(view.model.sum(m, [i]), longest)[0]}, ${share(m.mean_ms[i] / m.total)} of E2E` : "";
    const source = texts.source[i];
    return [
      h("h2", null, program.labels[i]),
      h("p", { class: "soft" }, h("span", { class: "swatch", style: `background:${CATEGORIES[texts.category[i]] ?? this.view.theme.neutral}` }),
        [texts.category[i], texts.family[i], texts.kind[i] === "delegated" ? "delegated" : texts.kind[i].replace("_", " ")].filter(Boolean).join(" · ")),
      h("section", null, h("h3", null, "Time"),
        same && sides.outcomes[i] !== "emulated" ? h("p", null, known(sides.speedup[i]) ? h("strong", { class: `v-${sides.outcomes[i]}` }, `${ratio(sides.speedup[i], sides.low[i], sides.high[i])} `) : null, sides.outcomes[i],
          sides.reasons[i] ? `, ${sides.reasons[i]}` : "",
          sides.outcomes[i] === "inconclusive" && known(sides.detectable[i]) && sides.detectable[i] < 10 ? `; only a change above ${share(sides.detectable[i])} was detectable` : "") : null,
        facts([
          ["mean", (a && mean(a) ? `A ${mean(a)}` : ""), a && mean(a) ? h("br") : "", a ? `B ${mean(b)}` : mean(b)],
          ["std. deviation", a && known(a.std_ms[i]) ? `A ${ms(a.std_ms[i], longest)}, B ${ms(b.std_ms[i], longest)}` : ms(b.std_ms[i], longest)],
          ["calls", known(cost("calls")) ? `${fixed(cost("calls"), Number.isInteger(cost("calls")) ? 0 : 1)} per inference` : ""],
        ])),
      h("section", { class: "layer" }, h("h3", null, "Layer"), texts.module[i]
        ? facts([["path", h("button", { type: "button", class: "link", onclick: () => view.store.set({ module: texts.module[i], ops: [] }) }, texts.module[i])],
          ["class", texts.module_class[i]], ["also does work of", texts.also[i]], ["attribution", texts.confidence[i]], ["depends on", texts.depends?.[i]]])
        : h("p", { class: "soft" }, "No layer is known for this operator.")),
      h("section", null, h("h3", null, "Work"), facts([
        ["logged as", texts.name[i]], ["logged with", texts.metadata?.[i]], ["in A", sides.twins?.[i] >= 0 ? view.programOf(0).labels[sides.twins[i]] : ""], ["shapes", texts.shapes[i]], ["computes in", known(cost("flops")) ? texts.dtype[i] : ""],
        ["operations", known(cost("flops")) ? `${mega(cost("flops"), "FLOP")} per call` : ""],
        ["bytes", known(cost("bytes")) ? `${mega(cost("bytes"), "B")} per call` : ""],
      ])),
      source ? this.#source(source) : null, this.#kernels(i), this.#roof(i),
    ];
  }

  #source(place) {
    const [file, line] = splitPlace(place), text = linesOf(this.view.sides.program, file);
    const found = [...text.keys()].filter(n => n >= line - ABOVE && n <= line + BELOW);
    return h("section", { class: "source" }, h("h3", null, "Source"), h("p", null, h("code", { title: place }, place.split(/[\\/]/).at(-1))),
      found.length ? h("pre", { tabindex: 0, "aria-label": `Source excerpt of ${place}` }, ...found.map(n =>
        h("span", { class: n === line ? "here" : null }, `${String(n).padStart(4)}  ${text.get(n)}\n`))) : null);
  }

  #kernels(i) {
    const { sides } = this.view;
    const rows = [["A", sides.a], ["B", sides.b]].filter(([, m]) => m?.functions && m.functions.function[i]);
    const change = sides.changes[i];
    return h("section", { class: "kernel" }, h("h3", null, "Machine code"), rows.length
      ? [change ? h("p", null, { changed: "A and B ran different code.", same: "A and B ran the same code.", "not shown": "Too few samples to tell whether the code differs." }[change] ?? change) : null,
        facts(rows.map(([name, m]) => [h("span", null, sides.a ? `${name} ` : "", h("b", null, m.functions.code[i])),
          h("code", null, m.functions.function[i]),
          ` ${share(m.samples.share[i])} of ${fixed(m.samples.samples[i] / (m.samples.share[i] || 1), 0)} samples`])),
        ...rows.map(([name, m]) => listing(sides.a ? `${name}: ` : "", m.loops[m.functions.function[i]], m === sides.b, this.view.model.head.emulated))]
      : h("p", { class: "soft" }, "Not sampled."));
  }

  #roof(i) {
    const { sides, theme } = this.view;
    const dots = [["A", sides.a], ["B", sides.b]]
      .filter(([, m]) => m?.roofline?.gflops[i] > 0 && m.roofline.intensity[i] > 0 && known(m.roofline.roof_gflops[i]));
    const section = h("section", { class: "roof" }, h("h3", null, "Roofline"));
    if (!dots.length) {
      section.append(h("p", { class: "soft" }, "No roofline: machine peaks or operator costs are missing."));
      return section;
    }
    section.append(drawRoof(dots.map(([name, m]) => ({
      name: sides.a ? name : m.label, before: m === sides.a, peak: m.roofline.roof_gflops[i], bandwidth: m.roofline.roof_gbps[i],
      intensity: m.roofline.intensity[i], gflops: m.roofline.gflops[i],
    })), theme), facts(dots.map(([name, m]) => [sides.a ? `side ${name}` : "rate",
      `${figure(m.roofline.gflops[i])} GFLOP/s, ${known(m.roofline.roof_share[i]) ? `${share(m.roofline.roof_share[i])} of the roof` : "too short to tell its share of the roof"}; bound by ${m.bound[i]}`])));
    return section;
  }

  /** The slowest of some operators under the roof of B, numbered as in the list below. */
  #roofs(operators) {
    const { view } = this, { b, program } = view.sides, { roofline } = b;
    const slowest = roofline ? operators.filter(i => roofline.gflops[i] > 0 && roofline.intensity[i] > 0 && known(roofline.roof_share[i]))
      .sort((i, j) => b.mean_ms[j] - b.mean_ms[i]).slice(0, 10) : [];
    if (!slowest.length) return null;
    const dots = slowest.map((i, n) => ({ number: n + 1, name: program.labels[i], peak: roofline.roof_gflops[i], bandwidth: roofline.roof_gbps[i],
      intensity: roofline.intensity[i], gflops: roofline.gflops[i] }));
    const heads = ["no.", "operator", "of roof", "bound"].map((text, n) => h("th", { scope: "col", class: n === 2 ? "num" : null }, text));
    const named = i => [program.texts.module[i], view.shortName(i)].filter(Boolean).join(" · ");
    return h("section", { class: "roof" }, h("h3", null, `Roofline, slowest ${slowest.length}`), drawRoof(dots, view.theme),
      h("table", { class: "list" }, h("thead", null, h("tr", null, ...heads)), h("tbody", null, ...slowest.map((i, n) => h("tr", null,
        h("td", null, String(n + 1)), h("td", null, h("button", { type: "button", class: "link", onclick: () => view.select(i) }, named(i))),
        h("td", { class: "num" }, share(roofline.roof_share[i])), h("td", null, b.bound[i]))))));
  }

  /** Several operators, or everything that the filters leave. */
  #several() {
    const { view } = this, { sides, state, model } = view, { a, b, program } = sides;
    const operators = view.subject(true), own = operators.filter(i => program.own[i]);
    const finding = state.ops.length ? null : findingsOf(sides)[state.finding];
    const layer = state.ops.length || state.module === null ? -1 : program.tree.nodes.get(state.module)?.layer ?? -1;
    const only = [state.category, state.module !== null, finding, state.query, state.time].filter(Boolean).length;
    const title = state.ops.length ? `${state.ops.length} selected operators`
      : finding ? finding.title : layer >= 0 && only === 1 ? state.module || "model"
        : state.category && only === 1 ? state.category : view.filtered ? operatorsOf(own.length) : model.head.model;
    const longest = Math.max(...[a, b].filter(Boolean).map(m => model.sum(m, operators).mean));
    const row = (name, m) => {
      const sum = model.sum(m, operators), [time, low, high] = estimate(sum, longest);
      const part = view.filtered || state.ops.length ? `, ${share(sum.mean / m.total)}` : "";
      const ends = known(sum.low) ? h("span", { class: "soft option" }, ` [${low}, ${high}]`) : "";
      return [name, `${time}${part}`, ends];
    };
    const category = only === 1 && state.category && !state.ops.length ? sides.categories?.find(each => each.name === state.category) : null;
    const times = a ? [row("A", a), row("B", b)] : [row("mean", b)];
    const counts = {};
    for (const i of own) counts[sides.outcomes[i]] = (counts[sides.outcomes[i]] ?? 0) + 1;
    const verdicts = Object.entries(counts).filter(([name]) => name).map(([name, n]) => `${n} ${name}`).join(", ");
    return [
      h("h2", null, title),
      layer >= 0 && only === 1 ? h("p", { class: "soft" }, program.classes[layer]) : null,
      layer >= 0 && only === 1 ? facts([["depends on", sourcesOf(program, own)]]) : null,
      finding?.where ? h("p", { class: "soft" }, finding.where) : null,
      finding ? h("section", null, h("h3", null, "What to do"), h("p", null, `${finding.action}.`), command(finding.hint),
        h("p", { class: "soft" }, `Gain: ${finding.gain}`)) : null,
      category && category.outcome !== "emulated" ? h("p", null, h("strong", { class: `v-${category.outcome}` }, ratio(category.speedup, category.low, category.high)), ` ${category.outcome}`) : null,
      h("section", null, h("h3", null, "Mean time per inference"), facts(times),
        h("p", { class: "soft" }, `${own.length} of ${program.operators} operators${verdicts ? `: ${verdicts}` : ""}`)),
      view.filtered || state.ops.length ? null : this.#run(b), this.#roofs(operators),
    ];
  }

  /** About the measurement as a whole. */
  #run(b) {
    const { head } = this.view.model;
    const lines = head.quality.filter(row => row.grade !== "A")
      .map(row => h("span", { class: "line", title: `${row.limit} for an A` }, h("b", null, row.grade), ` ${row.criterion}: ${row.value}`));
    return h("section", null, h("h3", null, "Measurement"), facts([
      ["quality", ...(lines.length ? lines : ["A"])], ["shown", b.label], ["ISA level", b.isa], ["hidden features", b.hidden.join(", ")],
      ["traced inferences", `${b.inferences} in ${b.latency.restarts} process restart${b.latency.restarts === 1 ? "" : "s"}`],
      ["versions", ...Object.entries(head.versions).map(([name, version]) => h("span", { class: "line" }, `${name} ${version}`))],
    ]));
  }
}

/** Instructions with their parts of the samples in these lines; an emulator samples blocks of them. */
function listing(side, loop, open, emulated) {
  if (!loop) return null;
  const all = loop.samples.reduce((sum, n) => sum + n, 0) || 1, most = Math.max(...loop.samples, 1);
  const jump = loop.lines.at(-1).match(/0x([0-9a-f]+)$/)?.[1] === loop.lines[0].split(" ")[0];
  const title = `${side}${jump ? "hot loop" : "around the hottest instruction"}, ${loop.lines.length} instructions`;
  const part = n => loop.samples[n] ? share(loop.samples[n] / all) : "";
  return h("details", { open }, h("summary", null, title),
    h("pre", { tabindex: 0, "aria-label": `Disassembly, ${title}` }, ...loop.lines.map((line, n) => h("div", {
      style: emulated ? null : `background: color-mix(in srgb, var(--mark) ${Math.round(100 * loop.samples[n] / most)}%, transparent)`,
    }, `${emulated ? "" : part(n).padStart(6)}  ${line.slice(line.indexOf(" ") + 1)}`))));
}

/** The inputs and buffers that some operators depend on. */
function sourcesOf(program, operators) {
  const all = new Set(operators.flatMap(i => program.texts.depends?.[i]?.split(", ") ?? []));
  if (all.size > 1) all.delete("constants alone");
  return [...all].join(", ");
}

function command(text) {
  if (!text) return null;
  const copy = h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); }
  } }, "Copy");
  const code = h("pre", { tabindex: 0, "aria-label": "Command" }, text);
  return h("div", { class: "command" }, code, copy);
}

