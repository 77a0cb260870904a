"""Charts: data from the rows, which the page's script turns into options of Apache ECharts."""
