"use strict";
// Draws the figures of the page, makes its tables sortable, and, where the page is watched, asks for news.
// Texts that are not ours only ever become text nodes or attributes, never markup.

const HEIGHT = 300, MARGIN = { top: 14, right: 18, bottom: 44 };
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
// Cividis: even steps of lightness, alike for all kinds of colour vision.
const HEAT = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];

let facts = JSON.parse(document.getElementById("data").textContent);

// --- small things

function node(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function round(value) { return Math.round(value * 100) / 100; }

function number(value) {
  const size = Math.abs(value);
  if (size >= 100000 || (size < 0.001 && size > 0)) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 1000 ? 5 : 4)));
}

const measure = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  measure.font = "12px system-ui, sans-serif";
  return measure.measureText(text).width;
}

function shortened(text, width) {
  if (textWidth(text) <= width) return text;
  let kept = text;
  while (kept.length > 1 && textWidth(kept + "…") > width) kept = kept.slice(0, -1);
  return kept + "…";
}

function colour(style) { return `var(--c${style % 8})`; }

// Corners of the shapes, around a middle at 0 0; the circle is none of them.
const SHAPES = [
  [[-.9, -.9], [.9, -.9], [.9, .9], [-.9, .9]],
  [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  [[0, -1.2], [1.15, .85], [-1.15, .85]],
  [[0, 1.2], [1.15, -.85], [-1.15, -.85]],
  [[-.4, -1.2], [.4, -1.2], [.4, -.4], [1.2, -.4], [1.2, .4], [.4, .4],
    [.4, 1.2], [-.4, 1.2], [-.4, .4], [-1.2, .4], [-1.2, -.4], [-.4, -.4]],
  [[-1.2, -.7], [-.7, -1.2], [0, -.5], [.7, -1.2], [1.2, -.7], [.5, 0],
    [1.2, .7], [.7, 1.2], [0, .5], [-.7, 1.2], [-1.2, .7], [-.5, 0]],
  [[0, -1.3], [.38, -.45], [1.25, -.4], [.6, .2], [.8, 1.1],
    [0, .6], [-.8, 1.1], [-.6, .2], [-1.25, -.4], [-.38, -.45]],
];

// A shape for each style; those that share a colour differ in shape.
function shape(style, x, y, r = 4.5) {
  const which = (style + Math.floor(style / 8)) % 8;
  if (which === 0) return `M${round(x - r)} ${round(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  return "M" + SHAPES[which - 1].map(([a, b]) => `${round(x + a * r)} ${round(y + b * r)}`).join("L") + "Z";
}

// --- scales

function scale(axis, values, from, to) {
  let low = axis.min ?? Math.min(...values), high = axis.max ?? Math.max(...values);
  if (axis.log) {
    low *= 0.8; high *= 1.25;
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const place = (v) => from + (to - from) * (Math.log10(v) - a) / (b - a);
    let ticks = [];
    for (const steps of [[1], [1, 3], [1, 2, 5]]) {
      ticks = [];
      for (let power = Math.floor(a); power <= Math.ceil(b); power++)
        for (const step of steps) { const v = step * 10 ** power; if (v >= low && v <= high) ticks.push(v); }
      if (ticks.length >= 3) break;
    }
    while (ticks.length > 7) ticks = ticks.filter((_, i) => i % 2 === 0);
    return { place, ticks };
  }
  if (high === low) { high += 0.5; low -= axis.min === undefined ? 0.5 : 0; }
  if (axis.whole) { low -= 0.25; high += 0.25; }
  const rough = (high - low) / (axis.whole ? 10 : 6), power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  if (axis.whole) step = Math.max(1, Math.round(step));
  if (axis.max === undefined && !axis.whole) high = Math.ceil(high / step - 1e-9) * step;
  if (axis.min === undefined && !axis.whole) low = Math.floor(low / step + 1e-9) * step;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step);
  return { place: (v) => from + (to - from) * (v - low) / (high - low), ticks };
}

// --- a drawing: an SVG, the spots that answer to a pointer, and the legend below

class Drawing {
  constructor(title, width) {
    this.width = Math.max(260, Math.round(width));
    this.svg = node("svg", { role: "img", "aria-label": title, xmlns: "http://www.w3.org/2000/svg" });
    this.spots = [];
  }

  add(name, attributes, text) { return this.svg.appendChild(node(name, attributes, text)); }

  mark(name, attributes, box, text, series = null) {
    this.spots.push({ box, text, series });
    return this.add(name, { class: "mark", ...attributes });
  }

  xAxis(axis, x, top, bottom, grid = true) {
    for (const tick of x.ticks) {
      const at = round(x.place(tick));
      if (grid) this.add("path", { class: "grid", d: `M${at} ${top}V${bottom}` });
      this.add("text", { class: "soft", x: at, y: bottom + 17, "text-anchor": "middle" }, number(tick));
    }
    this.add("text", { class: "soft", x: (x.from + x.to) / 2, y: bottom + 35, "text-anchor": "middle" }, axis.label);
  }

  yLabel(text, top, bottom) {
    const transform = `translate(11 ${(top + bottom) / 2}) rotate(-90)`;
    this.add("text", { class: "soft", "text-anchor": "middle", transform }, text);
  }

  category(name, left, y) {
    this.add("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, shortened(name, left - 12));
  }

  // Below everything else; a single series needs none. The height of the whole is the answer.
  legend(series, left, top) {
    if (series.length < 2) return top - 12;
    let x = left, y = top;
    for (const one of series) {
      const name = shortened(one.name, this.width - left - 60), wide = 34 + textWidth(name) + 16;
      if (x > left && x + wide > this.width) { x = left; y += 20; }
      if (one.bar) this.add("rect", { x, y: y - 9, width: 18, height: 10, ...fill(one.style) });
      else {
        if (one.line) this.add("path", { d: `M${x} ${y - 4}h26`, ...stroke(one.style) });
        if (!one.plain) this.add("path", { d: shape(one.style, x + 13, y - 4), ...marker(one) });
      }
      this.add("text", { x: x + 32, y }, name);
      x += wide;
    }
    return y + 10;
  }

  finish(height) {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${Math.ceil(height)}`);
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("height", Math.ceil(height));
    return this;
  }
}

function marker(one) {
  return { fill: one.hollow ? "var(--card)" : colour(one.style), stroke: colour(one.style), "stroke-width": 1.5 };
}

function stroke(style) {
  const dash = DASHES[style % DASHES.length];
  return { fill: "none", stroke: colour(style), "stroke-width": 2, ...(dash ? { "stroke-dasharray": dash } : {}) };
}

// Bars that stand beside each other differ in lightness and outline, too.
function fill(style) {
  const own = colour(style + 2);
  return { fill: own, "fill-opacity": [1, 0.55, 0.8, 0.35][style % 4], stroke: own, "stroke-width": 1 };
}

const DRAW = {
  lines(figure, width) {
    const drawing = new Drawing(figure.title, width), { series } = figure;
    const points = series.flatMap((one) => one.points);
    const rules = figure.rules ?? [], top = MARGIN.top + (rules.length ? 8 : 0), bottom = HEIGHT - MARGIN.bottom;
    const y = scale(figure.y, points.flatMap((p) => p.slice(1)), bottom, top);
    const left = 14 + Math.max(...y.ticks.map((t) => textWidth(number(t)))) + (figure.y.label ? 18 : 0);
    const right = drawing.width - MARGIN.right;
    const x = { ...scale(figure.x, points.map((p) => p[0]), left + 8, right - 8), from: left, to: right };
    for (const tick of y.ticks) {
      const at = round(y.place(tick));
      drawing.add("path", { class: "grid", d: `M${left} ${at}H${right}` });
      drawing.add("text", { class: "soft", x: left - 6, y: at + 4, "text-anchor": "end" }, number(tick));
    }
    drawing.yLabel(figure.y.label, top, bottom);
    let free = 0;
    for (const [at, text] of rules) {
      const here = round(x.place(at));
      drawing.add("path", { class: "grid", d: `M${here} 4V${bottom}`, "stroke-dasharray": "3 3" });
      if (here >= free) {
        drawing.add("text", { class: "soft", x: here + 4, y: 14 }, text);
        free = here + textWidth(text) + 12;
      }
    }
    drawing.xAxis(figure.x, x, top, bottom, !rules.length);
    const divided = (a, b) => rules.some(([at]) => a < at && at < b);  // a curve does not go on over a rule
    const place = (p, which = 1) => `${round(x.place(p[0]))} ${round(y.place(p[which]))}`;
    series.forEach((one, k) => {
      const band = one.points.filter((p) => p.length > 3);
      if (band.length < 2) return;
      const d = `M${[...band.map((p) => place(p, 3)), ...band.map((p) => place(p, 2)).reverse()].join("L")}Z`;
      drawing.add("path", { class: "band", d, fill: colour(one.style), "fill-opacity": 0.13, "data-series": k });
    });
    series.forEach((one, k) => {
      one.line = one.points.length > 1;
      if (!one.line) return;
      const goesOn = (i) => i > 0 && !divided(one.points[i - 1][0], one.points[i][0]);
      const d = one.points.map((p, i) => (goesOn(i) ? "L" : "M") + place(p)).join("");
      const thin = one.plain ? { "stroke-width": 1.5 } : {};
      drawing.add("path", { class: "curve", d, ...stroke(one.style), ...thin, "data-series": k });
    });
    series.forEach((one, k) => {
      for (const p of one.points) {
        const [px, py] = [x.place(p[0]), y.place(p[1])], box = [px, py, px, py];
        const range = p.length > 2 ? ` (${number(p[2])} to ${number(p[3])})` : "";
        const text = `${one.name}\n${figure.x.label}: ${number(p[0])}\n${figure.y.label}: ${number(p[1])}${range}`;
        if (one.plain) { drawing.spots.push({ box, text, series: k }); continue; }
        if (p.length > 2 && !one.line) {
          const bar = { stroke: colour(one.style), "stroke-width": 1.5, "data-series": k };
          drawing.add("path", { d: `M${place(p, 2)}L${place(p, 3)}`, ...bar });
        }
        drawing.mark("path", { d: shape(one.style, px, py), ...marker(one), "data-series": k }, box, text, k);
      }
    });
    return drawing.finish(drawing.legend(series, left, HEIGHT + 14));
  },

  ranges(figure, width) {
    const drawing = new Drawing(figure.title, width), { series, categories } = figure;
    const left = Math.min(drawing.width * 0.38, 12 + Math.max(...categories.map(textWidth)));
    const row = Math.max(26, 15 * series.length + 8), top = 6, bottom = top + row * categories.length;
    const right = drawing.width - MARGIN.right;
    const values = series.flatMap((one) => one.values).filter(Boolean).flat();
    const x = { ...scale(figure.x, values, left, right), from: left, to: right };
    drawing.xAxis(figure.x, x, top, bottom);
    categories.forEach((name, i) => {
      drawing.category(name, left, top + row * (i + 0.5));
      drawing.add("path", { class: "grid", d: `M${left} ${top + row * (i + 1)}H${right}` });
      series.forEach((one, k) => {
        const value = one.values[i];
        if (!value) return;
        const y = top + row * (i + 0.5) + 13 * (k - (series.length - 1) / 2), at = x.place(value[0]);
        let text = `${name}, ${one.name}\n${figure.x.label}: ${number(value[0])}`;
        if (value.length > 1) {
          const ends = value.slice(1).map((v) => round(Math.min(right, Math.max(left, x.place(v)))));
          const d = `M${ends[0]} ${y}H${ends[1]}M${ends[0]} ${y - 3}v6M${ends[1]} ${y - 3}v6`;
          drawing.add("path", { d, stroke: colour(one.style), "stroke-width": 1.5, fill: "none" });
          text += ` ± ${number((value[2] - value[1]) / 2)}`;
        }
        drawing.mark("path", { d: shape(one.style, at, y), ...marker(one) }, [at, y, at, y], text);
      });
    });
    return drawing.finish(drawing.legend(series, left, bottom + 58));
  },

  bars(figure, width) {
    const drawing = new Drawing(figure.title, width), { series, categories } = figure;
    const left = Math.min(drawing.width * 0.38, 12 + Math.max(...categories.map(textWidth)));
    const row = 26, top = 6, bottom = top + row * categories.length, right = drawing.width - MARGIN.right - 30;
    const ends = categories.flatMap((_, i) => {
      const parts = series.map((one) => one.values[i]);
      const sum = (some) => some.reduce((a, b) => a + b, 0);
      return [0, sum(parts.filter((v) => v > 0)), sum(parts.filter((v) => v < 0))];
    });
    const x = { ...scale({ ...figure.x, min: Math.min(0, ...ends) }, ends, left, right), from: left, to: right };
    drawing.xAxis(figure.x, x, top, bottom);
    categories.forEach((name, i) => {
      const y = top + row * i + 4, height = row - 8;
      drawing.category(name, left, y + 9);
      let done = 0;
      series.forEach((one) => {
        const value = one.values[i];
        const [a, b] = [x.place(done), x.place(done + value)].sort((p, q) => p - q);
        done += value;
        const bar = { x: round(a), y, width: round(Math.max(b - a, 0.5)), height, ...fill(one.style) };
        drawing.mark("rect", bar, [a, y, b, y + height], `${name}\n${one.name}: ${number(value)} ${figure.x.unit}`);
      });
      const end = round(Math.max(x.place(done), x.place(0)));
      drawing.add("text", { class: "soft", x: end + 5, y: y + 13 }, number(Number(done.toPrecision(3))));
    });
    series.forEach((one) => { one.bar = true; });
    return drawing.finish(drawing.legend(series, left, bottom + 58));
  },

  heat(figure, width) {
    const drawing = new Drawing(figure.title, width), { rows, columns, values } = figure;
    const left = 46, top = 4, wide = Math.min(80, (drawing.width - left - 8) / columns.length);
    const high = Math.min(wide, 40);
    const soft = (x, y, text, anchor) => {
      drawing.add("text", { class: "soft", x: round(x), y: round(y), "text-anchor": anchor }, text);
    };
    rows.forEach((name, i) => {
      const y = top + high * i;
      if (high >= 14 || i % 2 === 0) soft(left - 7, y + high / 2 + 4, name, "end");
      columns.forEach((column, j) => {
        const value = values[i][j];
        if (value === null) return;
        const rgb = heat(value / 100), x = left + wide * j;
        const cell = { x: round(x), y: round(y), width: round(wide - 1), height: round(high - 1), fill: `rgb(${rgb})` };
        const said = `${figure.y.label} ${name}, ${figure.x.label} ${column}\n${number(value)} %`;
        drawing.mark("rect", cell, [x, y, x + wide, y + high], said);
        if (wide < 34) return;
        const style = `fill: ${0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] > 125 ? "#000" : "#fff"}`;
        const middle = { x: round(x + wide / 2), y: round(y + high / 2 + 4), "text-anchor": "middle", style };
        drawing.add("text", middle, value.toFixed(wide >= 40 ? 1 : 0));
      });
    });
    const bottom = top + high * rows.length;
    columns.forEach((name, j) => {
      if (wide >= 18 || j % 2 === 0) soft(left + wide * (j + 0.5), bottom + 16, name, "middle");
    });
    soft(left + wide * columns.length / 2, bottom + 34, figure.x.label, "middle");
    drawing.yLabel(figure.y.label, top, bottom);
    const bar = Math.min(200, drawing.width - left - 60), steps = 50;
    for (let i = 0; i < steps; i++) {
      const step = { x: round(left + bar * i / steps), y: bottom + 46, width: round(bar / steps + 0.5), height: 8 };
      drawing.add("rect", { ...step, fill: `rgb(${heat(i / (steps - 1))})` });
    }
    soft(left - 6, bottom + 54, "0", "end");
    soft(left + bar + 6, bottom + 54, "100 %", "start");
    return drawing.finish(bottom + 62);
  },
};

function heat(share) {
  const at = Math.min(1, Math.max(0, share)) * (HEAT.length - 1), i = Math.min(HEAT.length - 2, Math.floor(at));
  return HEAT[i].map((from, k) => Math.round(from + (HEAT[i + 1][k] - from) * (at - i)));
}

// --- into the page

function drawAll() {
  for (const plot of document.querySelectorAll(".plot")) {
    const figure = facts.figures[plot.dataset.figure];
    const drawing = DRAW[figure.kind](figure, plot.clientWidth);
    plot.replaceChildren(drawing.svg);
    listen(plot, drawing);
    if (!plot.parentElement.querySelector(".save")) plot.after(saving(plot, figure.title));
  }
}

function saving(plot, title) {
  const box = document.createElement("div");
  box.className = "save";
  for (const kind of ["SVG", "PNG"]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.title = `Save this figure as ${kind}`;
    button.addEventListener("click", () => save(plot.querySelector("svg"), title, kind));
    box.append(button);
  }
  return box;
}

// A picture that stands alone: every colour and font written out, and the background behind it.
function alone(svg) {
  const copy = svg.cloneNode(true);
  const [all, theirs] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  all.forEach((one, i) => {
    const style = getComputedStyle(one);
    for (const key of ["fill", "stroke", "font-family", "font-size"])
      theirs[i].setAttribute(key, style.getPropertyValue(key));
    theirs[i].removeAttribute("class");
    theirs[i].removeAttribute("style");
    if (one.classList.contains("ring")) theirs[i].remove();
  });
  const card = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  copy.prepend(node("rect", { width: "100%", height: "100%", fill: card }));
  return new XMLSerializer().serializeToString(copy);
}

async function picture(svg, kind) {
  const text = alone(svg);
  if (kind === "SVG") return new Blob([text], { type: "image/svg+xml" });
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function save(svg, title, kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await picture(svg, kind));
  link.download = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").toLowerCase() + "." + kind.toLowerCase();
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// --- hover: the nearest mark says what it is

const tip = document.getElementById("tip");

function listen(plot, drawing) {
  const ring = node("rect", { class: "ring", rx: 3, visibility: "hidden" });
  drawing.svg.append(ring);
  const fade = (series) => {  // all curves but the one that is pointed at
    for (const one of drawing.svg.querySelectorAll("[data-series]"))
      one.style.opacity = series === null || one.dataset.series === String(series) ? "" : 0.2;
  };
  const show = (event) => {
    const frame = drawing.svg.getBoundingClientRect(), factor = drawing.width / frame.width;
    const [x, y] = [(event.clientX - frame.left) * factor, (event.clientY - frame.top) * factor];
    let best = null, least = 30;
    for (const spot of drawing.spots) {
      const [a, b, c, d] = spot.box;
      const away = Math.hypot(Math.max(a - x, 0, x - c), Math.max(b - y, 0, y - d));
      if (away < least) [best, least] = [spot, away];
    }
    if (best === null) return hide();
    const [a, b, c, d] = best.box, grow = a === c ? 7 : 1;
    const around = { x: a - grow, y: b - grow, width: c - a + 2 * grow, height: d - b + 2 * grow };
    for (const [key, value] of Object.entries(around)) ring.setAttribute(key, value);
    ring.setAttribute("visibility", "visible");
    fade(best.series);
    tip.textContent = best.text;
    tip.hidden = false;
    const wide = document.documentElement.clientWidth;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, wide - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
  };
  const hide = () => { tip.hidden = true; ring.setAttribute("visibility", "hidden"); fade(null); };
  drawing.svg.addEventListener("pointermove", show);
  drawing.svg.addEventListener("pointerdown", show);
  drawing.svg.addEventListener("pointerleave", hide);
}

// --- tables

function makeSortable(table) {
  table.querySelectorAll("th").forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      sort(table, column, head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
    });
  });
}

function sort(table, column, order) {
  table.querySelectorAll("th").forEach((head) => head.removeAttribute("aria-sort"));
  table.querySelectorAll("th")[column].setAttribute("aria-sort", order);
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent;
  };
  const sign = order === "ascending" ? 1 : -1, body = table.tBodies[0];
  // Numbers before words, whichever the order: what is not known stays at the end.
  const compare = (a, b) => typeof a === typeof b
    ? sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }))
    : (typeof a === "number" ? -1 : 1);
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
}

function wake() {
  document.querySelectorAll("table").forEach(makeSortable);
  drawAll();
}

// --- news, where a server is there to ask

const main = document.querySelector("main"), news = document.getElementById("news");
const EVERY = 2000;  // milliseconds

function replaceBody(fresh) {
  const open = new Map([...main.querySelectorAll("details")].map((one) => [one.id, one.open]));
  const sorted = [...main.querySelectorAll("th[aria-sort]")].map((head) => {
    return [head.closest("table").id, head.cellIndex, head.getAttribute("aria-sort")];
  });
  facts = { ...facts, ...fresh };
  document.title = fresh.title;
  main.innerHTML = fresh.html;  // made by the same server that made this page, where every name was escaped
  for (const one of main.querySelectorAll("details")) one.open = open.get(one.id) ?? one.open;
  tip.hidden = true;
  wake();
  for (const [id, column, order] of sorted) {
    const table = document.getElementById(id);
    if (table && table.querySelectorAll("th")[column]) sort(table, column, order);
  }
}

async function ask() {
  try {
    if (!document.hidden) {
      const answer = await fetch("news?seen=" + encodeURIComponent(facts.version ?? ""), { cache: "no-store" });
      if (answer.status === 200) replaceBody(await answer.json());
      if (answer.ok) news.textContent = "Watching: this page renews itself.";
    }
  } catch {
    news.textContent = "The server that this page came from does not answer; it shows what was known last.";
  }
  setTimeout(ask, EVERY);
}

wake();
let drawnWidth = document.documentElement.clientWidth;
addEventListener("resize", () => {
  if (document.documentElement.clientWidth === drawnWidth) return;
  drawnWidth = document.documentElement.clientWidth;
  drawAll();
});
if (facts.watching) { news.textContent = "Watching: this page renews itself."; setTimeout(ask, EVERY); }
