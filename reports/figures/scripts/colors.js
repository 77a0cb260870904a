// Colours of the style sheet, and which of them a class, a series or a kind of bar has.

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

const OUTLINED = { control: "grey", twin: "grey", implausible: "vermilion" };

const FILLS = {
  equivalent: "blue", reference: "blue", "within-bound": "blue",
  "not-equivalent": "vermilion", "beyond-bound": "vermilion",
  statistical: "purple", undecidable: "grey", "not-checked": "grey",
  payload: "grey", tcp: "blue", interface: "sky",
  compute: "blue", exposed: "amber", unsplit: "grey",
  transfer: "amber", host: "vermilion", wait: "purple", rest: "grey",
  resident: "sky", variables: "blue",
};

const color = (name) => `var(--${name})`;
