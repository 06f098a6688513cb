// The charts of a stream over a span, with what was done to it as marks.
import * as api from "./api.js";
import * as charts from "./charts.js";
import { attr, h, text } from "./dom.js";
import * as f from "./format.js";

const CHARTS = [
  ["rows_per_s", "Rows per second", f.count],
  ["lag", "Lag, records", f.count],
  ["batch_ms", "Batch time", f.span, false, { processing_ms: "processing", planning_ms: "planning", checkpoint_ms: "checkpoint", offsets_ms: "offsets", other: "other" }],
  ["batch_age_ms", "Time since the last batch", f.span],
  ["watermark_age_ms", "Watermark age", f.span],
  ["state_bytes", "State size", f.bytes],
  ["late", "Late rows", f.count, true],
  ["dead", "Dead-lettered", f.count, true],
];
// The upper edges of the parts of a value, the highest first, and the parts themselves; what is in none of them is the last.
const stacked = (names, series, values) => {
  const known = names.slice(0, -1).map((name) => series?.[name] ?? values.map(() => null));
  const parts = [...known, values.map((value, i) => (value == null ? null : Math.max(0, value - known.reduce((sum, one) => sum + (one[i] ?? 0), 0))))];
  const edges = parts.map((_, n) => values.map((value, i) => (value == null ? null : parts.slice(0, n + 1).reduce((sum, one) => sum + (one[i] ?? 0), 0))));
  return { parts, edges: edges.toReversed() };
};
const SPANS = { "1h": "hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "90d": "90 days" };
const REFRESH_MS = { "1h": 15000 };
const LONGER_MS = 60000;

const latest = (values) => values.findLast((value) => value != null) ?? null;
const highest = (values) => values.reduce((most, value) => (value != null && value > most ? value : most), 0);

export class StreamCharts {
  constructor(name) {
    this.name = name;
    this.span = "1h";
    this.fetchedAt = -Infinity;
    this.charts = new Map();
    this.buttons = Object.entries(SPANS).map(([span, words]) =>
      h("button", { type: "button", "data-span": span, "aria-label": `The last ${words}`, onclick: () => this.choose(span) }, span.replace(/(\d+)/, "$1 ")),
    );
    this.grid = h("div", { class: "charts" });
    this.begins = h("p", { class: "muted", hidden: true });
    this.problem = h("p", { class: "muted", role: "status", hidden: true });
    this.marks = h("ol", { class: "marks" });
    this.marksTitle = h("summary", {});
    this.marksHolder = h("details", { hidden: true }, this.marksTitle, this.marks);
    const spans = h("div", { class: "spans", role: "group", "aria-label": `Span of the charts of ${name}` }, ...this.buttons);
    this.node = h("div", {}, spans, this.begins, this.problem, this.grid, this.marksHolder);
  }

  // Charts need the size of their place, so they are created once the node is on the page.
  begin() {
    for (const [key, title, format, bars, parts = {}] of CHARTS) {
      const value = h("output", {});
      const host = h("div", { class: "plot", role: "img", "aria-label": `${title}: not read yet` });
      const names = Object.keys(parts);
      const legend = names.length ? h("p", { class: "parts" }, ...Object.values(parts).map((part, n) => h("span", { class: `part-${n}` }, part, h("output", {})))) : null;
      this.grid.append(h("figure", {}, h("figcaption", {}, h("span", {}, title), value), host, legend));
      const entry = { host, value, format, title, names, legend, values: [], parts: [], t: [] };
      entry.chart = charts.detail(host, { format, bars, parts: names.length, sync: this.name, onCursor: (at) => this.label(entry, at) });
      this.charts.set(key, entry);
    }
    this.choose(this.span);
  }

  choose(span) {
    this.span = span;
    for (const button of this.buttons) attr(button, "aria-pressed", String(button.dataset.span === span));
    this.fetchedAt = -Infinity;
    return this.refresh();
  }

  async refresh() {
    if (performance.now() - this.fetchedAt < (REFRESH_MS[this.span] ?? LONGER_MS)) return;
    this.fetchedAt = performance.now();
    const { span } = this;
    try {
      const history = await api.streamHistory(this.name, span);
      // Another span may have been chosen meanwhile, or the row folded.
      if (span === this.span && this.charts.size) this.set(history, history.marks);
      attr(this.problem, "hidden", true);
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      attr(this.problem, "hidden", false);
      text(this.problem, `The charts could not be updated: ${error.message}`);
    }
  }

  label(entry, at) {
    const on = at != null && entry.values[at] !== undefined;
    const value = entry.format(on ? entry.values[at] : latest(entry.values));
    text(entry.value, on ? `${value} at ${f.moment(entry.t[at] * 1000, Date.now())}` : value);
    entry.parts.forEach((part, n) => text(entry.legend.children[n].lastChild, ` ${entry.format(on ? part[at] : latest(part))}`));
  }

  set(history, marks = []) {
    const series = history.streams[this.name];
    const times = marks.map((mark) => mark.at / 1000);
    this.showBegin(history, series);
    for (const [key, entry] of this.charts) {
      entry.t = history.t;
      entry.values = series?.[key] ?? history.t.map(() => null);
      if (entry.names.length) {
        const { parts, edges } = stacked(entry.names, series, entry.values);
        entry.parts = parts;
        entry.chart.set(entry.t, edges, times);
      } else entry.chart.set(entry.t, entry.values, times);
      this.label(entry, null);
      const range = `now ${entry.format(latest(entry.values))}, highest ${entry.format(highest(entry.values))}`;
      attr(entry.host, "aria-label", `${entry.title} over the last ${SPANS[this.span]}: ${range}`);
    }
    attr(this.marksHolder, "hidden", !marks.length);
    text(this.marksTitle, `${f.plural(marks.length, "action")} on ${this.name} and its app, marked in the charts`);
    this.marks.replaceChildren(
      ...marks.map(({ at, what, who, detail }) =>
        h("li", {}, h("time", {}, f.moment(at, Date.now())), ` ${what}`, h("span", { class: "muted" }, ` by ${who}${detail ? `: ${detail}` : ""}`)),
      ),
    );
  }

  // Charts of a stream that is younger than the span are empty before its first report.
  showBegin({ t }, series) {
    const known = t.findIndex((_, n) => Object.values(series ?? {}).some((values) => values[n] != null));
    attr(this.begins, "hidden", known >= 0 && known <= 1);
    text(this.begins, known < 0 ? `Nothing is known of the last ${SPANS[this.span]}.` : `Nothing is known before ${f.moment(t[known] * 1000, Date.now())}.`);
  }

  end() {
    for (const entry of this.charts.values()) entry.chart.destroy();
    this.charts.clear();
  }
}
