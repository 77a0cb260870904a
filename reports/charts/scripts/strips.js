// Every step of every repeat as a dot of one path per repeat, warm-up apart, the median as a tick.
const strips = (spec, width, { live = false } = {}) => {
  const wide = isWide(width);
  const lane = 13;
  let top = 4;
  const rows = spec.lanes.flatMap((strip) => {
    const name = marked(strip, wide ? 28 : 40);
    const tall = Math.max(lane * strip.repeats.length, wide ? LINE * name.length : 0);
    const first = top + (wide ? 0 : LINE * name.length + 2);
    top = first + tall + 10;
    return strip.repeats.map((repeat, i) => ({
      ...repeat,
      y: first + i * lane,
      label: i === 0 ? name.join("\n") : "",
      labelY: wide ? first + tall / 2 : first - LINE * name.length / 2 - 1,
      value: [i],
    }));
  });
  const every = rows.flatMap((row) => row.seconds);
  const high = Math.max(...every) * 1.07;
  // A zero-length stroke with round ends is a dot, and two of them in one place are one.
  const dots = (at, seconds, y) => [...new Set(seconds
    .map((value, i) => `M${at(value).toFixed(0)} ${y + 3 + Math.round(((i * 7) % 11) * (lane - 6) / 10)}h0.1`))].join("");
  const stroke = (path, name, opacity) => ({
    type: "path", shape: { pathData: path },
    style: { fill: "none", stroke: color(name), lineWidth: 3.6, lineCap: "round", opacity },
  });
  return {
    height: top + 26,
    option: {
      ...base({ left: wide ? LABEL_WIDTH : 2, right: wide ? VALUE_WIDTH : 8, top: 4, height: top - 4 }),
      xAxis: axis({ unit: "seconds", log: true, low: Math.min(...every) * 0.93, high }, width, []),
      yAxis: { type: "value", min: 0, max: top - 4, inverse: true, show: false },
      series: [{
        type: "custom",
        clip: false,
        encode: { x: [], y: 0 },
        data: rows.map((row) => ({ value: row.value, tip: row.tip })),
        renderItem: ({ dataIndex, coordSys }, api) => {
          const row = rows[dataIndex];
          const at = (value) => api.coord([value, 0])[0];
          const tick = (style) => ({ type: "line", style,
            shape: { x1: at(row.median), x2: at(row.median), y1: row.y, y2: row.y + lane - 1 } });
          const text = (x, y, content, align) => ({ type: "text", silent: true,
            style: { x, y, text: content, rich: richFill, align, verticalAlign: "middle", fontFamily: FONT } });
          return {
            type: "group",
            children: [
              // What is pointed at: the whole lane.
              ...(live ? [{ type: "rect", style: { fill: "transparent" },
                shape: { x: coordSys.x, y: row.y, width: coordSys.width, height: lane } }] : []),
              stroke(dots(at, row.seconds.slice(0, row.n_warmup), row.y), "amber", 0.9),
              stroke(dots(at, row.seconds.slice(row.n_warmup), row.y), "blue", 0.6),
              ...(row.median ? [tick({ stroke: INK, lineWidth: 2 })] : []),
              ...(row.label ? [text(wide ? 0 : 2, row.labelY, row.label, "left")] : []),
              ...(wide ? [text(coordSys.x + coordSys.width + 14, row.y + lane / 2, `{note|${literal(row.text)}}`, "left")] : []),
            ],
          };
        },
      }],
    },
  };
};
