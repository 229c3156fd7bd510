// An embedded explorer tells how high its view is; one that is higher than the window scrolls.
addEventListener("message", event => {
  const frame = [...document.querySelectorAll("iframe")].find(each => each.contentWindow === event.source);
  const height = Number(event.data?.explorerHeight);
  if (frame && height > 0) frame.style.height = `${Math.round(Math.min(height + 8, 0.9 * innerHeight))}px`;
});
