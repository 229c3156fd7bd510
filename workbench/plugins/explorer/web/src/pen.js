// One set of drawing calls for two outputs: a canvas on the screen, and an SVG file.

const FONT = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";
const escape = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));
let measuring = null;

/** How wide a text is in the font of all charts. */
export function widthOf(text) {
  measuring ??= Object.assign(document.createElement("canvas").getContext("2d"), { font: FONT });
  return measuring.measureText(text).width;
}

export function canvasPen(canvas, width, height, background) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = background;
  context.fillRect(0, 0, width, height);
  context.font = FONT;
  return {
    rect(x, y, w, h, color) { context.fillStyle = color; context.fillRect(x, y, w, h); },
    outline(x, y, w, h, color, line = 1.5) {
      Object.assign(context, { strokeStyle: color, lineWidth: line });
      context.strokeRect(x, y, w, h);
    },
    line(x1, y1, x2, y2, color) {
      Object.assign(context, { strokeStyle: color, lineWidth: 1 });
      context.beginPath(); context.moveTo(x1, y1); context.lineTo(x2, y2); context.stroke();
    },
    shape(points, color) {
      context.fillStyle = color;
      context.beginPath(); points.forEach(([x, y]) => context.lineTo(x, y)); context.fill();
    },
    text(text, x, y, color) { context.fillStyle = color; context.fillText(text, x, y); },
  };
}

export function svgPen(width, height, background) {
  const parts = [`<rect width="${width}" height="${height}" fill="${background}"/>`];
  const n = value => Math.round(value * 100) / 100;
  return {
    rect(x, y, w, h, color) { parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${color}"/>`); },
    outline(x, y, w, h, color, line = 1.5) {
      parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="none" stroke="${color}" stroke-width="${line}"/>`);
    },
    line(x1, y1, x2, y2, color) { parts.push(`<line x1="${n(x1)}" y1="${n(y1)}" x2="${n(x2)}" y2="${n(y2)}" stroke="${color}"/>`); },
    shape(points, color) { parts.push(`<polygon points="${points.map(p => p.map(n).join()).join(" ")}" fill="${color}"/>`); },
    text(text, x, y, color) { parts.push(`<text x="${n(x)}" y="${n(y)}" fill="${color}">${escape(text)}</text>`); },
    toString: () => `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="system-ui, sans-serif" font-size="11">${parts.join("")}</svg>\n`,
  };
}
