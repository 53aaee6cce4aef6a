// Elements, and numbers as text with their units.

const SVG = "http://www.w3.org/2000/svg";

function put(parent, name, attributes, ...children) {
  const inSvg = name === "svg" || parent instanceof SVGElement;
  const made = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  parent.append(made);
  return made;
}

function onWidth(element, draw) { // draw(width) now, and whenever the element has another width
  let width = 0;
  const look = () => {
    const now = Math.floor(element.clientWidth);
    if (now && now !== width) { width = now; draw(width); }
  };
  look();
  new ResizeObserver(() => requestAnimationFrame(look)).observe(element);
}

function figure(value) { // four digits that count, without noise behind them
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) && size < 1e6) return grouped(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return grouped(Math.round(value));
  return value.toPrecision(4);
}

function short(value) { return Math.abs(value) >= 1000 || value === 0 ? figure(value) : String(Number(value.toPrecision(4))); } // of an axis

function counted(number, name, many = `${name}s`) { return `${grouped(number)} ${number === 1 ? name : many}`; }

function grouped(value) { return value.toLocaleString("en-US", {maximumFractionDigits: 0}); }

function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  const size = Math.abs(value);
  if (value === 0) return "0 s";
  if (size < 1e-3) return `${figure(value * 1e6)} µs`;
  if (size < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (size < 120) return `${Number(value.toPrecision(3))} s`;
  const minutes = Math.round(value / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function bytes(value) {
  const names = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < names.length - 1) { value /= 1024; at += 1; }
  return `${Number(value.toPrecision(3))} ${names[at]}`;
}

function percent(value) { return `${Number((value * 100).toPrecision(3))} %`; }

function colourOf(number) { return `var(--c${number % 8})`; }

function words(name) { return name.replaceAll("_", " "); }

function capital(text) { return text.charAt(0).toUpperCase() + text.slice(1); }

// What a curve is called, and its unit: {title, unit, text: value with its unit, fromZero}
function meaning(name) {
  const speed = name.match(/^(.*)_per_second$/);
  if (speed) return {title: "Speed", unit: `${words(speed[1])}/s`, fromZero: true, text: (v) => `${figure(v)} ${words(speed[1])}/s`};
  const time = name.match(/^(.*)_seconds$/);
  if (time) return {title: capital(words(time[1])), unit: "time per step, on rank 0", fromZero: true, text: seconds, ticks: seconds};
  const known = {
    learning_rate: ["Learning rate", "per step", true], gradient_norm: ["Gradient norm", "before clipping", true],
    loss_scale: ["Loss scale", "factor", false], bits_per_byte: ["Bits per byte", "held-out text", false],
  }[name] || [capital(words(name)), "held-out samples", false];
  return {title: known[0], unit: known[1], fromZero: known[2], text: figure};
}

function niceTicks(low, high, most) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

const tip = document.getElementById("tip");

function showTip(event, head, rows) { // rows: [colour or null, name, value]
  tip.replaceChildren();
  put(tip, "div", {class: "head"}, head);
  for (const [colour, name, value] of rows) {
    const row = put(tip, "div", {class: "row"});
    const left = put(row, "span", {});
    if (colour) put(left, "span", {class: "key", style: `background:${colour}`});
    left.append(name);
    put(row, "b", {}, value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 14 + box.width > innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX - 14 - box.width : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
}

function hideTip() { tip.hidden = true; }

const page = document.getElementById("page");

function putTiles(facts) { // [label, value, more] of each
  const tiles = put(page, "div", {class: "tiles"});
  for (const fact of facts) {
    const tile = put(tiles, "div", {class: "tile"});
    ["label", "value", "more"].forEach((kind, i) => put(tile, "div", {class: kind}, fact[i]));
  }
}

function rows(parent, heads, lines) { // lines: arrays of text; numbers are put to the right
  const table = put(put(parent, "div", {class: "table"}), "table");
  const head = put(table, "tr");
  heads.forEach(([name, kind]) => put(head, "th", {class: kind === "number" ? "number" : null}, name));
  for (const line of lines) {
    const row = put(table, "tr");
    line.forEach((cell, i) => put(row, "td", {class: heads[i][1]}, cell));
  }
}

function shownSetting(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.join(", ") || "none";
  return typeof value === "number" ? String(value) : `${value}`;
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
