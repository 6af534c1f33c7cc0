"use strict";
// The timeline on a canvas: one row per stream, grouped by rank class, with zoom and drag.
function drawGantt(root, t, { css, seconds }) {
  const ROW = 18, GAP = 8, AXIS = 26, PHASE = ["#4f8fe0", "#3aa76d", "#8fc75a", "#4a5fc9"];
  const OTHER = { collective: "#a45ad1", transfer: "#35b0c4", copy: "#e07b39", launch: "#d9534f", load: "#b5651d" };
  const OTHER_NAME = { collective: "collective", transfer: "send / receive", copy: "copy", launch: "launch", load: "data loading" };
  const n = t.start.length, lanes = t.lanes.length;
  const colour = (i) => OTHER[t.kinds[t.kind[i]]] || PHASE[t.phase[i]] || "#888";

  // Bars of a lane are in order of time: a lane's slice is found once, then searched by halves.
  const first = new Array(lanes + 1).fill(n);
  for (let i = n - 1; i >= 0; i--) first[t.lane[i]] = i;
  for (let k = lanes - 1; k >= 0; k--) if (first[k] === n || first[k] > first[k + 1]) first[k] = first[k + 1];
  const rows = [];
  let y = 0;
  for (let k = 0; k < lanes; k++) {
    const head = k === 0 || t.lanes[k][2] !== t.lanes[k - 1][2];
    if (head) y += (k ? GAP : 0) + ROW;
    rows.push({ y, head });
    y += ROW;
  }
  const height = y + 4;

  const make = (tag, cls, parent) => { const e = document.createElement(tag); if (cls) e.className = cls; parent.appendChild(e); return e; };
  const bar = make("div", "gantt-bar", root);
  const legend = make("div", "legend", root);
  legend.style.marginBottom = "8px";
  const ruler = make("canvas", "", root);
  const scroller = make("div", "scroller", root);
  const canvas = make("canvas", "", scroller);
  const tip = make("div", "tip", root);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Timeline of tasks by stage and stream");
  let view = [0, t.ticks];
  let gutter = 0;

  function button(text, title, act) {
    const b = make("button", "", bar);
    b.type = "button"; b.textContent = text; b.title = title;
    b.addEventListener("click", act);
  }
  button("+", "Zoom in", () => zoom(0.5, 0.5));
  button("−", "Zoom out", () => zoom(2, 0.5));
  button("←", "Earlier", () => move(-0.25));
  button("→", "Later", () => move(0.25));
  button("Whole step", "Show everything", () => { view = [0, t.ticks]; redraw(); });
  const where = make("span", "legend", bar);

  function drawLegend() {
    const seen = new Map();
    for (let i = 0; i < n; i++) {
      const kind = t.kinds[t.kind[i]];
      seen.set(OTHER[kind] ? OTHER_NAME[kind] : t.phases[t.phase[i]].replace("_", " "), colour(i));
    }
    for (const [name, c] of seen) {
      const item = make("span", "", legend);
      make("i", "", item).style.background = c;
      item.appendChild(document.createTextNode(name));
    }
  }

  function sized(c, w, h) {
    const dpr = window.devicePixelRatio || 1;
    c.style.height = h + "px";
    c.width = Math.round(w * dpr); c.height = Math.round(h * dpr);
    const g = c.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    return g;
  }
  function clipped(g, text, width) {
    if (g.measureText(text).width <= width) return text;
    let low = 0, high = text.length;
    while (low < high) { const mid = (low + high + 1) >> 1; if (g.measureText(text.slice(0, mid) + "…").width <= width) low = mid; else high = mid - 1; }
    return low ? text.slice(0, low) + "…" : "";
  }

  // First bar of lane k that ends after `tick`.
  function firstFrom(k, tick) {
    let low = first[k], high = first[k + 1];
    while (low < high) { const mid = (low + high) >> 1; if (t.end[mid] <= tick) low = mid + 1; else high = mid; }
    return low;
  }

  function redraw() {
    const width = scroller.clientWidth || root.clientWidth;
    const g = sized(canvas, width, height);
    gutter = 14;
    for (const [, stream] of t.lanes) gutter = Math.max(gutter, Math.min(150, g.measureText(stream).width + 26));
    const plot = width - gutter - 10, scale = plot / (view[1] - view[0]);
    drawRuler(width, plot);
    g.save();
    g.beginPath(); g.rect(gutter, 0, plot, height); g.clip();
    for (let k = 0; k < lanes; k++) drawLane(g, k, scale);
    g.restore();
    g.textAlign = "left";
    for (let k = 0; k < lanes; k++) {
      const { y, head } = rows[k];
      if (head) { g.fillStyle = css("--ink"); g.font = "600 12px system-ui, 'DejaVu Sans', sans-serif"; g.fillText(clipped(g, t.lanes[k][0], width - 20), 6, y - ROW / 2 + 1); g.font = "12px system-ui, 'DejaVu Sans', sans-serif"; }
      g.fillStyle = css("--soft");
      g.fillText(clipped(g, t.lanes[k][1], gutter - 20), 14, y + ROW / 2);
    }
    const s = (x) => seconds((x / t.ticks) * t.whole);
    where.textContent = `showing ${s(view[1] - view[0])} from ${s(view[0])}`;
  }

  function drawLane(g, k, scale) {
    const { y } = rows[k], px = (tick) => gutter + (tick - view[0]) * scale;
    g.fillStyle = css("--grid");
    g.fillRect(gutter, y + ROW - 1, 1e5, 1);
    let drawn = -1, last = null;
    for (let i = firstFrom(k, view[0]); i < first[k + 1] && t.start[i] < view[1]; i++) {
      const x0 = Math.max(px(t.start[i]), gutter - 2), x1 = Math.min(px(t.end[i]), gutter + (view[1] - view[0]) * scale + 2);
      const c = colour(i);
      if (x1 < drawn + 0.3 && c === last) continue; // hidden under the pixel just painted
      const w = Math.max(x1 - x0, 0.6);
      g.fillStyle = c;
      g.fillRect(x0, y + 1, w > 3 ? w - 0.6 : w, ROW - 3);
      if (t.count.length && t.count[i] > 1 && w > 4) stripes(g, x0, y + 1, w - 0.6);
      if (w > 26) { g.fillStyle = "#fff"; g.textAlign = "left"; g.fillText(clipped(g, short(i), w - 8), x0 + 4, y + ROW / 2); }
      drawn = x1; last = c;
    }
  }
  function stripes(g, x, y, w) {
    g.save();
    g.beginPath(); g.rect(x, y, w, ROW - 3); g.clip();
    g.strokeStyle = "rgba(255,255,255,.35)"; g.lineWidth = 1.5;
    g.beginPath();
    for (let s = x - ROW; s < x + w; s += 6) { g.moveTo(s, y + ROW); g.lineTo(s + ROW, y); }
    g.stroke();
    g.restore();
  }
  function short(i) {
    if (t.count.length && t.count[i] > 1) return `${t.count[i].toLocaleString("en-US")} tasks`;
    return t.micro[i] >= 0 ? String(t.micro[i]) : t.labels[t.label[i]];
  }

  function drawRuler(width, plot) {
    const g = sized(ruler, width, AXIS);
    const from = (view[0] / t.ticks) * t.whole, to = (view[1] / t.ticks) * t.whole;
    const raw = (to - from) / Math.max(2, plot / 110), base = 10 ** Math.floor(Math.log10(raw));
    const step = base * ([1, 2, 5, 10].find((m) => m * base >= raw) || 10);
    const [unit, name] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
    const places = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    g.textAlign = "center";
    for (let v = Math.ceil(from / step - 1e-9) * step; v <= to + step * 1e-9; v += step) {
      const x = gutter + ((v - from) / (to - from)) * plot;
      g.fillStyle = css("--line"); g.fillRect(x, AXIS - 6, 1, 6);
      const text = `${(v / unit).toFixed(Math.min(places, 9))} ${name}`, half = g.measureText(text).width / 2;
      if (x + half > width + 1) continue;
      g.fillStyle = css("--soft"); g.fillText(text, Math.max(x, half), AXIS / 2 - 2);
    }
  }

  function set(low, high) {
    const size = Math.min(Math.max(high - low, 50), t.ticks);
    const start = Math.min(Math.max(low, 0), t.ticks - size);
    view = [start, start + size];
    redraw();
  }
  function zoom(factor, at) { const size = view[1] - view[0], pin = view[0] + at * size; set(pin - at * size * factor, pin + (1 - at) * size * factor); }
  function move(share) { const d = share * (view[1] - view[0]); set(view[0] + d, view[1] + d); }
  const at = (event) => { const box = canvas.getBoundingClientRect(); return (event.clientX - box.left - gutter) / (box.width - gutter - 10); };

  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, at(event)))); }
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move(0.001 * (event.deltaX || event.deltaY)); }
  }, { passive: false });
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => { grip = { at: at(event), view }; canvas.setPointerCapture(event.pointerId); canvas.classList.add("dragging"); });
  canvas.addEventListener("pointerup", () => { grip = null; canvas.classList.remove("dragging"); });
  canvas.addEventListener("pointercancel", () => { grip = null; canvas.classList.remove("dragging"); });
  canvas.addEventListener("pointermove", (event) => {
    if (grip) { const d = (grip.at - at(event)) * (grip.view[1] - grip.view[0]); set(grip.view[0] + d, grip.view[1] + d); }
    point(event);
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", () => { view = [0, t.ticks]; redraw(); });
  canvas.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5, 0.5), "=": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => set(0, t.ticks) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  function point(event) {
    const box = canvas.getBoundingClientRect(), py = event.clientY - box.top;
    const k = rows.findIndex((row) => py >= row.y && py < row.y + ROW);
    const tick = view[0] + at(event) * (view[1] - view[0]);
    const slack = ((view[1] - view[0]) / box.width) * 1.5;
    const i = k < 0 || tick < view[0] ? -1 : firstFrom(k, tick - slack);
    if (i < 0 || i >= first[k + 1] || t.start[i] > tick + slack) { tip.style.display = "none"; return; }
    tip.textContent = describe(i);
    tip.style.display = "block";
    const outer = root.getBoundingClientRect();
    tip.style.left = Math.max(0, Math.min(event.clientX - outer.left + 14, outer.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = event.clientY - outer.top + 16 + "px";
  }
  function describe(i) {
    const s = (x) => seconds((x / t.ticks) * t.whole);
    const times = `${s(t.end[i] - t.start[i])} from ${s(t.start[i])}`;
    if (t.count.length && t.count[i] > 1) {
      const busy = Math.round((100 * t.busy[i]) / Math.max(1, t.end[i] - t.start[i]));
      return `${t.count[i]} tasks, ${busy} % busy\n${times}\nlongest: ${t.labels[t.label[i]]}`;
    }
    const micro = t.micro[i] >= 0 ? `, micro-batch ${t.micro[i]}` : "", chunk = t.chunk[i] > 0 ? `, chunk ${t.chunk[i]}` : "";
    return `${t.labels[t.label[i]]}\n${t.phases[t.phase[i]].replace("_", " ")}${micro}${chunk}\n${times}`;
  }

  drawLegend();
  redraw();
  return { redraw };
}
