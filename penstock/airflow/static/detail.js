// Details of a stream: charts of the last hour, topics, gaps and the last error.
import * as charts from "./charts.js";
import { dialogButton } from "./dialog.js";
import { attr, dagLink, h, marked, text } from "./dom.js";
import * as f from "./format.js";
import { showLetters } from "./letters.js";
import { showPreview } from "./preview.js";

const CHARTS = [
  ["rows_per_s", "Rows per second", f.count],
  ["lag", "Lag, records", f.count],
  ["batch_ms", "Batch time", f.span],
  ["batch_age_ms", "Time since the last batch", f.span],
  ["watermark_age_ms", "Watermark age", f.span],
  ["state_bytes", "State size", f.bytes],
  ["late", "Late rows, each 30 s", f.count, true],
  ["dead", "Dead-lettered, each 30 s", f.count, true],
];

// A column with an asterisk has numbers.
const table = (kind, columns, body) =>
  h(
    "table",
    { class: kind },
    h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col", class: c.startsWith("*") && "n" }, c.replace("*", ""))))),
    body,
  );
const latest = (values) => values.findLast((value) => value != null) ?? null;
const highest = (values) => values.reduce((most, value) => (value != null && value > most ? value : most), 0);

export class Detail {
  constructor(name, streams) {
    this.name = name;
    this.streams = streams;
    this.buttons = [
      dialogButton("Dead letters", `Dead letters of ${name}`, () => showLetters(name, "dead")),
      dialogButton("Late records", `Late records of ${name}`, () => showLetters(name, "late")),
      dialogButton("Try it", `Try ${name}`, () => showPreview(name)),
    ];
    this.replace = dagLink("replace_stream", "Replace …", `Replace ${name}, in Airflow`);
    this.charts = new Map();
    this.grid = h("div", { class: "charts" });
    this.facts = h("dl", { class: "facts" });
    this.error = h("pre", { class: "error", tabindex: "0", "aria-label": "Last error" });
    this.errorTitle = h("h4", {});
    this.topics = h("tbody");
    this.rules = h("tbody");
    this.rulesTable = table("rules", ["Rule", "On violation", "*Violations", "*Last hour"], this.rules);
    this.gaps = h("tbody");
    this.gapsTable = table("gaps", ["Gap", "*Records", "Found", "Accepted"], this.gaps);
    this.node = h(
      "div",
      { class: "detail" },
      this.grid,
      h(
        "div",
        { class: "beside" },
        h("div", { class: "summary" }, this.facts, h("div", { class: "buttons" }, ...this.buttons, this.replace)),
        table("topics", ["Topic", "*Lag", "*Partitions", "Next offsets"], this.topics),
      ),
      this.rulesTable,
      this.gapsTable,
      this.errorTitle,
      this.error,
    );
  }

  // Charts need the size of their place, so they are created once the node is on the page.
  begin(history) {
    for (const [key, title, format, bars] of CHARTS) {
      const value = h("output", {});
      const host = h("div", { class: "plot", role: "img" });
      this.grid.append(h("figure", {}, h("figcaption", {}, h("span", {}, title), value), host));
      const entry = { host, value, format, title, values: [], t: [] };
      entry.chart = charts.detail(host, {
        format,
        bars,
        sync: this.name,
        onCursor: (at) => this.label(entry, at),
      });
      this.charts.set(key, entry);
    }
    this.draw(history);
  }

  label(entry, at) {
    const on = at != null && entry.values[at] !== undefined;
    const value = entry.format(on ? entry.values[at] : latest(entry.values));
    text(entry.value, on ? `${value} at ${f.clock(entry.t[at] * 1000)}` : value);
  }

  draw(history) {
    if (!history) return;
    const series = history.streams[this.name];
    for (const [key, entry] of this.charts) {
      entry.t = history.t;
      entry.values = series?.[key] ?? history.t.map(() => null);
      entry.chart.set(entry.t, entry.values);
      this.label(entry, null);
      const range = `now ${entry.format(latest(entry.values))}, highest ${entry.format(highest(entry.values))}`;
      attr(entry.host, "aria-label", `${entry.title} over the last hour: ${range}`);
    }
  }

  show(stream, viewer) {
    for (const button of this.buttons) this.streams.guard(button, viewer);
    attr(this.replace, "hidden", !viewer.may_release || !this.streams.replaceable.has(this.name));
    const facts = [
      ["Rows read", f.exact(stream.rows_in)],
      ["Rows written", f.exact(stream.rows_out)],
      ["Late", f.exact(stream.late)],
      ["Dead-lettered", f.exact(stream.dead)],
      ["Query restarts", f.exact(stream.restarts)],
      ["State", `${f.bytes(stream.state_bytes)}`],
      ["State rows", f.exact(stream.state_rows)],
      ["Batch", f.exact(stream.batch_id)],
      ["Watermark", stream.watermark == null ? f.DASH : new Date(stream.watermark).toISOString().slice(0, 19).replace("T", " ") + " UTC"],
      ["Last report", stream.reported_age_ms == null ? "never" : `${f.age(stream.reported_age_ms)} ago`],
    ];
    this.facts.replaceChildren(...facts.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
    this.topics.replaceChildren(
      ...(stream.topics.length
        ? stream.topics.map((topic) => {
            const offsets = Object.entries(topic.offsets).map(([p, o]) => `${p}: ${f.exact(o)}`).join("   ");
            return h(
              "tr",
              {},
              h("th", { scope: "row" }, topic.name),
              h("td", { class: "n" }, f.exact(topic.lag)),
              h("td", { class: "n" }, f.exact(topic.partitions)),
              h("td", { class: "offsets" }, offsets || f.DASH),
            );
          })
        : [h("tr", {}, h("td", { colspan: 4, class: "muted" }, "There is no batch yet."))]),
    );
    const rules = stream.expectations ?? [];
    attr(this.rulesTable, "hidden", !rules.length);
    this.rules.replaceChildren(
      ...rules.map((rule) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, rule.name),
          h("td", {}, rule.action),
          h("td", { class: "n" }, f.exact(rule.violations)),
          h("td", { class: "n" }, f.exact(rule.last_hour)),
        ),
      ),
    );
    const gaps = stream.gaps ?? [];
    attr(this.gapsTable, "hidden", !gaps.length);
    this.gaps.replaceChildren(
      ...gaps.map((gap) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, gap.text),
          h("td", { class: "n" }, gap.records == null ? "unknown" : f.exact(gap.records)),
          h("td", {}, `${f.age(gap.age_ms)} ago`),
          h("td", {}, ...(gap.accepted_by ? [`by ${gap.accepted_by}`] : marked(`no: \`penstock streams go-on ${this.name}\``))),
        ),
      ),
    );
    attr(this.error, "hidden", !stream.error);
    attr(this.errorTitle, "hidden", !stream.error);
    text(this.errorTitle, f.failed(stream).replace(/^./, (first) => first.toUpperCase()));
    text(this.error, stream.error ?? "");
  }

  end() {
    for (const entry of this.charts.values()) entry.chart.destroy();
    this.charts.clear();
    this.node.remove();
  }
}
