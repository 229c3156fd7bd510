// Elements; texts are set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** A text with the parts that match a search marked. */
export function marked(text, query) {
  const at = query ? text.toLowerCase().indexOf(query.toLowerCase()) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), h("mark", null, text.slice(at, at + query.length)), text.slice(at + query.length)];
}

const ARROWS = { w: "ArrowUp", a: "ArrowLeft", s: "ArrowDown", d: "ArrowRight" };

/** The key of an event; W, A, S and D are arrows. */
export const keyOf = ({ key, ctrlKey, metaKey, altKey }) =>
  ctrlKey || metaKey || altKey ? key : ARROWS[key.toLowerCase()] ?? key;

/** Where on a canvas or element an event happened, in CSS pixels. */
export function pointIn(element, event) {
  const box = element.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
