// The page of an ensemble: its trials from the lowest loss on, their curves, the loss over each setting.

const sweep = JSON.parse(document.getElementById("records").textContent);
const MOST_CURVES = 24;

function numberOf(status) { return sweep.trials.filter((trial) => trial.status === status).length; }

function isFinished(point) { return point.trial.status === "finished"; }

function valuesOf(trial) { return sweep.tried.map((name, i) => `${name.split(".").pop()} ${shownValue(trial.values[i])}`).join(", "); }

function shownValue(value) { return typeof value === "number" ? figure(value) : shownSetting(value); }

function drawHead() {
  put(page, "h1", {}, sweep.name);
  const best = sweep.trials.find((trial) => trial.status === "finished" && trial.loss !== null);
  putTiles([
    ["Trials", grouped(sweep.trials.length), `${numberOf("finished")} finished, ${numberOf("waiting")} to go`],
    ["Failed", grouped(numberOf("failed")), numberOf("failed") ? "errors are in the table" : ""],
    ["Stopped", grouped(numberOf("stopped")), numberOf("stopped") ? "others were better" : ""],
    ["Lowest loss", best ? figure(best.loss) : "none", best ? `trial ${best.number}: ${valuesOf(best)}` : "no trial has finished"],
  ]);
}

function drawCurves() {
  const drawn = sweep.trials.filter((trial) => trial.curve.length).slice(0, MOST_CURVES);
  if (!drawn.length) return;
  put(page, "h2", {}, "Curves");
  const curves = drawn.map((trial, i) => ({name: `trial ${trial.number}`, colour: colourOf(i), points: trial.curve, dashed: trial.status !== "finished", dots: true}));
  const more = drawn.length < sweep.trials.length ? `the best ${drawn.length} of ${sweep.trials.length}` : "all trials";
  chart(put(page, "div", {class: "grid"}), {title: "Validation loss", unit: `${more}; dashed: not finished`, text: figure, curves}, true);
}

function drawSettings() {
  const measured = sweep.trials.filter((trial) => trial.loss !== null);
  if (measured.length < 2 || !sweep.tried.length) return;
  put(page, "h2", {}, "Loss over settings");
  const grid = put(page, "div", {class: "grid"});
  sweep.tried.forEach((name, i) => scatter(grid, name, measured.map((trial) => ({trial, value: trial.values[i], loss: trial.loss}))));
}

function scatter(parent, name, points) {
  const card = put(parent, "section", {class: "card"});
  const isNumber = points.every((p) => typeof p.value === "number");
  const low = Math.min(...points.map((p) => p.value));
  const isLog = isNumber && low > 0 && Math.max(...points.map((p) => p.value)) / low > 20;
  put(card, "h3", {}, `${name} `).append(Object.assign(document.createElement("span"), {className: "unit", textContent: [isLog ? "logarithmic" : "", points.every(isFinished) ? "" : "pale: not finished"].filter(Boolean).join("; ")}));
  const texts = [...new Set(points.map((p) => shownValue(p.value)))].sort();
  const across = (p) => { if (!isNumber) return texts.indexOf(shownValue(p.value)); return isLog ? Math.log10(p.value) : p.value; };
  onWidth(put(card, "div", {class: "chart"}), function draw(width) { drawScatter(card.querySelector(".chart"), points, across, width, name); });
}

function drawScatter(place, points, across, width, name) {
  place.replaceChildren();
  const area = {left: 58, right: 12, top: 10, bottom: 26};
  const svg = put(place, "svg", {viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `Validation loss over ${name}`});
  const at = points.map(across);
  const [first, last] = [Math.min(...at), Math.max(...at)];
  const scale = scales({curves: [{points: points.map((p) => [0, p.loss])}]}, width, HEIGHT, area);
  const x = (value) => area.left + (last > first ? 0.03 + 0.94 * (value - first) / (last - first) : 0.5) * (width - area.left - area.right);
  drawLevels(svg, scale, width, HEIGHT, area, short);
  const ends = new Map(points.map((p, i) => [at[i], shownValue(p.value)]));
  const shown = [...ends.keys()].sort((a, b) => a - b);
  const labels = shown.length <= 5 ? shown : [first, last];
  labels.forEach((value) => put(svg, "text", {x: x(value), y: HEIGHT - 9, "text-anchor": value === first && last > first ? "start" : value === last && last > first ? "end" : "middle"}, shortened(ends.get(value), 14)));
  points.forEach((p, i) => {
    const dot = put(svg, "circle", {cx: x(at[i]), cy: scale.y(p.loss), r: 4.5, fill: colourOf(0), "fill-opacity": isFinished(p) ? 0.85 : 0.35});
    dot.addEventListener("pointermove", (event) => showTip(event, `trial ${p.trial.number}`, [[null, "loss", figure(p.loss)], [null, name, shownValue(p.value)], [null, "status", p.trial.status]]));
    dot.addEventListener("pointerleave", hideTip);
  });
}

function drawTable() {
  put(page, "h2", {}, "Trials");
  const kinds = sweep.tried.map((_, i) => (sweep.trials.every((trial) => typeof trial.values[i] === "number") ? "number" : "name"));
  const heads = [["trial", "number"], ["status", "name"], ["step", "number"], ["validation loss", "number"], ...sweep.tried.map((name, i) => [name, kinds[i]])];
  const notes = sweep.trials.map((trial) => trial.error || trial.sources.map(([step, source]) => `state of trial ${source} at step ${grouped(step)}`).join("; "));
  if (notes.some(Boolean)) heads.push(["", "text"]);
  rows(page, heads, sweep.trials.map((trial, i) => [
    String(trial.number), trial.status, grouped(trial.step), figure(trial.loss), ...trial.values.map(shownValue), notes[i],
  ].slice(0, heads.length)));
}

drawHead();
drawCurves();
drawSettings();
drawTable();
