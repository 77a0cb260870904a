// Lines of the labels left and right of a lane.
const besides = (lane) => [marked(lane, 28), [valued(lane), ...noted(lane, 36)]];

// Lines of the labels above a lane on a narrow page. The last one is shared by both, if there is room.
const aboves = (lane) => {
  const lines = [...marked(lane, 40), ...noted(lane, 46)];
  const isLong = [...(lane.remark || lane.name)].length > (lane.remark ? 24 : 17);
  return [valued(lane) && isLong ? [...lines, ""] : lines, [valued(lane)]];
};

// Lanes with bars from left to right, one on top of the other or end to end; names left of them, or above.
const bars = (spec, width) => {
  const wide = isWide(width);
  const most = Math.max(...spec.lanes.map((lane) => lane.bars.length), 1);
  const labels = spec.lanes.map((lane) => (wide ? besides(lane) : aboves(lane)));
  const named = LINE * Math.max(...labels.flat().map((lines) => lines.length), 1);
  const above = wide ? 0 : named + 6;
  const thickness = spec.stacked || most === 1 ? 20 : 11;
  const tall = spec.stacked ? thickness : thickness * most + 3 * (most - 1);
  const pitch = Math.max(tall, wide ? named : 0) + 14 + above;
  const height = 12 + pitch * spec.lanes.length + (spec.axis.name ? 52 : 30);
  const high = spec.axis.high ?? Math.max(...spec.lanes.flatMap((lane) => lane.bars.map((bar) => bar.end ?? 0)));
  const category = {
    type: "category", inverse: true, data: spec.lanes.map((_, i) => String(i)),
    axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
  };
  const shift = wide ? {} : { inside: true, margin: 0, verticalAlign: "bottom", padding: [0, 0, tall / 2 + 6, 0] };
  const ends = { top: spec.axis.name ? 46 : 24, bottom: 6 };
  const after = spec.lanes.some((lane) => lane.bars.some((bar) => bar.text));
  const option = {
    ...base(wide
      ? { left: LABEL_WIDTH, right: VALUE_WIDTH, ...ends }
      : { left: 2, right: after ? 104 : 8, ...ends }),
    xAxis: axis({ ...spec.axis, low: 0, high }, width, [], { position: "top" }),
    yAxis: [
      { ...category, axisLabel: { interval: 0, align: "left", margin: LABEL_WIDTH, ...shift, rich,
        ...(wide ? {} : { backgroundColor: color("paper") }),
        formatter: (i) => labels[i][0].join("\n") } },
      { ...category, position: "right", axisLabel: { interval: 0, align: wide ? "left" : "right", margin: 14, ...shift, rich,
        ...(wide ? {} : { backgroundColor: color("paper") }),
        formatter: (i) => labels[i][1].join("\n") } },
    ],
    series: [],
  };
  for (let slot = 0; slot < most; slot += 1) {
    option.series.push({
      type: "bar",
      stack: spec.stacked ? "all" : undefined,
      barWidth: thickness,
      barGap: "27%",
      emphasis: { disabled: true },
      data: spec.lanes.map((lane) => {
        const bar = lane.bars[slot];
        if (!bar) return { value: null };
        const [form, name] = spec.kinds[bar.kind];
        return {
          value: bar.end === null ? 0 : Math.min(bar.end - bar.start, high),
          tip: bar.tip,
          itemStyle: form === "outline"
            ? { color: color("panel"), borderColor: color(name), borderType: "dashed", borderWidth: 1.4 }
            : { color: color(name) },
          label: { show: Boolean(bar.text), position: "right", color: SOFT, fontSize: 12, formatter: () => (wide ? bar.text : bar.short) ?? "" },
        };
      }),
      markLine: slot === 0 && spec.reference !== null && spec.reference !== undefined
        ? { silent: true, symbol: "none", label: { show: false }, data: [{ xAxis: spec.reference }],
          lineStyle: { color: INK, type: [4, 3], width: 1.3, opacity: 0.7 } }
        : undefined,
    });
  }
  // An interval beyond the axis would strike through what is written there.
  const spans = spec.lanes.flatMap((lane, i) => (lane.interval?.[0] < high ? [[i, ...lane.interval]] : []));
  if (spans.length) {
    option.series.push({
      type: "custom", silent: true, tooltip: { show: false }, encode: { x: [1, 2], y: 0 }, data: spans, z: 5,
      renderItem: (_, api) => interval(api, api.value(1), Math.min(api.value(2), high), api.value(0), true),
    });
  }
  return { option, height };
};
