// Names of strategies, with their marks and with what stands after them, as rich text.

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
    .map((name) => [name, { color: color(name), fontWeight: 700, fontSize: 13 }])
    .concat([
      ["name", { color: INK, fontWeight: 560, fontSize: 13 }],
      ["value", { color: INK, fontWeight: 650, fontSize: 13 }],
      ["note", { color: SOFT, fontSize: 12 }],
    ]),
);

const richFill = Object.fromEntries(Object.entries(rich).map(([name, { color: fill, ...rest }]) => [name, { fill, fontFamily: FONT, ...rest }]));

const marked = (lane, most) => {
  const [symbol, name] = MARKS[lane.mark] ?? ["", "soft"];
  return `{${name}|${symbol || " "}}{name|\u00a0${literal(clipped(lane.name, most))}}`;
};

const valued = (lane) =>
  (lane.value ? `{value|${literal(lane.value)}}` : "") + (lane.note ? `{note|\u00a0 ${literal(lane.note)}}` : "");
