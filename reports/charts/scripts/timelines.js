// Bars at their times, each lane's in one row; names left of them, or above on a narrow page.
const timelines = (spec, width) => {
  const wide = isWide(width);
  const labels = spec.lanes.map((lane) => wrapped(lane.name, wide ? 34 : 46));
  const named = LINE * Math.max(...labels.map((lines) => lines.length), 1);
  const above = wide ? 0 : named + 6;
  const tall = 16;
  const pitch = Math.max(tall, wide ? named : 0) + 8 + above;
  const bars = spec.lanes.flatMap((lane, i) => lane.bars.map((bar) => ({ ...bar, value: [i, bar.start, bar.end] })));
  const shift = wide ? {} : { inside: true, margin: 0, verticalAlign: "bottom", padding: [0, 0, tall / 2 + 4, 0] };
  return {
    height: 12 + pitch * spec.lanes.length + 52,
    option: {
      ...base({ left: wide ? LABEL_WIDTH : 2, right: 24, top: 6, bottom: 46 }),
      xAxis: axis({ ...spec.axis, low: 0, high: Math.max(...bars.map(({ end }) => end)) * 1.01 }, width, []),
      yAxis: {
        type: "category", inverse: true, data: spec.lanes.map((_, i) => String(i)),
        axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
        axisLabel: { interval: 0, align: "left", margin: LABEL_WIDTH, color: INK, fontSize: 13, lineHeight: LINE, ...shift,
          formatter: (i) => labels[i].join("\n") },
      },
      series: [{
        type: "custom",
        encode: { x: [1, 2], y: 0 },
        data: bars.map(({ value, tip }) => ({ value, tip })),
        renderItem: ({ dataIndex }, api) => {
          const [from, y] = api.coord([api.value(1), api.value(0)]);
          const [to] = api.coord([api.value(2), api.value(0)]);
          return {
            type: "rect",
            shape: { x: from, y: y - tall / 2, width: Math.max(to - from, 0.8), height: tall },
            style: { fill: color(spec.kinds[bars[dataIndex].kind][1]) },
          };
        },
      }],
    },
  };
};
