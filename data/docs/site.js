// An embedded explorer tells how high its view is; one that is higher than the window scrolls.
addEventListener("message", event => {
  const frame = [...document.querySelectorAll("iframe")].find(each => each.contentWindow === event.source);
  const height = Number(event.data?.explorerHeight);
  if (frame && height > 0) frame.style.height = `${Math.round(Math.min(height + 8, 0.9 * innerHeight))}px`;
});
// The theme leaves headings without a level, side bars without a name, and what scrolls without the keyboard.
addEventListener("DOMContentLoaded", () => {
  const set = (selector, name, value) =>
    document.querySelectorAll(selector).forEach(each => each.setAttribute(name, value));
  set("p.caption[role=heading]", "aria-level", "2");
  set(".sidebar-drawer", "aria-label", "Pages");
  set(".toc-drawer", "aria-label", "Contents of this page");
  set("pre, .table-wrapper", "tabindex", "0");
  // An option such as --no-evidence would break at its hyphens.
  for (const code of document.querySelectorAll(":not(pre) > code"))
    if (code.textContent.length < 25) code.style.whiteSpace = "nowrap";
});
