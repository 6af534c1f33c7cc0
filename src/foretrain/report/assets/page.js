"use strict";
// Charts of the report. Every text that a user could have named goes through encodeHTML or textContent.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const STALL_COLOUR = {
    compute: "#3aa76d", optimizer: "#4f7fd9", interconnect: "#35b0c4", network: "#a45ad1", bubble: "#e3a92f",
    host: "#d9534f", prep: "#e07b39", fetch: "#b5651d", imbalance: "#8a94a3",
  };
  const MEMORY_COLOUR = ["#4f7fd9", "#35b0c4", "#a45ad1", "#3aa76d", "#e3a92f", "#d9534f", "#e07b39", "#8a94a3"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const safe = echarts.format.encodeHTML;

  function seconds(s) {
    const a = Math.abs(s);
    if (a === 0) return "0 s";
    if (a >= 7200) return digits(s / 3600) + " h";
    if (a >= 1) return digits(s) + " s";
    if (a >= 1e-3) return digits(s * 1e3) + " ms";
    if (a >= 1e-6) return digits(s * 1e6) + " µs";
    return digits(s * 1e9) + " ns";
  }
  const digits = (v) => Number(v.toPrecision(3)).toLocaleString("en-US");
  const gib = (b) => digits(b / 2 ** 30) + " GiB";
  const shareOf = (s, step) => { const p = (100 * s) / step; return p > 0 && p < 0.05 ? "<0.1 %" : p.toFixed(p < 9.95 ? 1 : 0) + " %"; };

  function axis(extra) {
    return Object.assign({
      axisLine: { lineStyle: { color: css("--line") } }, axisTick: { show: false },
      axisLabel: { color: css("--soft") }, splitLine: { lineStyle: { color: css("--grid") } },
      nameTextStyle: { color: css("--soft") },
    }, extra);
  }
  function tooltip(formatter, trigger) {
    return {
      trigger: trigger || "axis", confine: true, backgroundColor: css("--card"), borderColor: css("--line"),
      textStyle: { color: css("--ink"), fontSize: 13 }, axisPointer: { type: "shadow" }, formatter,
    };
  }
  const legend = () => ({ top: 0, left: 0, itemWidth: 12, itemHeight: 12, icon: "roundRect", textStyle: { color: css("--soft") } });
  const swatch = (c) => `<span style="display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px;background:${c}"></span>`;

  // One step from left to right, each cause starting where the one above it ended.
  function waterfall(step, stalls) {
    const share = (s) => shareOf(s, step);
    const rows = stalls.filter((row) => row[1] > step * 5e-5);
    let at = 0;
    const bases = [], values = [];
    for (const [name, value] of rows) {
      bases.push(at);
      values.push({ value, itemStyle: { color: STALL_COLOUR[name] || "#888" } });
      at += value;
    }
    const label = {
      show: true, position: "right", color: css("--ink"),
      formatter: (p) => `${seconds(rows[p.dataIndex][1])}  ${share(rows[p.dataIndex][1])}`,
    };
    // a bar that ends near the right edge carries its label on its left side
    values.forEach((v, i) => {
      const end = bases[i] + v.value;
      if (end > 0.72 * step) {
        v.label = v.value > 0.35 * step ? { position: "insideRight", color: "#fff" } : { position: "left" };
        if (v.label.position === "left") v.label.color = css("--ink");
      }
    });
    return {
      animation: false, grid: { left: 8, right: 16, top: 8, bottom: 8, containLabel: true },
      tooltip: tooltip((ps) => `${safe(rows[ps[0].dataIndex][0])}: ${seconds(rows[ps[0].dataIndex][1])} (${share(rows[ps[0].dataIndex][1])})`),
      xAxis: axis({ type: "value", min: 0, max: step, axisLabel: { color: css("--soft"), formatter: seconds, hideOverlap: true } }),
      yAxis: axis({ type: "category", inverse: true, data: rows.map((r) => r[0]), axisLabel: { color: css("--ink") }, splitLine: { show: false } }),
      series: [
        { type: "bar", stack: "s", silent: true, itemStyle: { color: "transparent" }, data: bases, tooltip: { show: false } },
        { type: "bar", stack: "s", data: values, label, barMaxWidth: 30, barMinHeight: 2 },
      ],
    };
  }

  function stacked(names, colours, rows, categories, format, extra) {
    return Object.assign({
      animation: false, legend: legend(), grid: { left: 12, right: 20, top: 52, bottom: 24, containLabel: true },
      tooltip: tooltip((ps) => {
        const i = ps[0].dataIndex, sum = rows[i].reduce((a, b) => a + b, 0);
        const lines = names.map((n, k) => (rows[i][k] > 0 ? `${swatch(colours[k])}${safe(n)}: ${format(rows[i][k])}` : null));
        return `stage ${safe(String(categories[i]))}: ${format(sum)}<br>` + lines.filter(Boolean).join("<br>");
      }),
      xAxis: axis({ type: "category", name: "pipeline stage", nameLocation: "middle", nameGap: 26, data: categories.map(String), splitLine: { show: false } }),
      yAxis: axis({ type: "value", axisLabel: { color: css("--soft"), formatter: format } }),
      series: names.map((name, k) => ({
        name, type: "bar", stack: "s", barMaxWidth: 70, itemStyle: { color: colours[k] }, data: rows.map((r) => r[k]),
      })),
    }, extra || {});
  }

  function memory() {
    const m = data.memory;
    const option = stacked(m.kinds, m.kinds.map((_, k) => MEMORY_COLOUR[k % MEMORY_COLOUR.length]), m.rows, m.stages, gib);
    const top = Math.max(m.usable, ...m.rows.map((r) => r.reduce((a, b) => a + b, 0)));
    // round steps of the axis in GiB, with what is usable always in sight
    const step = [1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500].find((s) => top / 2 ** 30 / s <= 8) || 1000;
    Object.assign(option.yAxis, { min: 0, max: Math.ceil((top * 1.04) / 2 ** 30 / step) * step * 2 ** 30, interval: step * 2 ** 30 });
    if (top < 2 ** 31) { delete option.yAxis.max; delete option.yAxis.interval; }
    if (option.series.length) {
      option.series[0].markLine = {
        silent: true, symbol: "none", lineStyle: { color: css("--bad"), type: "dashed", width: 1.5 },
        label: { formatter: `usable ${gib(m.usable)}`, position: "insideEndTop", color: css("--bad") },
        data: [{ yAxis: m.usable }],
      };
    }
    return option;
  }

  function stages() {
    const names = data.stalls.map((r) => r[0]);
    return stacked(names, names.map((n) => STALL_COLOUR[n] || "#888"), data.stallsByStage, data.stallsByStage.map((_, i) => i), seconds);
  }

  // Tooltips of links: at once and in the page's style, where the browser's own would come late or not at all.
  function linkTips() {
    const card = document.getElementById("network");
    if (!card) return;
    const tip = document.createElement("div");
    tip.className = "tip";
    card.appendChild(tip);
    for (const mark of card.querySelectorAll("title")) {
      mark.parentNode.dataset.tip = mark.textContent;
      mark.remove();
    }
    for (const e of card.querySelectorAll("[title]")) { e.dataset.tip = e.title; e.removeAttribute("title"); }
    card.addEventListener("pointermove", (event) => {
      const over = event.target.closest("[data-tip]");
      tip.style.display = over ? "block" : "none";
      if (!over) return;
      tip.textContent = over.dataset.tip;
      const box = card.getBoundingClientRect();
      const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8);
      tip.style.left = Math.max(4, left) + "px";
      tip.style.top = event.clientY - box.top + 18 + "px";
    });
    card.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  }
  linkTips();

  const charts = [];
  function draw() {
    while (charts.length) charts.pop().dispose();
    const wanted = [["waterfall", () => waterfall(data.step, data.stalls)], ["memory", memory]];
    if (data.predicted) wanted.push(["waterfall-predicted", () => waterfall(data.predicted.step, data.predicted.stalls)]);
    const card = document.getElementById("stages-card");
    if (data.stallsByStage.length > 1) wanted.push(["stages", stages]);
    else if (card) card.hidden = true;
    for (const [id, option] of wanted) {
      const place = document.getElementById(id);
      if (!place) continue; // a page of measurements has no memory to show
      const chart = echarts.init(place, null, { renderer: "canvas" });
      chart.setOption(option());
      charts.push(chart);
    }
  }
  draw();
  if (!data.timeline) {
    window.addEventListener("resize", () => charts.forEach((c) => c.resize()));
    dark.addEventListener("change", draw);
    return;
  }
  const gantt = drawGantt(document.getElementById("gantt"), data.timeline, { css, seconds });
  const note = document.getElementById("gantt-note");
  const t = data.timeline, n = (v) => v.toLocaleString("en-US");
  note.textContent = t.merged > 0
    ? `${n(t.tasks)} tasks drawn as ${n(t.start.length)} bars: tasks shorter than ${seconds(t.merged)} that follow each other are one striped bar. The .trace.json.gz report holds every task.`
    : `${n(t.tasks)} tasks.`;
  note.textContent += " Scroll with Ctrl (or the buttons) to zoom, drag to move, double-click for the whole step; with the keyboard: + − ← → 0.";
  window.addEventListener("resize", () => { charts.forEach((c) => c.resize()); gantt.redraw(); });
  dark.addEventListener("change", () => { draw(); gantt.redraw(); });
})();
