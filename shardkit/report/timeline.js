// One step: the measured actions of each stage's rank, above what its program predicts.

const GROUPS = {
  forward: "forward", backward: "backward, of inputs", weight: "backward, of weights", parameters: "gather and release",
  gradients: "reduction of gradients", update: "clip and update", message: "send", waiting: "waiting for a message",
};
const MOST_LINES = 16;

function drawTimeline(parent, run) {
  const line = run.timeline;
  const card = put(parent, "section", {class: "card"});
  put(card, "h3", {}, `Step ${grouped(line.step)} `).append(Object.assign(document.createElement("span"), {className: "unit", textContent: `schedule ${line.schedule}, ${counted(line.micro_batches, "micro-batch", "micro-batches")}; one data and tensor rank of each stage`}));
  if (line.predicted) {
    put(card, "p", {class: "note"}, `Measured ${seconds(line.measured.seconds)}, predicted ${seconds(line.predicted.seconds)}. The prediction simulates the same program: each action takes the median of its kind, and messages take no time. What it waits for is the bubble of the schedule.`);
  } else put(card, "p", {class: "note"}, `Measured ${seconds(line.measured.seconds)}. The actions of this step are no whole program, so there is nothing to predict.`);
  if (line.device !== "cpu") put(card, "p", {class: "note"}, "On a GPU these are the times in which the host launched the work.");
  const used = new Set([line.measured, line.predicted].filter(Boolean).flatMap((t) => Object.values(t.ranks)).flatMap((events) => events.map((e) => e[1])));
  const legend = put(card, "div", {class: "legend"});
  Object.keys(GROUPS).filter((g) => used.has(g)).forEach((g) => nameOf(legend, {name: GROUPS[g], colour: `var(--${g})`}));
  const box = put(card, "div", {class: "chart"});
  onWidth(box, (width) => drawLines(box, line, width));
}

function drawLines(box, line, width) {
  box.replaceChildren();
  const parts = [["measured", line.measured], ["predicted", line.predicted]].filter((part) => part[1]);
  const ranks = Object.keys(line.measured.ranks).map(Number).sort((a, b) => a - b);
  const shown = ranks.slice(0, MOST_LINES);
  const left = 62;
  const end = Math.max(...parts.map((part) => part[1].seconds));
  const across = width - left - 10;
  const x = (at) => left + at / end * across;
  const row = 24;
  const block = shown.length * row + 34;
  const height = parts.length * block + 22;
  const svg = put(box, "svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "timeline of one step, measured and predicted"});
  parts.forEach(([name, timeline], part) => {
    const top = part * block;
    const share = `${percent(timeline.compute)} of it ${width < 520 ? "computing" : "in forward and backward"}`;
    put(svg, "text", {x: width < 520 ? 0 : left, y: top + 16, class: "label"}, `${name}: ${seconds(timeline.seconds)}, ${share}`);
    shown.forEach((rank, i) => {
      const y = top + 24 + i * row;
      put(svg, "text", {x: left - 8, y: y + 13, "text-anchor": "end"}, `stage ${rank}`);
      put(svg, "rect", {x: left, y, width: across, height: 18, fill: "var(--mark)"});
      timeline.ranks[rank].forEach((event) => drawAction(svg, event, y, x, rank));
    });
  });
  for (const tick of niceTicks(0, end, Math.max(3, Math.floor(across / 110)))) {
    put(svg, "text", {x: x(tick), y: height - 4, "text-anchor": tick ? "middle" : "start"}, seconds(tick));
  }
  if (ranks.length > shown.length) put(box, "p", {class: "note"}, `the first ${shown.length} of ${ranks.length} stages; all are in timeline.json`);
}

function drawAction(svg, [name, group, start, end], y, x, rank) {
  if (end <= start) return;
  const wide = x(end) - x(start);
  const bar = put(svg, "rect", {x: x(start), y, width: Math.max(wide - (wide > 4 ? 0.6 : 0), 0.4), height: 18, fill: `var(--${group})`});
  hovers(bar, `stage ${rank}, ${GROUPS[group]}`, [[`var(--${group})`, name, seconds(end - start)], [null, "from", seconds(start)]]);
  if (wide > 9 * name.length && ["forward", "backward", "weight"].includes(group)) {
    put(svg, "text", {x: x(start) + wide / 2, y: y + 13, "text-anchor": "middle", style: "fill:var(--on-bar);pointer-events:none;font-size:10px"}, name);
  }
}
