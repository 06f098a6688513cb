// One stream: its past, what it reads and feeds, its topics, rules, faults, source and last error, and what can be done.
import * as api from "../api.js";
import { confirmGoOn, confirmStream, isBlockedByLoss } from "../stream-actions.js";
import { dialogButton } from "../dialog.js";
import { attr, dagLink, h, marked, text } from "../dom.js";
import * as f from "../format.js";
import { showLetters, showLog } from "../letters.js";
import { neighbour } from "../neighbours.js";
import { showPreview } from "../preview.js";
import { showRecords } from "../records.js";
import { releaseText } from "../releases.js";
import { linkTo } from "../router.js";
import { Replaced, table } from "../rows.js";
import { StateButton } from "../state.js";
import { StreamCharts } from "../stream-charts.js";

const CAPTURES = "captures"; // the app of all captures
const listed = (one) => h("li", {}, ...neighbour(one));

export class StreamView {
  constructor({ acted, guard }, [name]) {
    Object.assign(this, { acted, guard, name });
    this.state = new StateButton(name);
    this.about = h("p", { class: "about" });
    this.start = h("button", { type: "button", onclick: () => confirmStream(this.stream, this.acted) });
    this.goOn = h("button", { type: "button", hidden: true, "aria-label": `Let ${name} go on`, onclick: () => confirmGoOn(this.stream, this.acted) }, "Go on …");
    const app = () => this.stream.app;
    this.buttons = [
      dialogButton("Dead letters", `Dead letters of ${name}`, () => showLetters(name, "dead")),
      dialogButton("Late records", `Late records of ${name}`, () => showLetters(name, "late")),
      dialogButton("Try it", `Try ${name}`, () => showPreview(name)),
      dialogButton("Log", `Log of the driver of ${name}`, () => showLog(app())),
    ];
    this.records = dialogButton("Records", `Records of ${name}`, () => showRecords(name, this.outputs));
    this.replace = dagLink("replace_stream", "Replace …", `Replace ${name}, in Airflow`);
    this.charts = new StreamCharts(name);
    this.facts = new Replaced(h("dl", { class: "facts" }));
    this.reads = new Replaced(h("ul", { class: "neighbours" }));
    this.feeds = new Replaced(h("ul", { class: "neighbours" }));
    this.topics = new Replaced(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Topics" }));
    this.rules = new Replaced(h("div", {}));
    this.gaps = new Replaced(h("div", {}));
    this.faults = new Replaced(h("div", {}));
    this.errorTitle = h("h3", {});
    this.error = h("pre", { class: "error", tabindex: "0", "aria-label": "Last error" });
    this.failure = h("section", { hidden: true }, this.errorTitle, this.error);
    this.code = h("div", {});
    this.source = h("details", { class: "source", hidden: true, ontoggle: () => this.readSource() }, h("summary", {}, "Source"), this.code);
    const graph = h("a", linkTo(["catalog", name]), "Show in the catalog");
    const part = (title, ...nodes) => h("section", {}, h("h3", {}, title), ...nodes);
    this.node = h(
      "div",
      { class: "detail", hidden: true },
      h("div", { class: "head" }, this.state.node, this.about, h("div", { class: "buttons" }, this.start, this.goOn, this.records, ...this.buttons, this.replace)),
      this.failure,
      this.charts.node,
      h("div", { class: "thirds" }, part("Figures", this.facts.node), part("Reads from", this.reads.node), part("Is read by", this.feeds.node, graph)),
      part("Topics", this.topics.node),
      this.rules.node,
      this.gaps.node,
      this.faults.node,
      this.source,
    );
  }

  load() {
    return api.stream(this.name);
  }

  show(data) {
    const { stream, app, declared, viewer, now } = data;
    const begin = !this.stream;
    this.stream = stream;
    attr(this.node, "hidden", false);
    if (begin) this.charts.begin();
    else this.charts.refresh();
    this.state.show(stream.state, stream.why, data);
    const replaced = data.replacement;
    this.about.replaceChildren(
      ...[
        stream.why ? `${stream.why} · ` : null,
        stream.late_because ? `late: ${stream.late_because} · ` : null,
        h("span", { class: "muted" }, stream.desired === "on" ? "desired on" : "desired off", " · app ", h("a", linkTo(["streams"], { app: stream.app }), stream.app), ` in ${releaseText(app)}`),
        replaced ? h("span", { class: "muted" }, " · ", h("a", linkTo(["replacements"]), `replacement ${replaced.state}`)) : null,
      ].filter(Boolean),
    );
    text(this.start, stream.desired === "on" ? "Stop" : "Start");
    attr(this.start, "aria-label", `${stream.desired === "on" ? "Stop" : "Start"} ${this.name}`);
    attr(this.goOn, "hidden", !isBlockedByLoss(stream));
    this.outputs = (declared?.writes ?? []).filter(({ kind }) => kind === "topic").map((topic) => topic.name);
    attr(this.records, "hidden", !this.outputs.length);
    for (const button of [this.start, this.goOn, this.records, ...this.buttons]) this.guard(button, viewer);
    attr(this.replace, "hidden", !viewer.may_release || !stream.replaceable);
    this.showFacts(stream, declared);
    const nothing = !data.declarations_known ? "not known yet: the files are being read" : declared ? "nothing that is declared" : "not known: it is not declared on the disk";
    for (const [list, found] of [[this.reads, data.reads_from], [this.feeds, data.read_by]]) list.show([nothing, found], () => (found.length ? found.map(listed) : h("li", { class: "muted" }, nothing)));
    this.showTables(stream);
    this.showFaults(data.faults, now);
    attr(this.failure, "hidden", !stream.error);
    text(this.errorTitle, f.failed(stream).replace(/^./, (first) => first.toUpperCase()));
    text(this.error, stream.error ?? "");
    attr(this.source, "hidden", !declared || !viewer.may_operate);
  }

  showFacts(stream, declared) {
    const facts = [
      ["Rows read", f.exact(stream.rows_in)],
      ["Rows written", f.exact(stream.rows_out)],
      ["Late", f.exact(stream.late)],
      ["Dead-lettered", f.exact(stream.dead)],
      ["Query restarts", f.exact(stream.restarts)],
      ["State", f.bytes(stream.state_bytes)],
      ["State rows", f.exact(stream.state_rows)],
      [stream.app === CAPTURES ? "Poll" : "Batch", f.exact(stream.batch_id)],
      ["Watermark", stream.watermark == null ? f.DASH : f.utc(stream.watermark)],
      ["Last report", stream.reported_age_ms == null ? "never" : `${f.age(stream.reported_age_ms)} ago`],
      ...(declared?.output_mode ? [["Output mode", declared.output_mode]] : []),
      ...(declared?.masks ?? []).map((mask) => ["Masked", mask]),
    ];
    this.facts.show(facts, () => facts.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
  }

  showTables({ app, topics, expectations: rules = [], gaps = [] }) {
    const offsets = (topic) => Object.entries(topic.offsets).map(([p, o]) => `${p}: ${f.exact(o)}`).join("   ") || f.DASH;
    const number = (value) => h("td", { class: "n" }, value);
    this.topics.show(topics, () =>
      topics.length
        ? table("list topics", ["Topic", "*Lag", "*Partitions", "Next offsets"], topics.map((topic) => h("tr", {}, h("th", { scope: "row" }, topic.name), number(f.exact(topic.lag)), number(f.exact(topic.partitions)), h("td", { class: "offsets" }, offsets(topic)))))
        : app === CAPTURES
          ? h("p", { class: "empty" }, "A capture polls a table and reads no topic: ", h("a", linkTo(["captures"], { q: this.name }), "its polls"))
          : h("p", { class: "empty" }, "There is no batch yet."),
    );
    this.rules.show(rules, () =>
      rules.length
        ? [h("h3", {}, "Expectations"), table("list rules", ["Rule", "On violation", "*Violations", "*Last hour"], rules.map((rule) => h("tr", {}, h("th", { scope: "row" }, rule.name), h("td", {}, rule.action), number(f.exact(rule.violations)), number(f.exact(rule.last_hour)))))]
        : [],
    );
    const accepted = ({ accepted_by: who }) => (who ? [`by ${who}`] : marked(`no: \`penstock streams go-on ${this.name}\``));
    this.gaps.show(gaps.map((gap) => [gap.text, gap.records, gap.accepted_by, f.age(gap.age_ms)]), () =>
      gaps.length
        ? [h("h3", {}, "Data loss"), table("list gaps", ["Gap", "*Records", "Found", "Accepted"], gaps.map((gap) => h("tr", {}, h("th", { scope: "row" }, gap.text), number(gap.records == null ? "unknown" : f.exact(gap.records)), h("td", {}, `${f.age(gap.age_ms)} ago`), h("td", {}, ...accepted(gap)))))]
        : [],
    );
  }

  showFaults(faults, now) {
    const ended = (fault) => (fault.ended_at == null ? h("b", {}, "lasts") : f.moment(fault.ended_at, now));
    this.faults.show(faults.map((fault) => [fault.since, fault.ended_at, fault.state, fault.reason, f.age(fault.lasted_ms)]), () =>
      faults.length
        ? [
            h("h3", {}, "Faults"),
            table("list faults", ["Since", "Ended", "Lasted", "State", "Reason"], faults.map((fault) => h("tr", {}, h("td", {}, fault.since == null ? "now" : f.moment(fault.since, now)), h("td", {}, ended(fault)), h("td", {}, f.age(fault.lasted_ms)), h("td", {}, fault.state), h("td", { class: "note" }, fault.reason)))),
          ]
        : [],
    );
  }

  async readSource() {
    if (!this.source.open) return;
    this.code.replaceChildren(h("p", { class: "muted" }, "Reading …"));
    try {
      const { location, text: code } = await api.source(this.name);
      this.code.replaceChildren(h("p", { class: "muted" }, `${location}, as it is on the disk`), h("pre", { class: "log", tabindex: "0" }, code));
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      this.code.replaceChildren(h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`));
    }
  }

  end() {
    this.charts.end();
  }
}
