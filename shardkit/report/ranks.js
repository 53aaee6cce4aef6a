// Where the ranks are, and what their memory is used for.

const MOST_BARS = 16;
const MOST_CHIPS = 256;
const SHORT = {pipeline: "p", data: "d", domain: "part", tensor: "t"};
const PURPOSES = ["parameters", "gathered parameters", "gradients", "gradients in flight", "optimizer state", "activations"];

function drawMesh(parent, run) {
  const card = put(parent, "section", {class: "card"});
  const axes = Object.keys(run.ranks.mesh).filter((axis) => axis !== "domain" || run.ranks.mesh.domain > 1);
  const mesh = axes.map((axis) => `${axis} ${run.ranks.mesh[axis]}`).join(" × ");
  put(card, "h3", {}, `${mesh} = ${counted(run.ranks.ranks.length, "rank")}`);
  put(card, "p", {class: "note"}, `${run.ranks.policy}; schedule ${run.ranks.schedule}, ${counted(run.ranks.micro_batches, "micro-batch", "micro-batches")} per data rank; on ${run.ranks.device}. ${axes.map((axis) => SHORT[axis]).join(", ")}: coordinates along ${axes.join(", ")}; the edge has the colour of the pipeline stage.`);
  const nodes = new Map();
  for (const rank of run.ranks.ranks.slice(0, MOST_CHIPS)) {
    if (!nodes.has(rank.node)) nodes.set(rank.node, []);
    nodes.get(rank.node).push(rank);
  }
  const place = put(card, "div", {class: "nodes"});
  for (const [name, ranks] of nodes) {
    const box = put(place, "div", {class: "node"});
    const title = put(box, "div", {class: "title"}, "node ");
    put(title, "b", {}, name);
    title.append(`, cores ${ranks[0].cores}, ${counted(ranks[0].threads, "thread")} per rank`);
    const chips = put(box, "div", {class: "chips"});
    for (const rank of ranks) {
      const chip = put(chips, "div", {class: "chip", style: `border-color:${colourOf(rank.pipeline)}`});
      put(chip, "b", {}, `rank ${rank.rank}`);
      put(chip, "span", {}, axes.map((axis) => `${SHORT[axis]}\u00a0${rank[axis]}`).join("  "));
    }
  }
  const rest = run.ranks.ranks.length - MOST_CHIPS;
  if (rest > 0) put(card, "p", {class: "note"}, `and ${counted(rest, "rank")} more, in ranks.json`);
}

function calm(number) { return `color-mix(in srgb, ${colourOf(number)} 62%, var(--card))`; } // for large areas

function drawMemory(parent, run) {
  const memory = run.memory;
  const card = put(parent, "section", {class: "card"});
  put(card, "h3", {}, "Memory of each rank ").append(Object.assign(document.createElement("span"), {className: "unit", textContent: "peak of each purpose"}));
  put(card, "p", {class: "note"}, "Each part of a bar is the peak of one purpose. The line is the peak of all of them together: they need not reach theirs at the same time. Resident is the whole process, with Python and libraries.");
  const names = Object.keys(memory.purposes).sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  const legend = put(card, "div", {class: "legend"});
  names.forEach((name, i) => nameOf(legend, {name, colour: calm(i)}));
  const box = put(card, "div", {class: "chart"});
  const shown = chosenRanks(memory);
  onWidth(box, (width) => drawBars(box, memory, names, shown, width));
  const rest = memory.together.length - shown.length;
  if (rest > 0) put(card, "p", {class: "note"}, `the ${shown.length} ranks with the most; ${grouped(rest)} others need no more`);
}

function place(name) { const at = PURPOSES.indexOf(name); return at < 0 ? PURPOSES.length : at; }

function chosenRanks(memory) {
  const all = memory.together.map((_, rank) => rank);
  if (all.length <= MOST_BARS) return all;
  return all.sort((a, b) => memory.together[b] - memory.together[a]).slice(0, MOST_BARS).sort((a, b) => a - b);
}

function drawBars(box, memory, names, shown, width) {
  box.replaceChildren();
  const sums = memory.together.map((_, rank) => names.reduce((sum, name) => sum + memory.purposes[name][rank], 0));
  const most = Math.max(...shown.map((rank) => sums[rank]));
  const row = 26;
  const narrow = width < 520;
  const left = 58;
  const across = width - left - (narrow ? 76 : 190);
  const svg = put(box, "svg", {viewBox: `0 0 ${width} ${shown.length * row + 4}`, height: shown.length * row + 4, role: "img", "aria-label": "memory of each rank by purpose"});
  shown.forEach((rank, line) => {
    const top = line * row + 4;
    put(svg, "text", {x: left - 8, y: top + 13, "text-anchor": "end"}, `rank ${rank}`);
    let x = left;
    names.forEach((name, i) => {
      const size = memory.purposes[name][rank] / most * across;
      const part = put(svg, "rect", {x, y: top, width: Math.max(size - 1, 0), height: 18, fill: calm(i)});
      hovers(part, `rank ${rank}`, [[calm(i), name, bytes(memory.purposes[name][rank])]]);
      x += size;
    });
    const peak = left + memory.together[rank] / most * across;
    put(svg, "line", {x1: peak, x2: peak, y1: top - 3, y2: top + 21, stroke: "var(--ink)", "stroke-width": 1.5});
    const resident = narrow ? "" : `, resident ${bytes(memory.resident[rank])}`;
    put(svg, "text", {x: left + sums[rank] / most * across + 6, y: top + 13}, `${bytes(memory.together[rank])}${resident}`);
  });
}

function hovers(element, head, rows) {
  element.addEventListener("pointermove", (event) => showTip(event, head, rows));
  element.addEventListener("pointerleave", hideTip);
}
