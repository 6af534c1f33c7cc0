"use strict";
// Predicted over measured, both logarithmic. Every text that a user could have named goes through encodeHTML.
(function () {
  const { points } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const safe = echarts.format.encodeHTML;
  const COLOURS = [
    "#4f7fd9", "#e07b39", "#3aa76d", "#d9534f", "#a45ad1", "#8a6d3b", "#d957a8", "#7f8894", "#b5a12a", "#35b0c4",
    "#1f4e9c", "#a3480f", "#1d6b3f", "#8c1d18", "#5f2a8a", "#54bfa5", "#c58af0",
  ];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond"];
  const [GROUP, MEASURED, PREDICTED, LOW, HIGH, ERROR, ID, WHAT, REASON] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const digits = (v) => Number(v.toPrecision(3)).toLocaleString("en-US");
  function seconds(s) {
    if (s >= 7200) return digits(s / 3600) + " h";
    if (s >= 1) return digits(s) + " s";
    if (s >= 1e-3) return digits(s * 1e3) + " ms";
    return digits(s * 1e6) + " µs";
  }

  const box = document.getElementById("scatter");
  if (!points.length) { box.textContent = "No case has both a predicted and a measured time."; return; }
  const groups = [...new Set(points.map((p) => p[GROUP]))].sort();
  const all = points.flatMap((p) => [p[MEASURED], p[PREDICTED]]);
  const low = 10 ** Math.floor(Math.log10(Math.min(...all))), high = 10 ** Math.ceil(Math.log10(Math.max(...all)) + 1e-9);

  function axis(name, gap) {
    return {
      type: "log", min: low, max: high, name, nameLocation: "middle", nameGap: gap, nameTextStyle: { color: css("--soft") },
      axisLabel: { color: css("--soft"), formatter: seconds, hideOverlap: true }, axisLine: { lineStyle: { color: css("--line") } },
      axisTick: { show: false }, splitLine: { lineStyle: { color: css("--grid") } },
    };
  }
  function tip(p) {
    const v = p.data && p.data.row;
    if (!v) return "";
    const off = v[ERROR] === null ? "" : ` (${v[ERROR] >= 0 ? "+" : "−"}${Math.abs(100 * v[ERROR]).toFixed(1)} %)`;
    const range = v[LOW] === null || v[HIGH] === null ? "" : `<br>80 % interval ${seconds(v[LOW])} – ${seconds(v[HIGH])}`;
    const lines = [v[WHAT], v[REASON]].filter(Boolean).map((t) => `<br>${safe(t)}`).join("");
    return `<b>${safe(v[ID])}</b><br>measured ${seconds(v[MEASURED])}, predicted ${seconds(v[PREDICTED])}${off}${range}${lines}`;
  }
  const line = (factor, type) => ({
    type: "line", silent: true, symbol: "none", z: 1, data: [[low, low * factor], [high, high * factor]], clip: true,
    lineStyle: { color: css("--soft"), width: 1, type }, tooltip: { show: false },
  });
  function option() {
    const narrow = box.clientWidth < 640;
    return {
      animation: false, color: COLOURS,
      legend: {
        type: "scroll", data: groups, itemWidth: 12, itemHeight: 12, textStyle: { color: css("--soft") }, pageIconColor: css("--soft"), pageTextStyle: { color: css("--soft") },
        ...(narrow ? { top: 0, left: 0 } : { orient: "vertical", right: 0, top: 0 }),
      },
      grid: { left: 30, right: narrow ? 16 : 190, top: narrow ? 44 : 12, bottom: 34, containLabel: true },
      tooltip: {
        trigger: "item", confine: true, backgroundColor: css("--card"), borderColor: css("--line"), formatter: tip,
        textStyle: { color: css("--ink"), fontSize: 13 }, extraCssText: "max-width:420px;white-space:normal;overflow-wrap:anywhere",
      },
      dataZoom: [{ type: "inside", xAxisIndex: 0, filterMode: "none" }, { type: "inside", yAxisIndex: 0, filterMode: "none" }],
      xAxis: axis("measured", 30), yAxis: axis("predicted", 62),
      series: [
        line(1, "solid"), line(1.2, "dashed"), line(1 / 1.2, "dashed"),
        ...groups.map((name, i) => {
          const mine = points.filter((p) => p[GROUP] === name);
          return {
            name, type: "scatter", z: 3, symbol: SYMBOLS[i % SYMBOLS.length], symbolSize: mine.length > 300 ? 5 : 8,
            itemStyle: { color: COLOURS[i % COLOURS.length], opacity: mine.length > 300 ? 0.45 : 0.8 },
            emphasis: { itemStyle: { borderColor: css("--ink"), borderWidth: 1.5 } },
            data: mine.map((p) => ({ value: [p[MEASURED], p[PREDICTED]], row: p })),
          };
        }),
      ],
    };
  }
  const chart = echarts.init(box);
  const draw = () => chart.setOption(option(), true);
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("resize", () => { chart.resize(); draw(); });
})();
