"use strict";
// The page is whole without this. It adds: the values under the pointer (or the arrow keys), and runs to hide.

const SVG = "http://www.w3.org/2000/svg";

function numbers(text) {
  return text.split(" ").map(Number);
}

function read(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e7) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle;
  }
  return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
}

function made(name, attributes, parent, text) {
  const node = name === "line" || name === "circle" ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

class Pointed {
  constructor(svg, curves, stacked) {
    [this.svg, this.stacked] = [svg, stacked];
    this.curves = curves.filter(curve => curve.points.length);
    [this.left, this.right, this.top, this.bottom] = numbers(svg.dataset.frame);
    [this.x0, this.x1] = numbers(svg.dataset.x);
    [this.y0, this.y1] = numbers(svg.dataset.y);
    svg.tabIndex = 0;
    svg.addEventListener("pointermove", event => this.show(this.valueAt(event.clientX)));
    svg.addEventListener("pointerdown", event => this.show(this.valueAt(event.clientX)));
    svg.addEventListener("pointerleave", () => this.hide());
    svg.addEventListener("blur", () => this.hide());
    svg.addEventListener("keydown", event => this.step(event));
  }

  valueAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const place = (clientX - box.left) / box.width * this.svg.viewBox.baseVal.width;
    const part = (place - this.left) / (this.right - this.left);
    return this.x0 + Math.min(1, Math.max(0, part)) * (this.x1 - this.x0);
  }

  step(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!way) return;
    event.preventDefault();
    const at = this.at === undefined ? this.x0 : this.at + way * (this.x1 - this.x0) / 100;
    this.show(Math.min(this.x1, Math.max(this.x0, at)));
  }

  up(y) {
    const log = this.svg.dataset.log;
    const part = log ? Math.log(y / this.y0) / Math.log(this.y1 / this.y0) : (y - this.y0) / (this.y1 - this.y0);
    return this.bottom + part * (this.top - this.bottom);
  }

  across(x) {
    return this.left + (x - this.x0) / (this.x1 - this.x0) * (this.right - this.left);
  }

  show(x) {
    this.hide();
    this.at = x;
    const shown = this.curves.filter(curve => !hidden.has(curve.run));
    if (!shown.length) return;
    const found = shown.map(curve => ({ ...curve, point: nearest(curve.points, x) }));
    const line = this.across(this.stacked ? found[0].point[0] : x);
    this.marks = [made("line", { class: "pointer", x1: line, x2: line, y1: this.top, y2: this.bottom }, this.svg)];
    if (!this.stacked) this.circle(found);
    this.tell(found, line);
  }

  circle(found) {
    for (const { point: [x, y], colour } of found) {
      if (y === null || (this.svg.dataset.log && y <= 0)) continue;
      const at = this.up(y);
      if (at < this.top - 1) continue;
      this.marks.push(made("circle", { cx: this.across(x), cy: at, r: 3.6, fill: colour, stroke: "#fff" }, this.svg));
    }
  }

  tell(found, line) {
    const box = made("div", { class: "told" }, this.svg.parentNode);
    made("div", {}, box, `${this.svg.dataset.across} ${read(found[0].point[0])}`);
    const rows = made("table", {}, box);
    for (const { name, colour, point } of this.stacked ? [...found].reverse() : found) this.row(rows, name, colour, point[1]);
    if (this.stacked) this.row(rows, "together", "transparent", found.reduce((sum, { point }) => sum + (point[1] || 0), 0));
    const scale = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width;
    const room = this.svg.parentNode.clientWidth - box.offsetWidth;
    const left = line * scale + 12 > room ? line * scale - box.offsetWidth - 12 : line * scale + 12;
    box.style.left = `${Math.max(0, Math.min(room, left))}px`;
    box.style.top = `${this.svg.getBoundingClientRect().top - this.svg.parentNode.getBoundingClientRect().top + 24 * scale}px`;
    this.marks.push(box);
  }

  row(rows, name, colour, value) {
    const row = made("tr", {}, rows);
    const cell = made("td", {}, row);
    made("i", {}, cell).style.background = colour;
    cell.append(name);
    made("td", {}, row, read(value));
  }

  hide() {
    for (const mark of this.marks || []) mark.remove();
    this.marks = [];
  }
}

const hidden = new Set();

function toggle(run) {
  if (!hidden.delete(run)) hidden.add(run);
  for (const node of document.querySelectorAll(`[data-run="${run}"]`)) node.classList.toggle("off", hidden.has(run));
}

for (const script of document.querySelectorAll("figure > script[type='application/json']")) {
  const { curves, stacked } = JSON.parse(script.textContent);
  new Pointed(script.parentNode.querySelector("svg.plot"), curves, stacked);
}

const keys = [...document.querySelectorAll("li[data-run], span.run[data-run]")];
if (new Set(keys.map(key => key.dataset.run)).size > 1) {
  for (const key of keys) {
    const turn = () => toggle(Number(key.dataset.run));
    key.setAttribute("role", "button");
    key.tabIndex = 0;
    key.title = "show or hide this run";
    key.addEventListener("click", turn);
    key.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    });
  }
}
