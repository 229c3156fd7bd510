// Tables sort by a column when its head is clicked or entered by keyboard; commands can be copied.

const numberOf = text => {
  const found = text.replace(/[\s\u2009,<]/g, "").match(/^[+\u2212-]?[\d.]+(?:e[+-]?\d+)?/i);
  return found ? parseFloat(found[0].replace("\u2212", "-")) : NaN;
};

function sortBy(table, head, column) {
  const down = head.getAttribute("aria-sort") === "ascending";
  const body = table.tBodies[0];
  const rows = [...body.rows].map(row => [row.cells[column].textContent.trim(), row]);
  const known = rows.filter(([text]) => text && text !== "\u2013");
  const numeric = known.every(([text]) => !Number.isNaN(numberOf(text)));
  const compare = numeric
    ? ([a], [b]) => numberOf(a) - numberOf(b)
    : ([a], [b]) => a.localeCompare(b, "en", { numeric: true });
  known.sort((a, b) => (down ? -1 : 1) * compare(a, b));
  // What is missing stays at the end, whichever way.
  body.append(...known.map(([, row]) => row),
              ...rows.filter(entry => !known.includes(entry)).map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table")) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.title ||= "sort"; // or what the column means, which it says already
    head.style.cursor = "pointer";
    const sort = () => sortBy(table, head, column);
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}

// A browser would break lines after the hyphens of arrows and options.
const texts = document.createTreeWalker(document.querySelector("main") ?? document.body, NodeFilter.SHOW_TEXT);
const hyphened = [];
while (texts.nextNode()) {
  if (/->|-[-a-z]/.test(texts.currentNode.data) && !texts.currentNode.parentNode.closest("script, style"))
    hyphened.push(texts.currentNode);
}
for (const text of hyphened) {
  const parts = text.data.split(/(->|(?<![^\s([`'"])--?[a-z][\w-]{0,23}(?![\w-]))/);
  const wrap = part => Object.assign(document.createElement("span"), { className: "whole", textContent: part });
  text.replaceWith(...parts.map((part, place) => (place % 2 ? wrap(part) : part)));
}

for (const shown of document.querySelectorAll("pre")) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(shown.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
  shown.after(button);
}

// Of the contents, the section that is read is marked.
const links = [...document.querySelectorAll("nav a")];
function follow() {
  const above = link => document.getElementById(link.hash.slice(1))?.getBoundingClientRect().top < innerHeight / 3;
  const end = scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  const current = end ? links.at(-1) : links.findLast(above);
  for (const link of links) link.setAttribute("aria-current", String(link === current));
}
addEventListener("scroll", follow, { passive: true });
follow();

// What does not fit scrolls, also by keyboard.
const watch = new ResizeObserver(entries => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of document.querySelectorAll(".output")) watch.observe(box);

// A link to a section opens it; on paper, sections are open.
function reveal() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
  if (found) found.open = true;
}
addEventListener("hashchange", reveal);
document.addEventListener("click", event => event.target.closest("a[href^='#']") && setTimeout(reveal));
reveal();
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details.section")) folded.open = true;
});
