// The graph of declarations, from left to right. The server computes column and row of each node.
import { h, svg } from "./dom.js";
import * as f from "./format.js";

const ROW = 44;
const BOX = 34;
const GAP = 56;
const PAD = 12;
const SIDE = 28; // room for a line that leads back to the first column
const LANE = 10;
const HEAD = 5; // of an arrow
const LETTERS = 30;
const MOST = 4; // the largest scale, and that up to which what is picked is enlarged
const READABLE = 1.25;
const READERS = new Set(["stream", "sink", "archive", "view"]);
const LETTER = 6.7; // px, a little more than the mean letter of 12 px

const short = (name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name);

// Left edge and width of each column, by its longest name.
const columnsOf = (nodes) => {
  const widths = [];
  for (const { column, name, kind } of nodes) {
    const letters = Math.max(short(name).length, kind.length);
    widths[column] = Math.max(widths[column] ?? 80, Math.ceil(letters * LETTER) + 24);
  }
  let x = SIDE;
  return widths.map((width) => {
    const position = { x, width };
    x += width + GAP;
    return position;
  });
};

const y = (row) => PAD + BOX / 2 + row * ROW;

const curve = (way, columns) => {
  const [first, ...rest] = way;
  let x = columns[first[0]].x + columns[first[0]].width;
  let at = y(first[1]);
  let d = `M${x} ${at}`;
  rest.forEach(([column, row], n) => {
    const last = n === rest.length - 1;
    const to = columns[column].x;
    const bend = (to - x) / 2;
    d += ` C${x + bend} ${at} ${to - bend} ${y(row)} ${last ? to - HEAD : to} ${y(row)}`;
    at = y(row);
    x = to + columns[column].width;
    if (!last) d += ` H${x}`;
  });
  return d;
};

// A line that leads back goes below all boxes.
const back = ([[from, start], [column, end]], columns, lane) => {
  const x = columns[from].x + columns[from].width;
  const to = columns[column].x;
  return `M${x} ${y(start)} C${x + SIDE} ${y(start)} ${x + SIDE} ${lane} ${x} ${lane} H${to} C${to - SIDE} ${lane} ${to - SIDE} ${y(end)} ${to - HEAD} ${y(end)}`;
};

const reachable = (start, edges, from, to) => {
  const nodes = new Set(start);
  const waiting = [...start];
  while (waiting.length) {
    const node = waiting.pop();
    for (const edge of edges) {
      if (edge[from] !== node || nodes.has(edge[to])) continue;
      nodes.add(edge[to]);
      waiting.push(edge[to]);
    }
  }
  return nodes;
};

export class Graph {
  constructor(host, { onPick }) {
    this.host = host;
    this.onPick = onPick;
  }

  draw({ nodes, edges }, runs) {
    this.nodes = nodes;
    this.edges = edges;
    const columns = columnsOf(nodes);
    const last = columns.at(-1);
    const width = last ? last.x + last.width + SIDE : 0;
    let height = nodes.length ? y(Math.max(...nodes.map((node) => node.row))) + BOX / 2 + PAD : 0;
    const way = (edge) => {
      if (nodes[edge.source].column < nodes[edge.target].column) return curve(edge.path, columns);
      height += LANE;
      return back(edge.path, columns, height - PAD);
    };
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 6 6", refX: 1, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" }, svg("path", { d: "M0 0L6 3L0 6z" }));
    this.lines = edges.map((edge) =>
      svg("path", { class: edge.matches ? "edge matches" : "edge", d: way(edge), "marker-end": "url(#arrow)" }),
    );
    this.lags = edges.map(() => svg("text", { class: "lag" }));
    this.boxes = nodes.map((node) => this.box(node, columns[node.column], runs));
    this.size = { width, height };
    this.picked = null;
    this.rects = nodes.map((node) => ({ ...columns[node.column], y: y(node.row) - BOX / 2 }));
    this.drawing = svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${nodes.length} nodes and ${edges.length} edges; the list below says the same` },
      svg("defs", {}, arrow),
      ...this.lines,
      ...this.lags,
      ...this.boxes,
    );
    this.host.replaceChildren(nodes.length ? this.drawing : h("p", { class: "empty" }, "Nothing is declared yet."));
  }

  // lags: by stream and topic, records that are not read yet; written on the lines by which they are read.
  showLags(lags) {
    this.edges.forEach((edge, n) => {
      const [source, target] = [this.nodes[edge.source], this.nodes[edge.target]];
      const of = lags[target.name];
      // A pattern stands for all topics that the stream reads by it.
      const lag = !READERS.has(target.kind) || !of ? 0 : source.kind === "pattern" ? Object.values(of).reduce((sum, one) => sum + one, 0) : (of[source.name] ?? 0);
      const words = lag ? f.count(lag) : "";
      const label = this.lags[n];
      if ((label.firstChild?.data ?? "") === words) return;
      label.replaceChildren();
      if (!lag) return;
      label.append(words, svg("title", {}, `${f.exact(lag)} records of ${source.name} that ${target.name} has not read`));
      const { x, y: at } = this.lines[n].getPointAtLength(this.lines[n].getTotalLength() / 2);
      for (const [name, value] of [["x", x], ["y", at - 3]]) label.setAttribute(name, value);
    });
  }

  // factor: of the present size; 0 fits what is marked, or everything, into the frame.
  scale(factor) {
    if (factor) this.zoom((this.drawing.getBoundingClientRect().width / this.size.width) * factor);
    else this.fit();
  }

  // A scale of 1 shows the names in 12 px.
  zoom(scale) {
    this.drawing.style.maxWidth = "none";
    this.drawing.style.width = `${Math.min(Math.max(scale, 200 / this.size.width), MOST) * this.size.width}px`;
  }

  // Shows what is picked with its neighbourhood as large as the frame allows, but never too small to read: then it is in
  // the middle, and the rest is reached by scrolling.
  fit() {
    const { host } = this;
    if (!this.near?.length) {
      this.zoom(host.clientWidth / this.size.width);
      return;
    }
    const shown = this.near.map((n) => this.rects[n]);
    const [left, right] = [Math.min(...shown.map(({ x }) => x)) - PAD, Math.max(...shown.map(({ x, width }) => x + width)) + PAD];
    const [top, bottom] = [Math.min(...shown.map((rect) => rect.y)) - PAD, Math.max(...shown.map((rect) => rect.y)) + BOX + PAD];
    const most = parseFloat(getComputedStyle(host).maxHeight) || host.clientHeight;
    const wanted = Math.min(host.clientWidth / (right - left), most / (bottom - top));
    const scale = Math.min(Math.max(wanted, 1), READABLE);
    this.zoom(scale);
    // In the middle: what is near, if it fits, else what is picked.
    const own = this.rects[this.picked];
    const middle = (from, to, room, fallback) => ((to - from) * scale <= room ? (from + to) / 2 : fallback) * scale - room / 2;
    host.scrollTo({ left: middle(left, right, host.clientWidth, own.x + own.width / 2), top: middle(top, bottom, host.clientHeight, own.y + BOX / 2) });
  }

  box({ name, kind, row }, { x, width }, runs) {
    const running = runs.get(`${kind} ${name}`);
    const text = (dy, label, className) => svg("text", { x: x + 12, y: y(row) + dy, class: className }, label);
    const group = svg(
      "g",
      { class: "node", "data-kind": kind, "data-name": name, "data-idle": running === false, onclick: () => this.onPick(name) },
      svg("title", {}, `${name} (${kind})`),
      svg("rect", { x, y: y(row) - BOX / 2, width, height: BOX, rx: kind === "topic" || kind === "pattern" ? BOX / 2 : 5 }),
      text(-2, short(name), "name"),
      text(11, kind, "kind"),
    );
    return group;
  }

  // Leaves in full ink what has that name, what feeds it and what it feeds; everything if the name is empty.
  pick(name) {
    const start = this.nodes.flatMap((node, n) => (node.name === name ? [n] : []));
    const up = reachable(start, this.edges, "target", "source");
    const down = reachable(start, this.edges, "source", "target");
    const off = (on) => start.length > 0 && !on;
    const both = (set, edge) => set.has(edge.source) && set.has(edge.target);
    this.boxes.forEach((box, n) => {
      box.classList.toggle("off", off(up.has(n) || down.has(n)));
      box.classList.toggle("picked", start.includes(n));
    });
    this.edges.forEach((edge, n) => {
      const away = off(both(up, edge) || both(down, edge));
      for (const part of [this.lines[n], this.lags[n]]) part.classList.toggle("off", away);
    });
    this.picked = start[0] ?? null;
    this.near = start.length ? this.nodes.flatMap((_, n) => (up.has(n) || down.has(n) ? [n] : [])) : [];
    if (start.length) this.fit();
  }
}
