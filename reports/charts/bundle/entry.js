// The parts of Apache ECharts that the charts of a report are made of.
import * as echarts from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { LabelLayout } from "echarts/features";
import { SVGRenderer } from "echarts/renderers";

echarts.use([
  BarChart, CustomChart, LineChart, ScatterChart,
  GridComponent, MarkLineComponent, TooltipComponent,
  LabelLayout, SVGRenderer,
]);
globalThis.echarts = echarts;
