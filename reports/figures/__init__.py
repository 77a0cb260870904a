"""Charts as specifications, and what draws them: Apache ECharts, in Python and in the page."""
