// Curves over steps: one chart is {title, unit, text, fromZero, curves, events}.
// A curve is {name, colour, points: [[step, value]], dots, dashed}.

const HEIGHT = 210;

function chart(parent, spec, wide) {
  const card = put(parent, "section", {class: wide ? "card wide" : "card"});
  put(card, "h3", {}, `${spec.title} `).append(Object.assign(document.createElement("span"), {className: "unit", textContent: spec.unit}));
  const legend = put(card, "div", {class: "legend"});
  const place = put(card, "div", {class: "chart"});
  onWidth(place, (width) => drawChart(place, legend, spec, width, wide));
}

function drawChart(place, legend, spec, width, wide) {
  place.replaceChildren();
  legend.replaceChildren();
  const height = wide ? 280 : HEIGHT;
  const many = spec.curves.length > 1;
  const direct = many && width > 520 && spec.curves.length <= 6;
  const area = {left: 58, right: direct ? (wide ? 150 : 108) : 12, top: 10, bottom: 26};
  if (many && !direct) spec.curves.forEach((curve) => nameOf(legend, curve));
  const scale = scales(spec, width, height, area);
  const svg = put(place, "svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": spoken(spec)});
  drawAxes(svg, spec, scale, width, height, area);
  drawEvents(svg, spec, scale, height, area);
  spec.curves.forEach((curve) => drawCurve(svg, curve, scale));
  if (direct) drawLabels(svg, spec, scale, width - area.right, area.top, height - area.bottom);
  listen(svg, spec, scale, width, height, area);
}

function nameOf(legend, curve) {
  const item = put(legend, "span", {});
  put(item, "span", {class: "key", style: `background:${curve.colour}${curve.dashed ? ";border-radius:50%" : ""}`});
  item.append(curve.name);
}

function spoken(spec) {
  const ends = spec.curves.filter((c) => c.points.length).map((c) => `${c.name} ends at ${spec.text(c.points[c.points.length - 1][1])}`);
  return `${spec.title}, ${spec.unit}, over steps: ${ends.join("; ")}`;
}

function scales(spec, width, height, area) {
  const points = spec.curves.flatMap((curve) => curve.points);
  const steps = points.map((p) => p[0]);
  const values = points.map((p) => p[1]);
  const first = Math.min(...steps);
  const last = Math.max(...steps);
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (spec.fromZero && low >= 0) low = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  if (low !== 0) low -= room;
  high += room;
  const across = width - area.left - area.right;
  const down = height - area.top - area.bottom;
  return {
    first, last, low, high,
    x: (step) => area.left + (last > first ? (step - first) / (last - first) : 0.5) * across,
    y: (value) => area.top + (1 - (value - low) / (high - low)) * down,
  };
}

function drawLevels(svg, scale, width, height, area, text) {
  const across = (kind, y) => put(svg, "line", {class: kind, x1: area.left, x2: width - area.right, y1: y, y2: y});
  for (const tick of niceTicks(scale.low, scale.high, 4)) {
    across("grid-line", scale.y(tick));
    put(svg, "text", {x: area.left - 8, y: scale.y(tick) + 4, "text-anchor": "end"}, text(tick));
  }
  across("axis", height - area.bottom);
}

function drawAxes(svg, spec, scale, width, height, area) {
  drawLevels(svg, scale, width, height, area, spec.ticks || short);
  const bottom = height - area.bottom;
  const ticks = niceTicks(scale.first, scale.last, Math.max(4, Math.floor((width - area.left - area.right) / 100))).filter(Number.isInteger);
  ticks.forEach((tick, i) => {
    const atEnd = i === ticks.length - 1;
    const anchor = atEnd && scale.x(tick) > width - area.right - 24 ? "end" : "middle";
    put(svg, "text", {x: scale.x(tick), y: bottom + 17, "text-anchor": anchor}, atEnd ? `step ${grouped(tick)}` : grouped(tick));
  });
}

function drawEvents(svg, spec, scale, height, area) {
  const bottom = height - area.bottom;
  for (const event of spec.events || []) {
    if (event.step < scale.first || event.step > scale.last) continue;
    const x = scale.x(event.step);
    if (event.bad) put(svg, "path", {class: "bad", d: `M${x - 4} ${bottom - 12}l8 8m0 -8l-8 8`});
    else put(svg, "line", {class: "event", x1: x, x2: x, y1: bottom - 6, y2: bottom});
  }
}

function drawCurve(svg, curve, scale) {
  const at = curve.points.map(([step, value]) => [scale.x(step), scale.y(value)]);
  if (!at.length) return;
  const path = at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  put(svg, "path", {class: curve.dashed ? "curve dashed" : "curve", d: path, stroke: curve.colour});
  if ((curve.dots && at.length <= 24) || at.length === 1) {
    at.forEach(([x, y]) => put(svg, "circle", {cx: x, cy: y, r: 3, fill: curve.colour}));
  }
}

function drawLabels(svg, spec, scale, right, top, bottom) {
  const labels = spec.curves.filter((c) => c.points.length).map((curve) => {
    const [step, value] = curve.points[curve.points.length - 1];
    return {curve, value, x: scale.x(step), at: scale.y(value), y: scale.y(value)};
  }).sort((a, b) => a.at - b.at);
  const gap = 29;
  labels.forEach((label, i) => { label.y = Math.max(label.at, top + 4, i ? labels[i - 1].y + gap : -Infinity); });
  for (let i = labels.length - 1; i >= 0; i -= 1) {
    labels[i].y = Math.min(labels[i].y, i === labels.length - 1 ? bottom - 20 : labels[i + 1].y - gap);
  }
  for (const label of labels) {
    put(svg, "line", {class: "grid-line", x1: label.x + 3, y1: label.at, x2: right + 8, y2: label.y});
    put(svg, "text", {class: "label", x: right + 12, y: label.y + 3, style: `fill:${label.curve.colour}`}, shortened(label.curve.name, 22));
    put(svg, "text", {x: right + 12, y: label.y + 16}, spec.text(label.value));
  }
}

function shortened(text, most) { return text.length > most ? `…${text.slice(1 - most)}` : text; }

function listen(svg, spec, scale, width, height, area) {
  const rule = put(svg, "line", {class: "rule", y1: area.top, y2: height - area.bottom, visibility: "hidden"});
  const dots = spec.curves.map((curve) => put(svg, "circle", {r: 3.5, fill: curve.colour, visibility: "hidden"}));
  const steps = [...new Set(spec.curves.flatMap((curve) => curve.points.map((p) => p[0])))].sort((a, b) => a - b);
  let chosen = steps.length - 1;
  const show = (where) => {
    const step = steps[chosen];
    rule.setAttribute("x1", scale.x(step));
    rule.setAttribute("x2", scale.x(step));
    rule.setAttribute("visibility", "visible");
    const rows = [];
    spec.curves.forEach((curve, i) => {
      const point = curve.points.find((p) => p[0] === step);
      dots[i].setAttribute("visibility", point ? "visible" : "hidden");
      if (!point) return;
      dots[i].setAttribute("cx", scale.x(step));
      dots[i].setAttribute("cy", scale.y(point[1]));
      rows.push([curve.colour, curve.name, spec.text(point[1])]);
    });
    for (const event of spec.events || []) if (event.step === step) rows.push([null, event.name, event.text]);
    showTip(where, `step ${grouped(step)}`, rows);
  };
  const hide = () => { [rule, ...dots].forEach((each) => each.setAttribute("visibility", "hidden")); hideTip(); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * width / box.width;
    chosen = steps.reduce((best, step, i) => (Math.abs(scale.x(step) - x) < Math.abs(scale.x(steps[best]) - x) ? i : best), 0);
    show(event);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    chosen = Math.min(Math.max(chosen + move, 0), steps.length - 1);
    const box = svg.getBoundingClientRect();
    show({clientX: box.left + scale.x(steps[chosen]) * box.width / width, clientY: box.top + 20});
  });
}
