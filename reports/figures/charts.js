// From the specification of a chart to an option of Apache ECharts.
//
// The page runs this for charts that can be hovered and filtered; before that, QuickJS has run the same to draw what
// stands in the page for readers without scripts. Colours are variables of the style sheet, so that both follow it.
"use strict";

globalThis.charts = (() => {
  const LABEL_WIDTH = 222;
  const VALUE_WIDTH = 236;
  const WIDE_FROM = 700;
  // That of the page: quotes in a list of fonts would end the attributes that ECharts writes it to.
  const FONT = "inherit";
  const INK = "var(--ink)";
  const SOFT = "var(--soft)";
  const LINE_COLORS = ["blue", "vermilion", "green", "purple", "amber", "sky", "grey", "ink"];
  const LINE_TYPES = ["solid", "dashed", "dotted", [8, 3, 2, 3]];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond"];
  const MARKS = {
    equivalent: ["✓", "blue"],
    reference: ["✓", "blue"],
    "within-bound": ["≈", "blue"],
    "not-equivalent": ["✗", "vermilion"],
    "beyond-bound": ["✗", "vermilion"],
    statistical: ["~", "purple"],
    control: ["○", "soft"],
    twin: ["○", "soft"],
    undecidable: ["?", "soft"],
    "not-checked": ["?", "soft"],
    implausible: ["!", "vermilion"],
  };
  const OUTLINED = { control: "grey", twin: "grey", implausible: "vermilion" };
  const FILLS = {
    equivalent: "blue", reference: "blue", "within-bound": "blue",
    "not-equivalent": "vermilion", "beyond-bound": "vermilion",
    statistical: "purple", undecidable: "grey", "not-checked": "grey",
    payload: "grey", tcp: "blue", interface: "sky",
    compute: "blue", exposed: "amber", unsplit: "grey",
    transfer: "amber", wait: "purple", rest: "grey",
    resident: "sky", variables: "blue",
  };

  const color = (name) => `var(--${name})`;
  const escaped = (text) =>
    String(text).replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

  // ---- numbers on axes ----------------------------------------------------------------------------------------

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

  // ---- what all charts share ----------------------------------------------------------------------------------

  const isWide = (width) => width >= WIDE_FROM;

  // Names of strategies differ at their ends, by their parameters: they lose their middle.
  const clipped = (name, most) => {
    const letters = [...name.replace(/\s+/g, " ")];
    const last = Math.floor((most - 1) / 2);
    return letters.length <= most ? letters.join("")
      : `${letters.slice(0, most - 1 - last).join("")}…${letters.slice(-last).join("")}`;
  };
  // Braces and bars are the markup of rich text.
  const literal = (text) => text.replace(/[{}|]/g, (char) => ({ "{": "❴", "}": "❵", "|": "∣" })[char]);

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

  // ---- the forms ----------------------------------------------------------------------------------------------

  // Lanes with bars from left to right, one on top of the other or end to end; names left of them, or above.
  const bars = (spec, width) => {
    const wide = isWide(width);
    const most = Math.max(...spec.lanes.map((lane) => lane.bars.length), 1);
    const above = wide ? 0 : 22;
    const thickness = spec.stacked || most === 1 ? 20 : 11;
    const tall = spec.stacked ? thickness : thickness * most + 3 * (most - 1);
    const pitch = tall + 14 + above;
    const height = 12 + pitch * spec.lanes.length + (spec.axis.name ? 52 : 30);
    const high = spec.axis.high ?? Math.max(...spec.lanes.flatMap((lane) => lane.bars.map((bar) => bar.end ?? 0)));
    const category = {
      type: "category", inverse: true, data: spec.lanes.map((_, i) => String(i)),
      axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
    };
    const shift = wide ? {} : { inside: true, margin: 0, verticalAlign: "bottom", padding: [0, 0, tall / 2 + 6, 0] };
    const after = spec.lanes.some((lane) => lane.bars.some((bar) => bar.text));
    const option = {
      ...base(wide
        ? { left: LABEL_WIDTH, right: VALUE_WIDTH, top: 6, bottom: spec.axis.name ? 46 : 24 }
        : { left: 2, right: after ? 104 : 8, top: 6, bottom: spec.axis.name ? 46 : 24 }),
      xAxis: axis({ ...spec.axis, low: 0, high }, width, []),
      yAxis: [
        { ...category, axisLabel: { interval: 0, align: "left", margin: LABEL_WIDTH, ...shift, rich,
          ...(wide ? {} : { backgroundColor: color("paper") }),
          formatter: (i) => marked(spec.lanes[i], wide ? 25 : spec.lanes.some(({ value, note }) => value || note) ? 15 : 24) } },
        { ...category, position: "right", axisLabel: { interval: 0, align: wide ? "left" : "right", margin: 14, ...shift, rich,
          ...(wide ? {} : { backgroundColor: color("paper") }),
          formatter: (i) => valued(spec.lanes[i]) } },
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
          const outline = OUTLINED[bar.kind];
          return {
            value: bar.end === null ? 0 : Math.min(bar.end - bar.start, high),
            tip: bar.tip,
            itemStyle: outline
              ? { color: color("panel"), borderColor: color(outline), borderType: "dashed", borderWidth: 1.4 }
              : { color: color(FILLS[bar.kind] ?? "grey") },
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

  const lineStyle = (line) => (line.kind === "perfect"
    ? { color: SOFT, type: "dashed", width: 1.2 }
    : { color: color(LINE_COLORS[line.color % LINE_COLORS.length]), width: 1.8,
      type: LINE_TYPES[Math.floor(line.color / LINE_COLORS.length) % LINE_TYPES.length] });

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
      symbolSize: line.points.length > 12 ? 4 : 6,
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
    const spans = spec.lines.flatMap((line) => (line.intervals ?? []).map((span) => [...span, line.color]));
    const series = spec.lines.map(style);
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
        yAxis: axis(spec.y, width, [...all.map(([, y]) => y), ...spans.flatMap(([, low, high]) => [low, high])], { splitNumber: spec.low_height ? 3 : 5, nameLocation: "end", nameGap: spec.events?.length ? 26 : 12,
          nameTextStyle: { color: SOFT, fontSize: 12, align: "left", padding: [0, 0, 0, wide ? -60 : -46] } }),
        series,
      },
    };
  };

  // Every step of every repeat as a dot of one path per repeat, warm-up apart, the median as a tick.
  const strips = (spec, width, { live = false } = {}) => {
    const wide = isWide(width);
    const lane = 13;
    const above = wide ? 0 : 18;
    let top = 4;
    const rows = spec.lanes.flatMap((each) => {
      const first = top + above;
      top = first + lane * each.repeats.length + 10;
      return each.repeats.map((repeat, i) => ({
        ...repeat,
        y: first + i * lane,
        label: i === 0 ? marked(each, wide ? 25 : 24) : "",
        labelY: wide ? first + (lane * each.repeats.length) / 2 : first - 9,
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

  const FORMS = { bars, points, lines, strips };
  const draw = (spec, width, options) => FORMS[spec.form](spec, width, options);

  const svg = (spec, width) => {
    const { option, height } = draw(spec, width);
    const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width, height });
    chart.setOption(option);
    const text = chart.renderToSVGString({ useViewBox: true });
    chart.dispose();
    return text;
  };

  // The same chart of some strategies only.
  const only = (spec, keeps) => {
    const kept = (items) => items?.filter((item) => item.kind === "perfect" || keeps(item.key));
    const events = spec.events?.filter((event) => event.keys.every(keeps));
    return { ...spec, lanes: kept(spec.lanes), points: kept(spec.points), lines: kept(spec.lines), events };
  };
  const isEmpty = (spec) => !(spec.lanes ?? spec.points ?? spec.lines).some((item) => item.kind !== "perfect");

  return { draw, svg, only, isEmpty };
})();
