// What all forms share: widths, ticks, axes, tooltips, intervals.

const LABEL_WIDTH = 250;
const VALUE_WIDTH = 236;
const WIDE_FROM = 700;
const isWide = (width) => width >= WIDE_FROM;

const roundTicks = (low, high, most) => {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10].map((factor) => power * factor).find((size) => size * most >= high - low) ?? power * 10;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
};

// 1, 2 and 5 of each power of ten between two limits, as many as there is room for.
const logTicks = (low, high, most) => {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    ticks.push(...[1, 2, 5].map((factor) => Number(`${factor}e${power}`)).filter((tick) => tick >= low && tick <= high));
  }
  if (ticks.length < 3) return roundTicks(low, high, most);
  const every = Math.ceil(ticks.length / most);
  return ticks.filter((_, i) => i % every === 0);
};

const axis = (spec, width, values, over = {}) => {
  const known = values.filter((value) => Number.isFinite(value) && (!spec.log || value > 0));
  const room = spec.log ? 1.1 : 1;
  const low = spec.low ?? Math.min(...known) / room;
  const high = spec.high ?? Math.max(...known) * room;
  const most = over.splitNumber ?? (isWide(width) ? 7 : 3);
  const ticks = spec.ticks ?? (spec.log ? logTicks(low, high, most) : undefined);
  return {
    type: spec.log ? "log" : "value",
    min: spec.low ?? (spec.log ? low : undefined),
    max: spec.high ?? (spec.log ? high : undefined),
    scale: true,
    splitNumber: most,
    name: spec.name,
    nameLocation: "middle",
    nameGap: 30,
    nameTextStyle: { color: SOFT, fontSize: 12 },
    axisLine: { show: false },
    axisTick: { show: false, customValues: ticks },
    minorTick: { show: false },
    axisLabel: { color: SOFT, fontSize: 12, hideOverlap: true, formatter: UNITS[spec.unit], customValues: ticks,
      // The limit of an axis is no round number; and names at its ends stay within the picture.
      showMinLabel: spec.low && !ticks ? false : undefined,
      showMaxLabel: spec.high === null || spec.high === undefined || ticks ? undefined : false,
      ...(over.nameLocation === "end" ? {} : { alignMinLabel: "left", alignMaxLabel: "right" }) },
    splitLine: { lineStyle: { color: color("grid") } },
    ...over,
  };
};

const base = (grid) => ({
  animation: false,
  backgroundColor: "transparent",
  textStyle: { fontFamily: FONT, color: INK },
  aria: { enabled: false },
  grid: { outerBoundsMode: "none", ...grid },
  tooltip: {
    trigger: "item",
    confine: true,
    backgroundColor: color("panel"),
    borderColor: color("rule"),
    textStyle: { color: INK, fontSize: 13 },
    extraCssText: "max-width:32em;white-space:normal;overflow-wrap:anywhere",
    formatter: (item) => escaped(item.data?.tip ?? item.name ?? ""),
  },
});

const interval = (api, low, high, at, horizontal, half = 5) => {
  const [from, to] = horizontal
    ? [api.coord([low, at]), api.coord([high, at])] : [api.coord([at, low]), api.coord([at, high])];
  const path = (pathData, style) => ({ type: "path", shape: { pathData }, style: { fill: "none", ...style }, silent: true });
  const cap = ([x, y]) => (horizontal ? `M${x} ${y - half}V${y + half}` : `M${x - half} ${y}H${x + half}`);
  const span = `M${from[0]} ${from[1]}L${to[0]} ${to[1]}`;
  return {
    type: "group",
    silent: true,
    children: [
      path(span, { stroke: color("paper"), lineWidth: 4.5, opacity: 0.8 }),
      path(span + cap(from) + cap(to), { stroke: INK, lineWidth: 1.5 }),
    ],
  };
};
