const ROW = 15;
const ASIDE = [0, 1, -1, 2, -2, 3, -3, 4, -4, 5, 6, 7, 8];

// Names lie beside their points; where another does already they move by rows, and a line joins them to the point.
// ECharts' own way sets all names apart as if they stood in one column.
const apart = (bottom) => {
  let taken = new Map();
  return ({ seriesIndex, dataIndex, labelRect: { x, y, width, height }, rect: point }) => {
    const key = `${seriesIndex}/${dataIndex}`;
    if (taken.has(key)) taken = new Map(); // drawn anew
    const isFree = (top) => top > 0 && top + height < bottom && [...taken.values()].every(
      (other) => x > other.right || other.left > x + width || top >= other.bottom || other.top >= top + Math.max(height, ROW));
    const rows = ASIDE.find((n) => isFree(y + n * ROW));
    if (rows === undefined) return { hideOverlap: true };
    const top = y + rows * ROW;
    taken.set(key, { left: x, right: x + width, top, bottom: top + Math.max(height, ROW) });
    const end = [x - 3, top + height / 2];
    const from = rows === 0 ? end : [point.x + point.width / 2, point.y + point.height / 2];
    return { x, y: top + height / 2, align: "left", verticalAlign: "middle", labelLinePoints: [from, end, end] };
  };
};

// Points in a plane with their names, those on the front above the others.
const points = (spec, width) => {
  const wide = isWide(width);
  const height = wide ? 340 : 320;
  const layout = apart(height - 48);
  const shown = (behind) => spec.points.filter((point) => (point.kind === "behind") === behind);
  const series = (behind) => ({
    type: "scatter",
    symbol: behind ? "circle" : "diamond",
    symbolSize: behind ? 9 : 13,
    itemStyle: { color: color(behind ? "amber" : "blue"), opacity: behind ? 0.85 : 1 },
    emphasis: { disabled: true },
    z: behind ? 2 : 3,
    // The line through the front would strike names through.
    label: { show: true, position: "right", offset: [0, behind || !spec.joined ? 0 : -9], color: behind ? SOFT : INK, fontSize: 12,
      lineHeight: ROW, formatter: (item) => wrapped(item.data.name, wide ? 26 : 14).join("\n") },
    labelLine: { show: true, lineStyle: { color: SOFT, width: 0.8 } },
    labelLayout: layout,
    data: shown(behind).map((point) => ({ value: [point.x, point.y], name: point.name, tip: point.tip })),
  });
  const front = spec.joined
    ? [{ type: "line", silent: true, symbol: "none", lineStyle: { color: color("blue"), type: "dashed", width: 1.2 },
      emphasis: { disabled: true }, tooltip: { show: false }, step: "end",
      // Points that are there for doubt may lie below it.
      data: shown(false).map(({ x, y }) => [x, y]).sort((a, b) => a[0] - b[0])
        .filter(([, y], i, sorted) => sorted.slice(0, i).every((before) => before[1] <= y)) }]
    : [];
  return {
    height,
    option: {
      ...base({ left: wide ? 76 : 56, right: wide ? 190 : 84, top: 34, bottom: 48 }),
      xAxis: axis(spec.x, width, spec.points.map(({ x }) => x)),
      yAxis: axis(spec.y, width, spec.points.map(({ y }) => y), { splitNumber: 5, nameLocation: "end", nameGap: 12,
        nameTextStyle: { color: SOFT, fontSize: 12, align: "left", padding: [0, 0, 0, wide ? -60 : -46] } }),
      series: [...front, series(false), series(true)],
    },
  };
};
