// Colours of the style sheet and of lines. The symbols and colours of marks, MARKS, are written in by the page.

const INK = "var(--ink)";
const SOFT = "var(--soft)";
const LINE_COLORS = ["blue", "vermilion", "green", "purple", "amber", "sky", "grey", "ink"];
const LINE_TYPES = ["solid", "dashed", "dotted", [8, 3, 2, 3]];
const SYMBOLS = ["circle", "rect", "triangle", "diamond"];

const color = (name) => `var(--${name})`;
