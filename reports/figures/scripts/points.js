// Points in a plane with their names, those on the front above the others.
const points = (spec, width) => {
  const wide = isWide(width);
  const height = wide ? 340 : 320;
  const shown = (behind) => spec.points.filter((point) => (point.kind === "behind") === behind);
  const series = (behind) => ({
    type: "scatter",
    symbol: behind ? "circle" : "diamond",
    symbolSize: behind ? 9 : 13,
    itemStyle: { color: color(behind ? "amber" : "blue"), opacity: behind ? 0.85 : 1 },
    emphasis: { disabled: true },
    label: { show: true, position: "right", color: behind ? SOFT : INK, fontSize: 12,
      formatter: (item) => clipped(item.data.name, wide ? 34 : 16) },
    labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
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
      series: [...front, series(true), series(false)],
    },
  };
};
