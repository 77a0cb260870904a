// What a reader can do with the page: see charts and save them, filter what is shown, sort tables, choose another
// baseline. All tables stand in the page without this script too, in their first order.
"use strict";

(async () => {
  const data = JSON.parse(await unpacked("stratbench-charts"));
  const live = new Map();
  const inSight = new Set();
  const orders = new Map();
  const baselines = new Map();
  const filter = { words: [], kind: "" };

  // ---- what is shown ------------------------------------------------------------------------------------------

  // A strategy can be correct in one section and not in another.
  const kindsIn = (section) => data.kinds[section] ?? data.kinds[""];
  const keptIn = (section) => (key) => {
    const named = !filter.words.length || filter.words.some((word) => key.toLowerCase().includes(word));
    return named && (!filter.kind || (kindsIn(section)[key] ?? []).includes(filter.kind));
  };
  const sectionOf = (element) => element.closest("section")?.id ?? "";

  const shown = (figure) => {
    const section = sectionOf(figure);
    let spec = charts.only(data.charts[figure.dataset.chart], keptIn(section));
    const order = orders.get(section);
    if (order && spec.lanes) {
      const place = (lane) => (order.includes(lane.key) ? order.indexOf(lane.key) : order.length);
      spec = { ...spec, lanes: [...spec.lanes].sort((a, b) => place(a) - place(b)) };
    }
    const base = baselines.get(section);
    if (base !== undefined && figure.dataset.chart.endsWith("-ranking")) {
      const { rate, rows } = data.ratios[section][base];
      const against = (lane) => ({ ...lane, value: rows[lane.key].lane[0], note: rows[lane.key].lane[1] });
      spec = { ...spec, reference: rate, lanes: spec.lanes.map(against) };
    }
    return spec;
  };

  // ---- charts that can be pointed at --------------------------------------------------------------------------

  const added = (parent, tag, className) => {
    const element = document.createElement(tag);
    element.className = className;
    parent.append(element);
    return element;
  };

  const redraw = (figure) => {
    const picture = figure.querySelector(".picture");
    const spec = shown(figure);
    figure.classList.toggle("empty", charts.isEmpty(spec));
    if (charts.isEmpty(spec)) return;
    let chart = live.get(figure);
    if (!chart) {
      const host = added(picture, "div", "live");
      figure.classList.add("is-live");
      chart = { host, instance: echarts.init(host, null, { renderer: "svg", width: 300, height: 100 }) };
      live.set(figure, chart);
    }
    const width = Math.max(280, Math.floor(picture.clientWidth));
    const { option, height } = charts.draw(spec, width, { live: true });
    chart.host.style.height = `${height}px`;
    chart.instance.resize({ width, height });
    chart.instance.setOption(option, { notMerge: true });
    chart.width = width;
  };

  const update = () => {
    for (const figure of new Set([...live.keys(), ...inSight])) redraw(figure);
    for (const figure of document.querySelectorAll("figure[data-chart]:not(.is-live)")) {
      figure.classList.toggle("empty", charts.isEmpty(shown(figure)));
    }
    for (const element of document.querySelectorAll("tr[data-key], .legend [data-key], .matrices [data-key], details[data-key]")) {
      element.hidden = !keptIn(sectionOf(element))(element.dataset.key);
    }
    const all = Object.keys(data.kinds[""]);
    const n = all.filter(keptIn("")).length;
    document.getElementById("n-shown").textContent = n === all.length ? "" : `${n} of ${all.length} ${data.noun} shown`;
  };

  const watched = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inSight.add(target);
      else inSight.delete(target);
      if (isIntersecting && !live.has(target)) redraw(target);
    }
  }, { rootMargin: "300px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const figure = target.closest("figure");
      const chart = live.get(figure);
      if (chart && Math.floor(target.clientWidth) !== chart.width && target.clientWidth > 0) redraw(figure);
    }
  });

  // ---- pictures for paper and files ---------------------------------------------------------------------------

  const PAPER_WIDTH = 1060;
  const DASHES = { dashed: "6 4", dotted: "2 3", double: "8 3 2 3" };

  const beforeText = (entry, y) => {
    const style = getComputedStyle(entry.querySelector("i"));
    const form = style.getPropertyValue("--form");
    if (entry.querySelector(".interval")) return `<path d="M24 ${y - 8}v8m0-4h20m0-4v8" fill="none" stroke="${form}" stroke-width="1.6"/>`;
    return form ? `<rect x="24" y="${y - 9}" width="20" height="10" fill="${form}"/>`
      : `<path d="M24 ${y - 4}h20" stroke="${style.borderTopColor}" stroke-width="2" stroke-dasharray="${DASHES[style.borderTopStyle] ?? ""}"/>`;
  };

  // A file has no page around it: it needs a title, a legend, a ground, and colours and fonts of its own.
  const pictureOf = (figure) => {
    const drawn = charts.svg(shown(figure), PAPER_WIDTH);
    const height = Number(/ height="([\d.]+)"/.exec(drawn)[1]);
    const style = getComputedStyle(document.documentElement);
    const line = (text, x, y, rest) => `<text x="${x}" y="${y}" font-size="13" fill="var(--ink)" ${rest}>${charts.escaped(text)}</text>`;
    const entries = [...figure.querySelectorAll(".legend span:not([hidden])")].map((entry, i) => {
      const y = 64 + height + 20 * i;
      return (entry.querySelector("i") ? beforeText(entry, y) : "") + line(entry.textContent.trim(), 52, y, "");
    });
    const size = { width: PAPER_WIDTH + 48, height: 76 + height + 20 * entries.length };
    const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${size.width}" height="${size.height}" font-family="${family.replaceAll('"', "'")}">`
      + `<rect width="100%" height="100%" fill="var(--panel)"/>${line(figure.querySelector(".picture").ariaLabel, 24, 32, 'font-weight="600"')}`
      + `${drawn.replace("<svg", '<svg x="24" y="44"')}${entries.join("")}</svg>`;
    // What stands between tags are names, which nothing may change.
    const alone = text.replace(/<[^<>]*>/g, (tag) => tag
      .replace(/var\(--([\w-]+)\)/g, (_, name) => style.getPropertyValue(`--${name}`)).replaceAll("font-family:inherit;", ""));
    return { text: alone, ...size };
  };

  const blobOf = async (figure, type) => {
    const { text, width, height } = pictureOf(figure);
    if (type === "svg") return new Blob([text], { type: "image/svg+xml" });
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => { canvas.toBlob(resolve); });
  };

  const makeSavable = (figure) => {
    for (const type of ["svg", "png"]) {
      const button = added(figure.querySelector(".legend"), "button", "save");
      button.type = "button";
      button.textContent = `save as ${type.toUpperCase()}`;
      button.addEventListener("click", async () => {
        const name = figure.querySelector(".picture").ariaLabel.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 80);
        const link = Object.assign(document.createElement("a"), { download: `${name}.${type}` });
        link.href = URL.createObjectURL(await blobOf(figure, type));
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
    }
  };

  // ---- tables -------------------------------------------------------------------------------------------------

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.v;
    return number === undefined ? cell.textContent.trim() : Number(number);
  };
  const compared = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    // What is missing comes last.
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  };

  const sort = (table, column, down) => {
    const heading = table.tHead.rows[0].cells[column];
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [valueOf(a, column), valueOf(b, column)];
      return typeof x === typeof y && down ? compared(y, x) : compared(x, y);
    });
    body.append(...rows);
    const section = table.closest("section.comparison");
    if (section && rows.every((row) => row.dataset.key !== undefined)) {
      orders.set(section.id, rows.map((row) => row.dataset.key));
      for (const figure of live.keys()) if (section.contains(figure)) redraw(figure);
    }
  };

  const makeSortable = (table) => {
    for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, column, heading.getAttribute("aria-sort") === "ascending"));
    }
  };

  // ---- the baseline -------------------------------------------------------------------------------------------

  const setBaseline = (section, base) => {
    baselines.set(section.id, base);
    const { rows } = data.ratios[section.id][base];
    const table = section.querySelector("table[data-table=speed]");
    const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.dataset.column === "ratio");
    const heading = table.tHead.rows[0].cells[column];
    (heading.querySelector("button") ?? heading).textContent = `÷ ${base}`;
    const noted = (text) => {
      const note = document.createElement("small");
      note.textContent = text;
      return text ? [note] : [];
    };
    for (const row of table.tBodies[0].rows) {
      const [text, note, value] = rows[row.dataset.key].cell;
      row.cells[0].replaceChildren(row.dataset.key, ...noted(row.dataset.key === base ? "baseline" : ""));
      row.cells[column].replaceChildren(text, ...noted(note));
      if (value === null) delete row.cells[column].dataset.v;
      else row.cells[column].dataset.v = value;
    }
    const sorted = heading.getAttribute("aria-sort");
    if (sorted) sort(table, column, sorted === "descending");
    for (const figure of section.querySelectorAll("figure[data-chart$=-ranking]")) redraw(figure);
  };

  // The library measures by a font's name, which charts take from the page.
  const canvas = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;
  echarts.setPlatformAPI({
    measureText: (text, font) => {
      canvas.font = (font || "12px inherit").replace("inherit", family);
      return canvas.measureText(text);
    },
  });

  // ---- beginning ----------------------------------------------------------------------------------------------

  document.documentElement.classList.add("scripted");
  for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    makeSavable(figure);
    watched.observe(figure);
    resized.observe(figure.querySelector(".picture"));
  }
  // A link leads into closed parts, which open for it.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target?.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
  // The index lists the parts of the comparison in view only.
  const entries = [...document.querySelectorAll(".index .foldable")];
  const markCurrent = () => {
    const isAbove = (entry) => document.querySelector(entry.querySelector("a").hash).getBoundingClientRect().top < innerHeight / 2;
    const current = entries.findLast(isAbove) ?? entries[0];
    for (const entry of entries) entry.classList.toggle("current", entry === current);
  };
  addEventListener("scroll", markCurrent, { passive: true });
  markCurrent();
  // Paper shows what the reader has chosen, too.
  addEventListener("beforeprint", () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const spec = shown(figure);
      const printed = figure.querySelector(".printed") ?? added(figure.querySelector(".picture"), "div", "printed");
      printed.innerHTML = charts.isEmpty(spec) ? "" : charts.svg(spec, PAPER_WIDTH);
    }
  });
  for (const select of document.querySelectorAll("select.baseline")) {
    select.addEventListener("change", () => setBaseline(select.closest("section"), select.value));
  }
  const words = document.getElementById("filter-words");
  const kind = document.getElementById("filter-kind");
  words?.addEventListener("input", () => {
    filter.words = words.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
    update();
  });
  kind?.addEventListener("change", () => {
    filter.kind = kind.value;
    update();
  });
})();
