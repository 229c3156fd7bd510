// The table of a portfolio shows the rows that have all words typed and all values chosen.

const words = document.getElementById("words");
const selects = [...document.querySelectorAll("#filters select")];
const lines = [...document.querySelectorAll("#measurements tbody tr")];

function filterRows() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const line of lines) {
    const text = line.textContent.toLowerCase();
    line.hidden = !wanted.every(word => text.includes(word)) ||
      !selects.every(({ value, dataset }) => !value || line.dataset[dataset.axis] === value);
  }
  const shown = lines.filter(line => !line.hidden).length;
  document.getElementById("count").textContent = `${shown} of ${lines.length} rows`;
}

for (const control of [words, ...selects]) control.addEventListener("input", filterRows);
filterRows();
