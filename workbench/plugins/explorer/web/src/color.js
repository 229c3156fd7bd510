// Colours. Those of categories are for categories alone; faster and slower have their own pair.

/** By category, in the order of every legend; the document of a run brings them. */
export const CATEGORIES = {};
const THEMES = {
  light: { ink: "#1b1f24", soft: "#57606a", line: "#d5dae0", panel: "#ffffff", neutral: "#e4e7eb", faded: "#f1f3f5",
           frame: "#cfd5dc", accent: "#b42318", faster: "#2455C3", slower: "#D95F0E", time: "#5b2a86", roof: "#0f6b60" },
  dark: { ink: "#e6e9ee", soft: "#9aa4b1", line: "#333b46", panel: "#171b21", neutral: "#39424e", faded: "#20262e",
          frame: "#4a5563", accent: "#ff8a75", faster: "#7ea2ff", slower: "#ff9a57", time: "#c39af0", roof: "#5fd0bf" },
};
const CONFIDENCE = { exact: 1, fitted: 0.7, ambiguous: 0.35, unattributed: 0 };

export const COLORINGS = {
  category: "category", speedup: "speed-up", time: "time", roof: "share of the roof", confidence: "confidence",
};

const parse = color => [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));

/** A colour between two, at a part from 0 to 1. */
export function mix(from, to, part) {
  const [a, b] = [parse(from), parse(to)];
  const hex = a.map((value, i) => Math.round(value + (b[i] - value) * part).toString(16).padStart(2, "0"));
  return `#${hex.join("")}`;
}

/** Dark or white ink, whichever has more contrast with a colour. */
export function inkOn(color) {
  const [r, g, b] = parse(color).map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

export const themeOf = dark => THEMES[dark ? "dark" : "light"];

/** The colour of an operator or module; `datum` has category, part of the largest time, speed-up ... */
export function colorOf(coloring, datum, theme) {
  switch (coloring) {
    case "category": return CATEGORIES[datum.category] ?? theme.neutral;
    case "time": return mix(theme.neutral, theme.time, Math.sqrt(Math.min(1, Math.max(0, datum.part || 0))));
    case "roof": return datum.roof === null || datum.roof === undefined ? theme.neutral
      : mix(theme.neutral, theme.roof, Math.min(1, datum.roof));
    case "confidence": return mix(theme.neutral, theme.time, CONFIDENCE[datum.confidence] ?? 0);
    default: {
      if (!["faster", "slower"].includes(datum.outcome)) return theme.neutral;
      const size = Math.min(1, Math.abs(Math.log2(datum.speedup)));
      return mix(theme.neutral, datum.speedup > 1 ? theme.faster : theme.slower, 0.25 + 0.75 * size);
    }
  }
}

/** What the colours of a colouring say: pairs of text and colour. */
export function legendOf(coloring, theme) {
  const steps = (name, at) => at.map(part => [`${Math.round(100 * part)} %`, colorOf("roof", { roof: part }, theme)]);
  switch (coloring) {
    case "category": return Object.entries(CATEGORIES);
    case "time": return [["little", colorOf("time", { part: 0.02 }, theme)], ["most time", colorOf("time", { part: 1 }, theme)]];
    case "roof": return [...steps("roof", [0.1, 0.5, 1]), ["unknown", theme.neutral]];
    case "confidence": return Object.keys(CONFIDENCE).map(name => [name, colorOf("confidence", { confidence: name }, theme)]);
    default: return [["2x slower", theme.slower], ["no difference shown", theme.neutral], ["2x faster", theme.faster]];
  }
}
