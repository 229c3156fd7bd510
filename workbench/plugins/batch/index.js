// The table of a portfolio shows the rows that have all words typed and all values chosen.

const words = document.getElementById("words");
const selects = [...document.querySelectorAll("#filters select")];
const lines = [...document.querySelectorAll("#measurements tbody tr")];

const all = document.getElementById("all");
const opened = new Set();

function filterRows() {
  document.getElementById("measurements").classList.toggle("few", !all.checked);
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const line of lines) {
    const text = line.textContent.toLowerCase();
    line.hidden = !wanted.every(word => text.includes(word)) ||
      !all.checked && "more" in line.dataset && !opened.has(line.dataset.cell) ||
      !selects.every(({ value, dataset }) => !value || line.dataset[dataset.axis] === value);
  }
  const shown = lines.filter(line => !line.hidden).length;
  document.getElementById("count").textContent = shown ? `${shown} of ${lines.length} rows` : `no row of ${lines.length} has all of this`;
}

// On a phone, cells have their heads before them.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells].map(head => head.textContent);
  for (const { cells } of table.tBodies[0].rows) [...cells].forEach((cell, i) => { cell.dataset.head = heads[i]; });
}

// The other measurements of a cell open below its row.
for (const button of document.querySelectorAll("[data-opens]")) {
  button.addEventListener("click", () => {
    const { opens } = button.dataset, shows = !opened.has(opens);
    shows ? opened.add(opens) : opened.delete(opens);
    button.setAttribute("aria-expanded", String(shows));
    filterRows();
  });
}

for (const control of [words, ...selects, all]) control.addEventListener("input", filterRows);
filterRows();
