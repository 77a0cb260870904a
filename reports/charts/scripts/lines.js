// Lines with intervals, and events as upright lines.

const lineStyle = (line) => (line.kind === "perfect"
  ? { color: SOFT, type: "dashed", width: 1.2 }
  : { color: color(LINE_COLORS[line.color % LINE_COLORS.length]), width: line.kind === "points" ? 0 : 1.8,
    type: LINE_TYPES[(Math.floor(line.color / LINE_COLORS.length) + (line.kind === "predicted" ? 1 : 0)) % LINE_TYPES.length] });

// The area between the intervals of a line.
const band = (line) => ({
  type: "custom", silent: true, tooltip: { show: false }, encode: { x: 0, y: 1 }, data: [line.points[0]], z: 1,
  renderItem: (_, api) => ({
    type: "polygon", silent: true,
    shape: { points: [...line.intervals.map(([x, low]) => api.coord([x, low])), ...line.intervals.map(([x, , high]) => api.coord([x, high])).reverse()] },
    style: { fill: lineStyle(line).color, opacity: 0.1 },
  }),
});

// Events with the names that there is room for, in two rows, each date or place named once; at either edge a name lies
// on the side where there is some.
const placed = (spec, width, values) => {
  const scale = (x) => (spec.x.log ? Math.log(x) : x);
  const low = scale(spec.x.low ?? Math.min(...values));
  const high = scale(spec.x.high ?? Math.max(...values));
  const room = width - (isWide(width) ? 106 : 86);
  const free = [-Infinity, -Infinity];
  return spec.events.map((event, i) => {
    const isNamed = spec.events.slice(0, i).some(({ x, text }) => x === event.x && text === event.text);
    const at = room * (scale(event.x) - low) / (high - low);
    const half = event.text.length * 3.2;
    const align = at < half ? "left" : at > room - half ? "right" : "center";
    const from = at - (align === "left" ? 0 : align === "right" ? 2 * half : half);
    const row = isNamed ? -1 : free.findIndex((end) => from >= end);
    if (row >= 0) free[row] = from + 2 * half + 8;
    return { xAxis: event.x, name: row < 0 ? "" : event.text, label: { align, distance: row > 0 ? 17 : 4 } };
  });
};

const lines = (spec, width, { live = false } = {}) => {
  const wide = isWide(width);
  const named = (line, [x, y], i) =>
    line.tips?.[i] ?? `${line.name}: ${y === null ? `no ${spec.y.what || "value"}` : worded(spec.y, y)} at ${worded(spec.x, x)}`;
  const isAlone = (line, i) => [i - 1, i + 1].every((near) => (line.points[near]?.[1] ?? null) === null);
  const style = (line) => ({
    type: "line",
    symbol: line.kind === "perfect" ? "none" : SYMBOLS[Math.floor(line.color / LINE_COLORS.length) % SYMBOLS.length],
    symbolSize: line.kind === "points" ? 10 : line.points.length > 12 ? 4 : 6,
    // What can be pointed at has to be there; a picture needs no dot on every bend.
    showSymbol: live || line.points.length <= 12 || line.points.some((_, i) => isAlone(line, i)),
    lineStyle: lineStyle(line),
    itemStyle: { color: lineStyle(line).color },
    emphasis: { disabled: true },
    connectNulls: false,
    data: line.points.map((point, i) => {
      if (live) return { value: point, tip: named(line, point, i) };
      // Between two gaps, a point is all that there is of a line.
      return line.points.length <= 12 || isAlone(line, i) ? point : { value: point, symbol: "none" };
    }),
  });
  const all = spec.lines.flatMap((line) => line.points);
  const banded = spec.lines.filter((line) => line.kind === "predicted" && line.intervals.length > 1);
  const spans = spec.lines.filter((line) => !banded.includes(line))
    .flatMap((line) => (line.intervals ?? []).map((span) => [...span, line.color]));
  const series = [...spec.lines.map(style), ...banded.map(band)];
  if (spans.length) {
    series.push({
      type: "custom", silent: true, tooltip: { show: false }, encode: { x: 0, y: [1, 2] }, data: spans, z: 5,
      renderItem: (_, api) => interval(api, api.value(1), api.value(2), api.value(0), false, 4),
    });
  }
  if (spec.events?.length && series.length) {
    series[0].markLine = {
      silent: true, symbol: "none",
      lineStyle: { color: SOFT, type: [2, 3], width: 1.2 },
      label: { color: SOFT, fontSize: 11, formatter: (item) => item.name, position: "end", rotate: 0 },
      data: placed(spec, width, all.map(([x]) => x)),
    };
  }
  return {
    height: (spec.low_height ? 190 : wide ? 320 : 280) - (spec.x.name ? 0 : 20) + (spec.events?.length ? 14 : 0),
    option: {
      ...base({ left: wide ? 76 : 56, right: 30, top: spec.events?.length ? 48 : 34, bottom: spec.x.name ? 48 : 28 }),
      xAxis: axis(spec.x, width, all.map(([x]) => x)),
      yAxis: axis(spec.y, width, [...all.map(([, y]) => y), ...[...spans, ...banded.flatMap((line) => line.intervals)].flatMap(([, low, high]) => [low, high])], { splitNumber: spec.low_height ? 3 : 5, nameLocation: "end", nameGap: spec.events?.length ? 26 : 12,
        nameTextStyle: { color: SOFT, fontSize: 12, align: "left", padding: [0, 0, 0, wide ? -60 : -46] } }),
      series,
    },
  };
};
