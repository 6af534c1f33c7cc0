"use strict";
// What a page can do besides being read: tips at once, sorted and filtered tables, copied plans, charts to look into.
(function () {
  const all = (what, root = document) => [...root.querySelectorAll(what)];
  const make = (tag, cls, parent, text = "") => { const e = document.createElement(tag); e.className = cls; e.textContent = text; parent.append(e); return e; };
  const pressed = (e, act) => {
    e.tabIndex = 0;
    e.addEventListener("click", act);
    e.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); } });
  };

  // Tips in the page's style, where the browser's own would come late or not at all.
  const main = document.querySelector("main"), tip = make("div", "tip", main);
  for (const mark of all("svg title")) { mark.parentNode.dataset.tip = mark.textContent; mark.remove(); }
  for (const e of all("main [title]")) { e.dataset.tip = e.title; e.removeAttribute("title"); }
  main.addEventListener("pointermove", (event) => {
    const over = event.target.closest("[data-tip]");
    tip.style.display = over ? "block" : "none";
    if (!over) return;
    tip.textContent = over.dataset.tip;
    const box = main.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8)) + "px";
    tip.style.top = event.clientY - box.top + 18 + "px";
  });
  main.addEventListener("pointerleave", () => { tip.style.display = "none"; });

  // Tables: a click on a title sorts, long ones can be filtered. Figures compare by what they say in any unit.
  const UNITS = { ns: 1e-9, µs: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, k: 1e3, M: 1e6, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, T: 1e12, G: 1e9 };
  function figure(text) {
    const found = text.replace("−", "-").replace("$", "").match(/^[+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?/i);
    if (!found) return null;
    const unit = text.slice(text.indexOf(found[0].replace("-", "")) + found[0].length).trim().split(/[\s(–]/)[0];
    return Number(found[0].replaceAll(",", "")) * (UNITS[unit] || 1);
  }
  function sort(table, column, th) {
    const down = th.getAttribute("aria-sort") === "ascending";
    for (const other of all("th", table)) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const text = (row) => row.cells[column].dataset.text ?? row.cells[column].textContent;
    const compare = (a, b) => { const x = figure(text(a)), y = figure(text(b)); return x !== null && y !== null ? x - y : text(a).localeCompare(text(b)); };
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...(down ? rows.reverse() : rows));
  }
  for (const cell of all("td.plan, pre.plan")) {
    const text = cell.textContent;
    if (!text) continue;
    cell.dataset.text = text;
    const button = make("button", "copy", cell, "copy");
    button.type = "button";
    button.setAttribute("aria-label", `copy ${text}`);
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
      catch { getSelection().selectAllChildren(cell); button.textContent = "selected"; } // a page from a mail may not write
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
  for (const table of all("table.sorts")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length > 1) [...table.tHead.rows[0].cells].forEach((th, column) => { if (th.textContent) pressed(th, () => sort(table, column, th)); });
    if (rows.length <= 12) continue;
    const input = make("input", "filter", table.parentNode);
    input.type = "search"; input.placeholder = `filter ${rows.length} rows`; input.setAttribute("aria-label", "filter rows");
    table.parentNode.before(input);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
    });
  }

  // Charts: a click on a name hides its points; the wheel with Ctrl zooms, a drag moves, a double click shows all.
  for (const chart of all("svg.chart")) {
    const card = chart.closest(".card"), series = all(".series", chart), whole = chart.getAttribute("viewBox");
    all(".legend span", card).forEach((name, n) => {
      name.setAttribute("aria-pressed", "true");
      pressed(name, () => { const hidden = series[n].toggleAttribute("hidden"); series[n].style.display = hidden ? "none" : ""; name.setAttribute("aria-pressed", String(!hidden)); });
    });
    const view = () => chart.getAttribute("viewBox").split(" ").map(Number);
    chart.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const [x, y, w, h] = view(), box = chart.getBoundingClientRect(), factor = event.deltaY > 0 ? 1.25 : 0.8;
      const px = (event.clientX - box.left) / box.width, py = (event.clientY - box.top) / box.height;
      chart.setAttribute("viewBox", [x + px * w * (1 - factor), y + py * h * (1 - factor), w * factor, h * factor].join(" "));
    }, { passive: false });
    let grip = null;
    chart.addEventListener("pointerdown", (event) => { grip = [event.clientX, event.clientY, ...view()]; });
    chart.addEventListener("pointermove", (event) => {
      if (!grip || !event.buttons || chart.getAttribute("viewBox") === whole) return;
      const [x0, y0, x, y, w, h] = grip, box = chart.getBoundingClientRect();
      chart.setAttribute("viewBox", [x - ((event.clientX - x0) * w) / box.width, y - ((event.clientY - y0) * h) / box.height, w, h].join(" "));
    });
    chart.addEventListener("dblclick", () => chart.setAttribute("viewBox", whole));
  }

  const data = document.getElementById("timeline");
  if (!data) return;
  const t = JSON.parse(data.textContent), n = (v) => v.toLocaleString("en-US");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = (v) => n(Number(v.toPrecision(3)));
  function seconds(s) {
    const a = Math.abs(s);
    const [unit, name] = a === 0 ? [1, "s"] : a >= 7200 ? [3600, "h"] : a >= 1 ? [1, "s"] : a >= 1e-3 ? [1e-3, "ms"] : a >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
    return `${digits(s / unit)} ${name}`;
  }
  const gantt = drawGantt(document.getElementById("gantt"), t, { css, seconds });
  document.getElementById("gantt-note").textContent = (t.merged > 0
    ? `${n(t.tasks)} tasks drawn as ${n(t.start.length)} bars: tasks shorter than ${seconds(t.merged)} that follow each other are one striped bar. The .trace.json.gz report holds every task.`
    : `${n(t.tasks)} tasks.`) + " Scroll with Ctrl (or the buttons) to zoom, drag to move, double-click for the whole step; with the keyboard: + − ← → 0.";
  window.addEventListener("resize", gantt.redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", gantt.redraw);
})();
