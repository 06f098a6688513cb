// Details of a stream: charts of its past, topics, gaps and the last error.
import { dialogButton } from "./dialog.js";
import { attr, dagLink, h, marked, text } from "./dom.js";
import * as f from "./format.js";
import { showLetters } from "./letters.js";
import { showPreview } from "./preview.js";
import { StreamCharts } from "./stream-charts.js";

// A column with an asterisk has numbers.
const table = (kind, columns, body) =>
  h(
    "table",
    { class: kind },
    h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col", class: c.startsWith("*") && "n" }, c.replace("*", ""))))),
    body,
  );
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
    this.charts = new StreamCharts(name);
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
      this.charts.node,
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

  begin(history) {
    this.charts.begin(history);
  }

  draw() {
    this.charts.refresh();
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
    this.charts.end();
    this.node.remove();
  }
}
