// Names of strategies, with their marks and with what stands after them, as rich text.

const LINE = 16;

// That of the page: quotes in a list of fonts would end the attributes that ECharts writes it to.
const FONT = "inherit";

const escaped = (text) =>
  String(text).replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

// Names of strategies differ at their ends, by their parameters: they lose their middle.
const clipped = (name, most) => {
  const letters = [...name.replace(/\s+/g, " ")];
  const last = Math.floor((most - 1) / 2);
  return letters.length <= most ? letters.join("")
    : `${letters.slice(0, most - 1 - last).join("")}…${letters.slice(-last).join("")}`;
};

// Braces and bars are the markup of rich text.
const literal = (text) => text.replace(/[{}|]/g, (char) => ({ "{": "❴", "}": "❵", "|": "∣" })[char]);

const rich = Object.fromEntries(
  [...Object.values(MARKS).map(([, name]) => name), "ink"]
    .map((name) => [name, { color: color(name), fontWeight: 700, fontSize: 13, lineHeight: LINE }])
    .concat([
      ["name", { color: INK, fontWeight: 560, fontSize: 13, lineHeight: LINE }],
      ["value", { color: INK, fontWeight: 650, fontSize: 13, lineHeight: LINE }],
      ["note", { color: SOFT, fontSize: 12, lineHeight: LINE }],
    ]),
);

const richFill = Object.fromEntries(Object.entries(rich).map(([name, { color: fill, ...rest }]) => [name, { fill, fontFamily: FONT, ...rest }]));

// Lines of a text, broken behind its punctuation; a very long one loses its middle.
const MOST_LINES = 4;
const wrapped = (text, most) => {
  const lines = [""];
  for (const part of clipped(text, (MOST_LINES - 1) * most).match(/[^ ,:/]*[ ,:/]?/gu)) {
    for (const piece of part.match(new RegExp(`.{1,${most}}`, "gu")) ?? []) {
      if ([...lines.at(-1), ...piece.trimEnd()].length > most) lines.push("");
      lines[lines.length - 1] += piece;
    }
  }
  return lines;
};

// The symbol of a strategy's mark and its name, in lines.
const marked = (lane, most) => {
  const [symbol, name] = MARKS[lane.mark] ?? [" ", "soft"];
  return wrapped(lane.name, most).map((line, i) => `{${name}|${i ? "\u2002" : symbol}}{name|\u00a0${literal(line)}}`);
};

const noted = (lane, most) => (lane.remark ? wrapped(lane.remark, most).map((line) => `{note|${literal(line)}}`) : []);

const valued = (lane) =>
  (lane.value ? `{value|${literal(lane.value)}}` : "") + (lane.note ? `{note|\u00a0 ${literal(lane.note)}}` : "");
