// Numbers as readers see them, on axes and where they point.

const scaled = (value, units) => {
  const size = Math.abs(value);
  const [scale, name] = units.find(([least]) => size >= least * 0.9995) ?? units.at(-1);
  return value === 0 ? "0" : `${Number((value / scale).toPrecision(3))} ${name}`;
};

const grouped = (value) => {
  const [whole, part] = String(Number(value.toPrecision(4))).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
};

const UNITS = {
  number: (value) => (Math.abs(value) >= 1e7 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(0).replace("e+", "e") : grouped(value)),
  times: (value) => `${Number(value.toPrecision(3))}×`,
  percent: (value) => `${Number((100 * value).toPrecision(3))} %`,
  bytes: (value) => scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]),
  seconds: (value) => scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]),
  mbit: (value) => (value >= 1000 ? `${Number((value / 1000).toPrecision(3))} Gbit/s`
    : `${Number(value.toPrecision(3))} Mbit/s`),
  date: (value) => new Date(value * 86400000).toISOString().slice(0, 10),
};

// A value as readers point at it: what it is, and three digits of it, but every digit of a number of things.
const worded = ({ unit, what }, value) => {
  const number = unit !== "number" ? UNITS[unit](value)
    : Number.isInteger(value) ? String(value).replace(/\B(?=(\d{3})+$)/g, ",") : UNITS.number(Number(value.toPrecision(3)));
  return what ? `${what} ${number}` : number;
};
