// Files of what is shown and selected.

import { h } from "./dom.js";

const quote = value => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
// A spreadsheet would run a text that begins like a formula.
const cell = value => quote(typeof value === "string" && /^[=+\-@\t]/.test(value) ? `'${value}` : value);
const escaped = value => String(typeof value === "number" ? +value.toFixed(6) : value).replace(/([|\\`*_[\]<>])/g, "\\$1").replace(/\s+/g, " ");

export const toCSV = rows => rows.map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";

export const toMarkdown = ([heads, ...rows]) =>
  [heads, heads.map(() => "---"), ...rows].map((row, n) => `| ${row.map(n === 1 ? String : escaped).join(" | ")} |`).join("\n") + "\n";

export class Menu {
  constructor(view) {
    this.view = view;
    const item = (text, act) => h("button", { type: "button", role: "menuitem", tabindex: -1, onclick: () => { this.close(); act(); } }, text);
    const { perfetto } = view.model.head;
    this.items = [
      item("Chart as PNG", () => this.#png()), item("Chart as SVG", () => this.#save("svg", view.chart().toSVG(), "image/svg+xml")),
      item("Timeline as SVG", () => this.#save("timeline.svg", view.timeline.toSVG(), "image/svg+xml")),
      item("Operators as CSV", () => this.#save("csv", toCSV(view.table.rows()), "text/csv")),
      item("Operators as Markdown", () => this.#save("md", toMarkdown(view.table.rows()), "text/markdown")),
      ...(perfetto && !view.embedded ? [h("a", { role: "menuitem", tabindex: -1, href: encodeURIComponent(perfetto), download: perfetto }, "Perfetto trace")] : []),
    ];
    this.button = h("button", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => this.list.hidden ? this.open() : this.close() }, "Save as ▾");
    this.list = h("div", { role: "menu", "aria-label": "Save as", class: "menu", hidden: true }, ...this.items);
    this.root = h("div", { class: "menu-root" }, this.button, this.list);
    this.root.addEventListener("keydown", event => this.#key(event));
    this.root.addEventListener("focusout", event => { if (!this.root.contains(event.relatedTarget)) this.close(); });
  }

  open() {
    this.list.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.items[0].focus();
  }

  close() {
    this.list.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
  }

  #key(event) {
    if (this.list.hidden) return;
    const at = this.items.indexOf(document.activeElement), step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.items[(at + step + this.items.length) % this.items.length].focus();
    else if (event.key === "Escape") { this.close(); this.button.focus(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async #png() {
    const text = this.view.chart().toSVG();
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const scale = Math.min(2, 16000 / Math.max(image.width, image.height));
    const canvas = h("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
    const context = canvas.getContext("2d");
    context.fillStyle = this.view.theme.panel;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => this.#save("png", blob, "image/png"));
  }

  #save(ending, content, type) {
    const blob = content instanceof Blob ? content : new Blob([content], { type });
    const address = URL.createObjectURL(blob);
    const name = this.view.model.head.model.replace(/[^\w.-]+/g, "_");
    const link = h("a", { href: address, download: `${name}.${ending}` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}
