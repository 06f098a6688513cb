// Sinks: metrics, health of the store, explanation of the statement, and replay of dead letters.
import * as api from "../api.js";
import { ask } from "../confirm.js";
import { attr, h, text } from "../dom.js";
import * as f from "../format.js";
import { showLetters, showReplayed } from "../letters.js";
import { dialogButton, openDialog } from "../dialog.js";
import { neighbour } from "../neighbours.js";
import { linkTo } from "../router.js";
import { ListView, Replaced, pairs } from "../rows.js";
import { StateButton } from "../state.js";

const COLUMNS = ["Sink", "State", "Store", "Documents/s", "Lag", "Retried", "Older", "Dead"];
const HINTS = {
  Store: "Whether the store accepted the last documents, and when; or how long it has been down",
  "Documents/s": "Documents written or deleted per second, and since the driver started",
  Lag: "Records that are not read yet, over all topics",
  Retried: "Documents that were sent again because the store was too busy, per second and since the driver started",
  Older: "Documents of which the store had a newer version, since the driver started",
  Dead: "Dead letters, since the first start",
};
const TOO_BUSY = 0.1;
const NOT_RUN = "does not run: the address of its store is not configured";
const NOT_STARTED = "not started yet: the next run of its app's DAG starts it";

const showExplanation = (name) =>
  openDialog({
    title: `Explanation of ${name}`,
    about: "The output of `penstock sinks explain`. Spark takes some seconds for it; no store is queried.",
    make: async () => [h("pre", { class: "log" }, (await api.explain(name)).text)],
  });

const REMAIN = "Dead letters that remain, at most fifty; they can be replayed again.";

class SinkRow {
  constructor(table, name) {
    this.table = table;
    this.name = name;
    this.unfold = h("button", { type: "button", class: "unfold", "aria-expanded": "false", onclick: () => this.toggle() }, name);
    this.place = h("span", { class: "s place" });
    this.reads = new Replaced(h("span", { class: "s reads", hidden: true }));
    this.why = h("span", { class: "s why" });
    this.state = new StateButton(name);
    this.desired = h("span", { class: "s" });
    this.cells = pairs(COLUMNS.slice(2));
    this.node = h(
      "tr",
      { class: "sink" },
      h("th", { scope: "row" }, this.unfold, this.place, this.reads.node, this.why),
      h("td", {}, this.state.node, this.desired),
      ...Object.values(this.cells).map(({ cell }) => cell),
    );
    this.explain = dialogButton("Explain", `Explain ${name}`, () => showExplanation(name));
    this.letters = dialogButton("Dead letters", `Dead letters of sink ${name}`, () => showLetters(name, "dead"));
    this.replay = dialogButton("Replay", `Replay ${name}`, () => this.confirm());
    this.facts = h("dl", { class: "facts" });
    this.errorTitle = h("h4", {});
    this.error = h("pre", { class: "error", tabindex: "0", "aria-label": "Last error" });
    this.link = h("a", linkTo(["streams", name]), "Charts, topics and source");
    const buttons = h("div", { class: "buttons" }, this.explain, this.letters, this.replay, this.link);
    this.more = h("div", { class: "detail" }, this.facts, buttons, this.errorTitle, this.error);
    this.holder = h("tr", { class: "unfolded", hidden: true }, h("td", { colspan: COLUMNS.length }));
    this.nodes = [this.node, this.holder];
  }

  show(sink, { viewer, states, remedies }) {
    const c = this.cells;
    text(this.place, [sink.destination ? `feeds ${sink.destination}` : "", sink.app].filter(Boolean).join(" · "));
    attr(this.reads.node, "hidden", !sink.reads_from.length);
    this.reads.show(sink.reads_from, () => ["reads ", ...sink.reads_from.flatMap((one, n) => [...(n ? [", "] : []), ...neighbour(one)])]);
    attr(this.place, "title", sink.destination);
    const idle = sink.state ? "" : sink.runs ? NOT_STARTED : NOT_RUN;
    text(this.why, idle || sink.why || f.failed(sink));
    attr(this.why, "title", idle || sink.why || sink.error);
    attr(this.node, "data-state", sink.state ?? "stopped");
    attr(this.node, "data-stale", sink.stale);
    attr(this.state.node, "hidden", !sink.state);
    if (sink.state) this.state.show(sink.state, sink.why, { states, remedies });
    text(this.desired, sink.state ? `desired ${sink.desired}` : f.DASH);
    const away = sink.health === "away";
    text(c.Store.first, sink.health === "unknown" ? f.DASH : sink.health);
    text(c.Store.second, sink.health_age_ms == null ? "" : away ? `for ${f.age(sink.health_age_ms)}` : `${f.age(sink.health_age_ms)} ago`);
    attr(c.Store.cell, "data-warn", away);
    attr(c.Store.cell, "title", away ? sink.reason : null);
    text(c["Documents/s"].first, f.count(sink.written_per_s));
    text(c["Documents/s"].second, sink.written ? `${f.count(sink.written)} in total` : "");
    text(c.Lag.first, f.count(sink.lag));
    text(c.Retried.first, f.count(sink.retried));
    text(c.Retried.second, sink.retried_per_s ? `${f.count(sink.retried_per_s)} a second` : "");
    attr(c.Retried.cell, "data-warn", sink.retried_per_s > TOO_BUSY * sink.written_per_s);
    text(c.Older.first, f.count(sink.conflicts));
    text(c.Dead.first, f.count(sink.dead));
    attr(c.Dead.first, "title", f.exact(sink.dead));
    attr(c.Dead.cell, "data-zero", !sink.dead);
    this.detail(sink, viewer);
  }

  detail(sink, viewer) {
    const facts = [
      ["Documents written", f.exact(sink.written)],
      ["Older than in the store", f.exact(sink.conflicts)],
      ["Retried", f.exact(sink.retried)],
      ["Refused", f.exact(sink.refused)],
      ["Bytes sent", f.bytes(sink.bytes)],
      ["Asked to wait", sink.waits == null ? f.DASH : f.plural(sink.waits, "time")],
    ];
    this.facts.replaceChildren(...facts.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
    for (const button of [this.explain, this.letters, this.replay]) this.table.guard(button, viewer);
    attr(this.explain, "hidden", !sink.stated);
    attr(this.letters, "hidden", !sink.state);
    attr(this.replay, "hidden", !sink.runs);
    attr(this.link, "hidden", !sink.state);
    attr(this.error, "hidden", !sink.error);
    attr(this.errorTitle, "hidden", !sink.error);
    text(this.errorTitle, f.failed(sink).replace(/^./, (first) => first.toUpperCase()));
    text(this.error, sink.error ?? "");
  }

  toggle() {
    const open = this.holder.hidden;
    attr(this.unfold, "aria-expanded", String(open));
    attr(this.holder, "hidden", !open);
    if (open) this.holder.firstChild.append(this.more);
    else this.more.remove();
  }

  confirm() {
    ask({
      title: `Replay the dead letters of ${this.name}?`,
      message:
        "Each dead letter goes through the statement to the store once more, and to no other stream. A newer version in the store is kept. It takes from some seconds to a few minutes.",
      label: "Replay",
      action: { verb: "replay", kind: "sink", name: this.name },
      dryRun: "asked",
      done: (answer) => {
        this.table.acted(`Replay of ${this.name} has ended.`);
        showReplayed(this.name, answer, REMAIN, `Sink ${this.name} has no dead letters.`);
      },
    });
  }
}

export class SinksView extends ListView {
  constructor(context) {
    const none = "No sinks are declared: they keep a store up to date with a topic, see docs/sinks.md.";
    super(context, { view: "sinks", search: "Name, app, state, index or what it reads", columns: COLUMNS, hints: HINTS, Row: SinkRow, none });
  }
}
