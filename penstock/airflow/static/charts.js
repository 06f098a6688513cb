// Charts by uPlot (vendored) in one neutral colour: colours are for states, and for the parts of a whole.
import { clock, date, span } from "./format.js";

/* global uPlot */
const colour = (name) => {
  const probe = document.createElement("span");
  probe.className = `probe-${name}`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};

let ink = null;
const palette = () => {
  ink ??= { line: colour("line"), fill: colour("fill"), axis: colour("axis"), grid: colour("grid"), parts: [0, 1, 2, 3, 4].map((n) => colour(`part-${n}`)) };
  return ink;
};

const all = new Set();
window.addEventListener("themechange", () => {
  ink = null;
  for (const chart of all) chart.redraw(false);
});

const top = (_, __, max) => [0, max > 0 ? max * 1.08 : 1];
const series = (bars) => ({
  stroke: () => palette().line,
  fill: () => (bars ? palette().line : palette().fill),
  width: 1.25,
  points: { show: false },
  spanGaps: false,
  ...(bars ? { paths: uPlot.paths.bars({ size: [0.9, 12, 2] }), width: 0 } : {}),
});

// The upper edge of a part of a whole, filled down to the axis; the parts below are drawn over it.
const part = (n) => ({ stroke: () => palette().parts[n], fill: () => palette().parts[n], width: 0, points: { show: false }, spanGaps: false });

// As wide as the columns of page.css leave room for.
export const sparkWidth = () => (window.innerWidth < 981 ? 64 : window.innerWidth < 1300 ? 84 : 128);

export const spark = (host, { width = sparkWidth(), height = 20 } = {}) => {
  const chart = new uPlot(
    {
      width,
      height,
      padding: [1, 0, 1, 0],
      cursor: { show: false },
      legend: { show: false },
      select: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: { y: { range: top } },
      series: [{}, series(false)],
    },
    [[], []],
    host,
  );
  all.add(chart);
  return chart;
};

const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((e) => n * 10 ** e)).sort((a, b) => a - b);
const SECOND = 1000;
// Of an axis of times, ms: round ones in seconds, minutes, hours and days.
const SPANS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000].map((n) => n * SECOND),
];
const INCREMENTS = [60, 300, 600, 900, 1200, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600];
const DAY = 86400;
const drawMarks = (u, times) => {
  u.ctx.save();
  u.ctx.strokeStyle = palette().axis;
  u.ctx.setLineDash([2, 3]);
  u.ctx.beginPath();
  for (const at of times) {
    const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
  }
  u.ctx.stroke();
  u.ctx.restore();
};

// parts: of how many the values are made; `set` takes their upper edges then, the highest first.
export const detail = (host, { format, bars = false, parts = 0, sync, onCursor }) => {
  const axis = {
    stroke: () => palette().axis,
    grid: { stroke: () => palette().grid, width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  let marks = [];
  const label = (at, increment) => (increment >= DAY ? date(at * 1000) : clock(at * 1000).slice(0, 5));
  const chart = new uPlot(
    {
      width: Math.max(160, host.clientWidth),
      height: 104,
      padding: [6, 18, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: sync }, y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: { y: { range: top } },
      axes: [
        { ...axis, size: 20, gap: 4, incrs: INCREMENTS, space: 56, values: (_, at, __, ___, increment) => at.map((t) => label(t, increment)) },
        { ...axis, size: 52, gap: 4, space: 28, values: (_, ticks) => ticks.map((v) => (v === 0 ? "0" : format(v))), ...(bars ? { incrs: WHOLE } : format === span ? { incrs: SPANS } : {}) },
      ],
      series: [{}, ...(parts ? Array.from({ length: parts }, (_, n) => part(parts - 1 - n)) : [series(bars)])],
      hooks: { setCursor: [(u) => onCursor(u.cursor.idx)], draw: [(u) => drawMarks(u, marks)] },
    },
    [[], ...(parts ? Array.from({ length: parts }, () => []) : [[]])],
    host,
  );
  all.add(chart);
  const watch = new ResizeObserver(() => {
    const width = Math.max(160, host.clientWidth);
    if (width !== chart.width) chart.setSize({ width, height: 104 });
  });
  watch.observe(host);
  return {
    set: (t, values, times = []) => {
      marks = times;
      chart.setData([t, ...(parts ? values : [values])]);
    },
    destroy: () => {
      watch.disconnect();
      all.delete(chart);
      chart.destroy();
    },
  };
};

export const drop = (chart) => {
  all.delete(chart);
  chart.destroy();
};
