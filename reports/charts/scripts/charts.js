// From the specification of a chart to an option of Apache ECharts.
//
// The page runs this: live for charts that can be pointed at and filtered, as SVG for paper and files. Colours are
// variables of the style sheet. The files of this folder are joined into one function, this one last.

const FORMS = { bars, points, lines, strips, timelines };
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

globalThis.charts = { draw, svg, only, isEmpty, escaped };
