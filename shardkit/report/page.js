// The page: from records of runs to its sections.

const runs = JSON.parse(document.getElementById("records").textContent);
const LOSSES = ["train_loss", "validation_loss"];
const FIRST = ["learning_rate", "gradient_norm", "_per_second", "exposed_communication_seconds", "data_wait_seconds"];

function last(points) { return points && points.length ? points[points.length - 1][1] : null; }

function lowest(points) { return points && points.length ? Math.min(...points.map((p) => p[1])) : null; }

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function shortNames() { // the runs without the folders that they all share
  const parts = runs.map((run) => run.name.split("/"));
  let shared = 0;
  while (runs.length > 1 && parts.every((p) => p.length > shared + 1 && p[shared] === parts[0][shared])) shared += 1;
  return runs.length > 1 ? parts.map((p) => p.slice(shared).join("/")) : [runs[0].name];
}

const names = shortNames();

function speedOf(run) { return Object.keys(run.curves).find((name) => name.endsWith("_per_second")); }

function setting(run, name) { const row = run.settings.find((s) => s.name === name); return row ? row.value : null; }

function lossUnit(run) { return setting(run, "run.task") === "language" ? "nats per token" : "mean of a batch"; }

// [label, value, more] of a run, the same rows for all runs
function facts(run) {
  const speed = speedOf(run);
  const exposed = run.curves.exposed_communication_seconds;
  const skipped = last(run.skipped) || 0;
  const time = run.ended && run.began ? run.ended - run.began : null;
  return [
    ["Steps", run.total_steps ? `${grouped(run.steps)} of ${grouped(run.total_steps)}` : grouped(run.steps), skipped ? `${skipped} skipped` : "none skipped"],
    ["Training loss", figure(last(run.curves.train_loss)), `${lossUnit(run)}, last`],
    ["Validation loss", figure(last(run.curves.validation_loss)), `last; lowest ${figure(lowest(run.curves.validation_loss))}`],
    ["Speed", speed ? figure(median(run.curves[speed].map((p) => p[1]))) : "none", speed ? `${meaning(speed).unit}, median` : ""],
    ["Exposed communication", exposed ? seconds(median(exposed.map((p) => p[1]))) : "none", "per step, median, rank 0"],
    ["Memory", run.memory ? bytes(Math.max(...run.memory.together)) : "unknown", run.memory ? "largest rank; arrays" : "not recorded"],
    ["Ranks", run.ranks ? grouped(run.ranks.ranks.length) : "unknown", run.ranks ? `${counted(new Set(run.ranks.ranks.map((r) => r.node)).size, "node")}, ${run.ranks.policy}` : ""],
    ["Time", time === null ? "unknown" : seconds(time), "first report to last"],
  ];
}

function drawHead() {
  put(page, "h1", {}, runs.length === 1 ? runs[0].name : names.join(", "));
  const started = runs.map((run) => (run.ranks ? new Date(run.ranks.started * 1000).toISOString().slice(0, 16).replace("T", " ") : null));
  const parameters = runs[0].ranks ? `${counted(runs[0].ranks.parameter_count, "parameter")}, ` : "";
  if (runs.length > 1) return drawComparison();
  put(page, "p", {class: "note"}, `${parameters}${started[0] ? `started ${started[0]} UTC` : "start not recorded"}`);
  putTiles(facts(runs[0]));
}

function drawComparison() {
  const table = put(put(page, "div", {class: "table comparison", style: "margin-top:14px"}), "table");
  const head = put(table, "tr");
  put(head, "th", {}, "");
  names.forEach((name, i) => {
    const cell = put(head, "th", {class: "number"});
    put(cell, "span", {class: "key", style: `background:${colourOf(i)}`});
    cell.append(name);
  });
  const columns = runs.map(facts);
  columns[0].forEach(([label, , more], line) => {
    const row = put(table, "tr");
    const isShared = new Set(columns.map((column) => column[line][2])).size === 1;
    const name = put(row, "th", {}, label);
    if (isShared) put(name, "div", {class: "more"}, more);
    for (const column of columns) {
      const cell = put(row, "td", {class: "number"}, column[line][1]);
      if (!isShared) put(cell, "div", {class: "more"}, column[line][2]);
    }
  });
}

function drawCurves() {
  put(page, "h2", {}, "Curves");
  const grid = put(page, "div", {class: "grid"});
  const events = runs.length > 1 ? [] : eventsOf(runs[0]);
  chart(grid, {title: "Loss", unit: lossUnit(runs[0]), text: figure, curves: lossCurves(), events}, true);
  if (events.length) put(grid.lastChild, "p", {class: "note"}, `On the axis: checkpoints (ticks)${events.some((e) => e.bad) ? ", skipped steps (crosses)" : ""}.`);
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => !LOSSES.includes(name));
  all.sort((a, b) => order(a) - order(b));
  for (const name of all) {
    const curves = runs.map((run, i) => ({name: names[i], colour: colourOf(i), points: run.curves[name] || [], dots: true})).filter((c) => c.points.some((p) => p[1] !== null));
    curves.forEach((c) => { c.points = c.points.filter((p) => p[1] !== null); });
    if (curves.length === 1 && runs.length === 1) curves[0].name = meaning(name).title;
    if (curves.length) chart(grid, {...meaning(name), curves}, false);
  }
}

function order(name) { const at = FIRST.findIndex((end) => name.endsWith(end)); return at < 0 ? FIRST.length : at; }

function lossCurves() {
  const kinds = [["train_loss", "training", false], ["validation_loss", "validation", true]];
  return runs.flatMap((run, i) => kinds.map(([key, kind, held], k) => ({
    name: runs.length > 1 ? `${names[i]}, ${kind}` : kind,
    colour: runs.length > 1 ? colourOf(i) : colourOf(k),
    points: run.curves[key] || [], dots: held, dashed: held && runs.length > 1,
  }))).filter((curve) => curve.points.length);
}

function eventsOf(run) {
  return [
    ...run.checkpoints.map((c) => ({step: c.step, name: "checkpoint", text: `paused ${seconds(c.pause)}`})),
    ...run.skipped.map(([step, total]) => ({step, bad: true, name: "skipped", text: `${total} so far`})),
  ];
}

function titled(parent, i) { if (runs.length > 1) put(parent, "h3", {style: `color:${colourOf(i)};margin-top:12px`}, names[i]); }

function section(title, has, draw, missing) {
  put(page, "h2", {}, title);
  const stack = put(page, "div", {class: "stack"});
  runs.forEach((run, i) => {
    titled(stack, i);
    if (has(run)) draw(stack, run);
    else put(stack, "p", {class: "note"}, missing);
  });
}

function drawEventTable(parent, run) {
  const lines = run.checkpoints.map((c) => [grouped(c.step), run.best && run.best.step === c.step ? `checkpoint, the best: validation loss ${figure(run.best.loss)}` : "checkpoint", `training paused ${seconds(c.pause)}${c.write === null ? "" : `, written in ${seconds(c.write)}`}`]);
  run.skipped.forEach(([step, total]) => lines.push([grouped(step), "skipped", `loss or gradients were NaN or infinite; ${total} so far`]));
  run.recoveries.forEach(([step, took]) => lines.push([grouped(step), "recovery", `ranks died; training went on after ${seconds(took)}`]));
  lines.sort((a, b) => Number(a[0].replaceAll(",", "")) - Number(b[0].replaceAll(",", "")));
  rows(parent, [["step", "number"], ["event", "name"], ["", "text"]], lines);
}

function drawSettings() {
  put(page, "h2", {}, "Settings");
  const all = [...new Map(runs.flatMap((run) => run.settings).map((s) => [s.name, s])).values()];
  const values = (name) => runs.map((run) => shownSetting(setting(run, name)));
  const line = (s) => [s.name, ...values(s.name), s.unit, s.text];
  const heads = [["setting", "name"], ...runs.map((_, i) => [runs.length > 1 ? names[i] : "value", "value"]), ["unit", "name"], ["meaning", "text"]];
  const differ = all.filter((s) => new Set(values(s.name)).size > 1);
  const changed = all.filter((s) => values(s.name).some((v) => v !== shownSetting(s.default)));
  if (runs.length > 1) {
    put(page, "p", {class: "note"}, differ.length ? "Where the runs differ:" : "The runs have the same settings.");
    if (differ.length) rows(page, heads, differ.map(line));
  } else {
    put(page, "p", {class: "note"}, "Those that are not the defaults:");
    rows(page, heads, changed.map(line));
  }
  const more = put(page, "details");
  put(more, "summary", {}, `All ${counted(all.length, "setting")}`);
  rows(more, heads, all.map(line));
}

function drawNumbers() {
  put(page, "h2", {}, "Numbers");
  runs.forEach((run, i) => {
    titled(page, i);
    const curves = Object.keys(run.curves);
    const steps = [...new Set(curves.flatMap((name) => run.curves[name].map((p) => p[0])))].sort((a, b) => a - b);
    const found = Object.fromEntries(curves.map((name) => [name, new Map(run.curves[name])]));
    const more = put(page, "details");
    put(more, "summary", {}, `All reports and validations: ${counted(steps.length, "step")}, as metrics.jsonl has them`);
    const cell = (name, step) => { const v = found[name].get(step); return v === undefined || v === null ? "" : String(v); };
    rows(more, [["step", "number"], ...curves.map((name) => [words(name), "number"])], steps.map((step) => [grouped(step), ...curves.map((name) => cell(name, step))]));
  });
}

drawHead();
drawCurves();
section("Timeline of one step", (run) => run.timeline, drawTimeline, "No step was recorded: the run was shorter, or older than this report.");
section("Memory", (run) => run.memory, drawMemory, "The run recorded no memory.");
section("Mesh", (run) => run.ranks, drawMesh, "The run did not record where its ranks were.");
section("Events", (run) => run.checkpoints.length + run.skipped.length + run.recoveries.length, drawEventTable, "No checkpoints, no skipped steps.");
drawSettings();
drawNumbers();
