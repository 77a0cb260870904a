// Colours of the style sheet, and those of marks and lines.

const INK = "var(--ink)";
const SOFT = "var(--soft)";
const LINE_COLORS = ["blue", "vermilion", "green", "purple", "amber", "sky", "grey", "ink"];
const LINE_TYPES = ["solid", "dashed", "dotted", [8, 3, 2, 3]];
const SYMBOLS = ["circle", "rect", "triangle", "diamond"];

const MARKS = {
  equivalent: ["✓", "blue"],
  reference: ["✓", "blue"],
  "within-bound": ["≈", "blue"],
  "not-equivalent": ["✗", "vermilion"],
  "beyond-bound": ["✗", "vermilion"],
  statistical: ["~", "purple"],
  control: ["○", "soft"],
  twin: ["○", "soft"],
  undecidable: ["?", "soft"],
  "not-checked": ["?", "soft"],
  implausible: ["!", "vermilion"],
};

const color = (name) => `var(--${name})`;
