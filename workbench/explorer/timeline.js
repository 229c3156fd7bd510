// The trace timeline: one canvas, in a notebook as a widget and in a report from its own bytes.
// timeline.py packs what it draws; texts are set as text, never as HTML.

const ROW = 20, HEAD = 22, RULER = 34, CARD = 360;
const FRAME_COLOR = "#D4D4D4", INK = "#222222", FAINT = "#6B6B6B", MARK = "#C8401F";
const HELP = "drag: pan · wheel, W S: zoom · A D: move · shift+drag: measure · 0: one run · " +
             "9: everything · /: search · N: next match · Esc: clear";

// ---- data ----------------------------------------------------------------------------------

async function unpack(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  let at = 4 + size;
  const take = (type, count) => {
    const part = bytes.slice(at, at += count * type.BYTES_PER_ELEMENT);
    return new type(part.buffer);
  };
  const tracks = header.tracks.map(track => place(header, {
    ...track,
    duration: take(Uint32Array, track.spans),
    gap: take(Int32Array, track.spans),
    key: take(Uint32Array, track.spans),
    depth: take(Uint8Array, track.spans),
  }));
  return { header, tracks };
}

// Starts from gaps; what each span takes alone; where each run begins; how deep it goes.
function place(header, track) {
  const { duration, gap, depth, spans } = track;
  const start = new Float64Array(spans), own = new Float64Array(spans);
  const first = new Uint32Array(track.runs + 1);
  const next = [], open = [];
  let run = -1, deepest = 0;
  for (let i = 0; i < spans; i++) {
    const d = depth[i], length = duration[i] * header.tick_ns;
    if (d === 0) { first[++run] = i; next[0] = header.offsets_ns[run]; }
    start[i] = next[d] + gap[i] * header.tick_ns;
    next[d] = start[i] + length;
    next[d + 1] = start[i];
    own[i] = length;
    open[d] = i;
    if (d > 0) own[open[d - 1]] -= length;
    if (d > deepest) deepest = d;
  }
  first[track.runs] = spans;
  return { ...track, start, own, first, rows: deepest + 1 };
}

// The last index whose value is not above x; values ascend.
function find(values, x) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

function formatTime(ns) {
  const size = Math.abs(ns);
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"]
    : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const value = ns / unit, whole = Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return `${value.toFixed(unit === 1 ? 0 : Math.max(0, 4 - whole))} ${name}`;
}

// A round time on the axis, as short as it can be said.
const formatTick = ns => formatTime(ns).replace(/(\.\d*?)0+(?= )/, "$1").replace(". ", " ");

const formatShare = part => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

const legend = keys => new Map(keys.filter(k => k.category).map(k => [k.category, k.color]));

// ---- the view ------------------------------------------------------------------------------

function element(tag, parent, style = "", text = "") {
  const made = document.createElement(tag);
  made.style.cssText = style;
  made.textContent = text;
  parent.append(made);
  return made;
}

export async function drawTimeline(root, packed, onSelect = () => {}) {
  const { header, tracks } = await unpack(packed);
  const { keys, offsets_ns: offsets } = header;
  const end = offsets[offsets.length - 1];
  const heights = tracks.map(track => HEAD + track.rows * ROW);
  const height = RULER + heights.reduce((sum, part) => sum + part + 8, 0);
  root.replaceChildren();
  const frame = element("div", root, "position:relative;background:#fff;color:#222;" +
    "font:12px system-ui,sans-serif;border:1px solid #d8dee4;border-radius:6px;padding:6px");
  const bar = element("div", frame, "display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;margin-bottom:4px");
  const search = element("input", bar, "flex:0 0 16rem;font:inherit;padding:2px 6px");
  search.type = "search";
  search.placeholder = "operator, layer, category, kernel";
  search.setAttribute("aria-label", "search");
  const status = element("div", frame, "color:#59636e;min-height:1.5em;margin:0 2px 4px");
  status.setAttribute("role", "status");
  for (const [category, color] of legend(keys)) {
    const chip = element("button", bar, "all:unset;cursor:pointer;white-space:nowrap;color:#59636e;" +
      `border-left:10px solid ${color};padding-left:4px`, category);
    chip.title = `find ${category}`;
    chip.addEventListener("click", () => { search.value = category; look(); });
  }
  const canvas = element("canvas", frame, `display:block;width:100%;height:${height}px;` +
    "touch-action:none;outline-offset:2px");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Timeline of ${tracks.map(t => t.label).join(" and ")}. ${HELP}`);
  element("div", frame, "color:#59636e;font-size:11px;margin-top:3px", HELP);
  const card = element("div", frame, `position:absolute;display:none;pointer-events:none;z-index:5;` +
    `max-width:${CARD}px;background:#fff;border:1px solid #999;border-radius:6px;padding:6px 9px;` +
    "box-shadow:0 2px 8px #0003;line-height:1.45;overflow-wrap:anywhere");
  const pen = canvas.getContext("2d");

  const view = { from: 0, to: 1 };
  let width = 0, hover = null, chosen = null, range = null, matches = null, asked = false;

  const x = time => (time - view.from) / (view.to - view.from) * width;
  const time = px => view.from + px / width * (view.to - view.from);
  const run = number => [offsets[number], number + 1 < offsets.length ? offsets[number + 1] : end];

  function show(from, to) {
    const span = Math.min(Math.max(to - from, 100), 1.05 * end);
    const middle = Math.min(Math.max((from + to) / 2, 0), end);
    view.from = middle - span / 2;
    view.to = middle + span / 2;
    hover = null;
    card.style.display = "none";
    draw();
  }

  function showRun(number) {
    const [from, to] = run(number);
    show(from - 0.01 * (to - from), to);
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  // The spans of a track that may be in sight, as a range of indices: whole runs.
  function visible(track) {
    const first = Math.min(find(offsets, view.from), track.runs);
    const last = Math.min(find(offsets, view.to), track.runs - 1);
    return [track.first[first], last < first ? track.first[first] : track.first[last + 1]];
  }

  function colorOf(span, track) {
    const info = keys[track.key[span]];
    return info.color || FRAME_COLOR;
  }

  function paint() {
    const ratio = window.devicePixelRatio || 1;
    const wide = Math.max(200, canvas.clientWidth);
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(height * ratio);
    }
    width = wide;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    paintRuler();
    let top = RULER;
    tracks.forEach((track, number) => {
      pen.fillStyle = INK;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(track.label, 4, top + 15);
      paintTrack(track, top + HEAD);
      track.top = top + HEAD;
      top += heights[number] + 8;
    });
    if (range) {
      pen.fillStyle = "#0b5cad22";
      pen.fillRect(x(range[0]), RULER, x(range[1]) - x(range[0]), height - RULER);
    }
    // For whoever measures: since the page was asked for.
    frame.dataset.firstMs ||= performance.now().toFixed(1);
    frame.dataset.view = `${view.from.toFixed(0)} ${view.to.toFixed(0)}`;
  }

  function paintRuler() {
    const [start] = run(Math.max(0, Math.min(find(offsets, view.from + (view.to - view.from) / 50),
      offsets.length - 2)));
    const rough = (view.to - view.from) / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(times => times * power >= rough);
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = "#E6E6E6";
    pen.fillStyle = FAINT;
    const few = find(offsets, view.to) - find(offsets, view.from) < 3;
    // Close up, times count from the beginning of the run in sight.
    const origin = few ? start : 0;
    for (let k = Math.ceil((view.from - origin) / step); origin + k * step < view.to; k++) {
      const at = x(origin + k * step);
      pen.beginPath(); pen.moveTo(at, 2); pen.lineTo(at, height); pen.stroke();
      if (k >= 0) pen.fillText(formatTick(k * step), at + 3, 12);
    }
    const first = find(offsets, view.from), last = find(offsets, view.to);
    if (last - first > width / 40) return;
    pen.strokeStyle = "#999";
    for (let number = Math.max(0, first); number <= Math.min(last, offsets.length - 2); number++) {
      const at = x(offsets[number]);
      if (at < -60) continue;
      pen.beginPath(); pen.moveTo(at, 18); pen.lineTo(at, height); pen.stroke();
      pen.fillText(`run ${number}`, at + 3, 28);
    }
  }

  function paintTrack(track, top) {
    const [from, to] = visible(track);
    const scale = width / (view.to - view.from);
    const { start, duration, depth, key } = track;
    const tick = header.tick_ns;
    // Spans narrower than a pixel share it: the one that takes most of it gives the colour.
    const pixel = new Int32Array(track.rows).fill(-1);
    const widest = new Float64Array(track.rows), owner = new Int32Array(track.rows).fill(-1);
    let filled = "";
    const fill = (left, row, w, color, faded) => {
      const style = faded ? "#EEEEEE" : color;
      if (style !== filled) pen.fillStyle = filled = style;
      pen.fillRect(left, top + row * ROW, w, ROW - 2);
    };
    const flush = row => {
      const span = owner[row];
      if (span >= 0) fill(pixel[row], row, 1, colorOf(span, track), faded(key[span]));
      owner[row] = -1;
      widest[row] = 0;
    };
    const labels = [];
    for (let i = from; i < to; i++) {
      const left = (start[i] - view.from) * scale, w = duration[i] * tick * scale;
      if (left + w < 0 || left > width) continue;
      const row = depth[i];
      if (w < 1) {
        const at = Math.floor(left);
        if (at !== pixel[row]) { flush(row); pixel[row] = at; }
        if (w >= widest[row]) { widest[row] = w; owner[row] = i; }
        continue;
      }
      flush(row);
      const begin = Math.max(left, 0), shown = Math.min(left + w, width) - begin;
      fill(begin, row, w > 3 ? shown - 0.5 : shown, colorOf(i, track), faded(key[i]));
      if (shown > 34) labels.push([i, begin, shown]);
    }
    for (let row = 0; row < track.rows; row++) flush(row);
    pen.font = "11px system-ui, sans-serif";
    for (const [i, left, room] of labels) paintLabel(track, i, left, room, top);
    for (const mark of [hover, chosen]) {
      if (!mark || mark.track !== track) continue;
      pen.strokeStyle = mark === chosen ? MARK : INK;
      pen.lineWidth = 1.5;
      pen.strokeRect(x(start[mark.span]), top + depth[mark.span] * ROW,
        Math.max(2, duration[mark.span] * tick * scale), ROW - 2);
      pen.lineWidth = 1;
    }
  }

  const faded = key => matches !== null && !matches.has(key);

  function paintLabel(track, span, left, room, top) {
    const info = keys[track.key[span]];
    pen.fillStyle = faded(track.key[span]) ? FAINT : info.ink || INK;
    pen.save();
    pen.beginPath();
    pen.rect(left, top + track.depth[span] * ROW, room - 3, ROW);
    pen.clip();
    pen.fillText(labelOf(info, track), left + 3, top + track.depth[span] * ROW + 13);
    pen.restore();
  }

  const nameOf = (info, track) => info.names[tracks.indexOf(track)] || info.names.find(n => n) || "";
  // The label of an operator, layer first; other spans have names only.
  const labelOf = (info, track) => info.label || nameOf(info, track);

  // ---- pointing, measuring, searching -------------------------------------------------------

  function hit(px, py) {
    for (const track of tracks) {
      const row = Math.floor((py - track.top) / ROW);
      if (row < 0 || row >= track.rows) continue;
      const at = time(px), slack = 1.5 * (view.to - view.from) / width;
      const number = find(offsets, at);
      if (number >= track.runs) return null;
      let best = null, distance = slack;
      for (let i = track.first[number]; i < track.first[number + 1]; i++) {
        if (track.depth[i] !== row) continue;
        const stop = track.start[i] + track.duration[i] * header.tick_ns;
        const away = Math.max(track.start[i] - at, at - stop, 0);
        if (away < distance || (away === 0 && best === null)) { best = i; distance = away; }
      }
      return best === null ? null : { track, span: best, run: number };
    }
    return null;
  }

  function describe({ track, span, run: number }) {
    const info = keys[track.key[span]];
    const length = track.duration[span] * header.tick_ns;
    const line = (text, style = "") => element("div", card, style, text);
    card.replaceChildren();
    line(labelOf(info, track), "font-weight:600");
    if (info.label) line(nameOf(info, track), "color:#59636e");
    const synthetic = info.synthetic ? ", start synthetic" : "";
    line(`${track.label}, run ${number}: ${formatTime(length)}${synthetic}`);
    const alone = track.own[span];
    if (alone !== length) line(`of which its own: ${formatTime(alone)}`);
    tracks.forEach((other, place) => {
      const mean = info.mean_ns[place];
      if (mean === null) return;
      const name = info.names[place];
      const kernel = name && name !== nameOf(info, track) ? ` as ${name}` : "";
      line(`mean of ${other.runs} runs, ${other.label}: ${formatTime(mean)}${kernel}`, "color:#59636e");
    });
    if (info.category) line(info.category, `border-left:10px solid ${info.color};padding-left:5px`);
    for (const name of ["module_class", "source", "shapes", "kernel"])
      if (info[name]) line(`${name.replace("module_", "")}: ${info[name]}`);
    if (header.note) line(header.note, `color:${MARK}`);
  }

  function point(px, py) {
    hover = hit(px, py);
    card.style.display = hover ? "block" : "none";
    if (hover) {
      describe(hover);
      const left = Math.min(px + 14, width - Math.min(CARD, card.offsetWidth) - 4);
      card.style.left = `${Math.max(2, left)}px`;
      card.style.top = `${canvas.offsetTop + py + 16}px`;
    }
    draw();
  }

  // Own times of the spans that begin in the range, by category.
  function measure() {
    const lines = tracks.map(track => {
      const sums = new Map();
      let total = 0;
      const from = track.first[Math.min(find(offsets, range[0]), track.runs)];
      for (let i = from; i < track.spans; i++) {
        if (track.depth[i] === 0 && track.start[i] > range[1]) break;
        if (track.start[i] < range[0] || track.start[i] >= range[1]) continue;
        const name = keys[track.key[i]].category || "calls and overhead";
        sums.set(name, (sums.get(name) || 0) + track.own[i]);
        total += track.own[i];
      }
      const parts = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 3)
        .map(([name, sum]) => `${name} ${formatShare(sum / total)}`);
      return `${track.label}: ${formatTime(total)}${parts.length ? ` (${parts.join(", ")})` : ""}`;
    });
    status.textContent = `${formatTime(range[1] - range[0])} · ${lines.join(" · ")}`;
  }

  function look() {
    const words = search.value.trim().toLowerCase();
    range = null;
    if (!words) {
      matches = null;
      status.textContent = header.note;
    } else {
      const found = keys.map((info, number) => [number, info]).filter(([, info]) =>
        [...info.names, info.category, info.module, info.module_class, info.source, info.kernel]
          .some(text => text && text.toLowerCase().includes(words)));
      matches = new Set(found.map(([number]) => number));
      const lines = tracks.map(track => {
        let sum = 0, total = 0;
        for (let i = 0; i < track.spans; i++) {
          total += track.own[i];
          if (matches.has(track.key[i])) sum += track.own[i];
        }
        return `${track.label}: ${formatShare(total ? sum / total : 0)} of the time`;
      });
      status.textContent = `${found.length} found · ${lines.join(" · ")}`;
    }
    draw();
  }

  function next() {
    if (!matches || !matches.size) return;
    const track = chosen ? chosen.track : tracks[tracks.length - 1];
    const after = chosen ? chosen.span : track.first[Math.min(find(offsets, view.from), track.runs)] - 1;
    for (let step = 1; step <= track.spans; step++) {
      const i = (after + step) % track.spans;
      if (!matches.has(track.key[i])) continue;
      choose({ track, span: i, run: find(offsets, track.start[i]) });
      const middle = track.start[i] + track.duration[i] * header.tick_ns / 2;
      const half = Math.min((view.to - view.from) / 2, 50 * track.duration[i] * header.tick_ns + 1e4);
      return show(middle - half, middle + half);
    }
  }

  function choose(mark) {
    chosen = mark;
    onSelect(mark ? keys[mark.track.key[mark.span]].key : "");
    draw();
  }

  function zoom(factor, px = width / 2) {
    const at = time(px);
    const span = Math.min(Math.max((view.to - view.from) * factor, 100), 1.05 * end);
    const from = at - px / width * span;
    show(from, from + span);
  }

  const move = part => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  const clear = () => { search.value = ""; range = null; choose(null); look(); };

  // ---- events --------------------------------------------------------------------------------

  let drag = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / width);
    else zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) / 400), event.offsetX);
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    drag = { px: event.offsetX, from: view.from, to: view.to, moved: false, measure: event.shiftKey };
  });
  canvas.addEventListener("pointermove", event => {
    if (!drag) return point(event.offsetX, event.offsetY);
    const by = event.offsetX - drag.px;
    if (Math.abs(by) > 3) drag.moved = true;
    if (!drag.moved) return;
    card.style.display = "none";
    if (drag.measure) {
      range = [time(Math.min(drag.px, event.offsetX)), time(Math.max(drag.px, event.offsetX))];
      measure();
      return draw();
    }
    const shift = by / width * (drag.to - drag.from);
    show(drag.from - shift, drag.to - shift);
  });
  canvas.addEventListener("pointerup", event => {
    if (drag && !drag.moved) choose(hit(event.offsetX, event.offsetY));
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { hover = null; card.style.display = "none"; draw(); });
  const actions = {
    w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => move(-0.2), d: () => move(0.2),
    ArrowUp: () => zoom(0.7), ArrowDown: () => zoom(1 / 0.7),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
    0: () => showRun(header.first_run), 9: () => show(-0.01 * end, end), "/": () => search.focus(),
    n: next, Escape: clear,
  };
  canvas.addEventListener("keydown", event => {
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  });
  search.addEventListener("input", look);
  search.addEventListener("keydown", event => {
    event.stopPropagation();
    if (event.key === "Enter") { next(); canvas.focus({ preventScroll: true }); }
    if (event.key === "Escape") { clear(); canvas.focus({ preventScroll: true }); }
  });
  // At once: what waits for the next frame is stretched in this one.
  const observer = new ResizeObserver(paint);
  observer.observe(canvas);

  status.textContent = header.note;
  width = Math.max(200, canvas.clientWidth);
  showRun(header.first_run);
  frame.dataset.ready = "1";
  return () => observer.disconnect();
}

// ---- where it lives ------------------------------------------------------------------------

function toBytes(value) {
  return value instanceof DataView
    ? new Uint8Array(value.buffer, value.byteOffset, value.byteLength) : new Uint8Array(value);
}

function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const select = key => { model.set("selected", key); model.save_changes(); };
  let stop = drawTimeline(root, toBytes(model.get("packed")), select);
  const again = async () => {
    (await stop)();
    stop = drawTimeline(root, toBytes(model.get("packed")), select);
  };
  model.on("change:packed", again);
  return async () => { model.off("change:packed", again); (await stop)(); };
}

// In a page of its own: every element that carries packed bytes.
export function drawAll(page) {
  for (const holder of page.querySelectorAll(".trace-timeline")) {
    const text = holder.querySelector("script").textContent.trim();
    const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
    drawTimeline(holder, bytes);
  }
}

export default { render };
