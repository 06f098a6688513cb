// Replacements of running streams: progress, comparison with the running version, and what an operator decides.
import * as api from "../api.js";
import { ask } from "../confirm.js";
import { dialogButton, openDialog } from "../dialog.js";
import { attr, h, marked, text } from "../dom.js";
import * as f from "../format.js";
import { linkTo } from "../router.js";
import { Pager, empty, pairs, scrolled, table } from "../rows.js";
import { StateButton } from "../state.js";

const COLUMNS = ["Replacement", "State", "Read", "Records/s", "Lag", "Equal", "Requested", ""];
const HINTS = {
  Read: "Records that the new version has read, of all",
  "Records/s": "Records per second; below, an estimate of the time left",
  Lag: "Records that the new version has not read yet",
  Equal: "Rows of the new version that are those of the running version, of all that were compared",
  Requested: "When it was requested, and by whom",
};
// By verb: its button, the title and the effect in the dialog, the label of its button, and the message afterwards.
const ACTIONS = {
  cut: ["Cut now", "Cut over {}?", "The running version finishes its batch and ends; the new version writes in its place.", "Cut now", "The cut of {} is requested."],
  cancel: ["Cancel", "Cancel the replacement of {}?", "The new version ends, and its state is dropped. The running version goes on.", "End it", "The replacement of {} is cancelled."],
  confirm: ["Confirm", "Confirm the replacement of {}?", "The new version goes on. After that, nobody can go back to the version before it.", "Confirm", "The replacement of {} is confirmed."],
  back: ["Go back", "Go back to the version of {} before?", "Its kept code and state read what came since the cut; then it takes the place of the running version. Its code is checked first, which may take minutes.", "Go back", "To go back is requested for {}."],
};
const OUTCOMES = { different: "differs", only_new: "only in the new version", only_running: "only in the running version", refused: "refused by the store" };

const outputPause = ({ pause_ms, pause_over_ms }) => {
  if (pause_ms != null) return `output paused ${f.span(pause_ms)}`;
  return pause_over_ms == null ? "" : `output paused more than ${f.span(pause_over_ms)}`;
};

const showDifferences = ({ id, name }) =>
  openDialog({
    title: `Differences of ${name}`,
    about: "Examples of rows in which the new version differs from the running version, or that the store of a sink refuses.",
    reread: true,
    make: async () => {
      const { examples } = await api.differences(id);
      const row = (term, value) => [h("dt", {}, term), h("dd", {}, h("code", {}, value ?? "no row"))];
      return examples.map(({ output, outcome, key, new: ours, running, reason }) =>
        h(
          "article",
          { class: "letter" },
          h("h4", {}, key ?? "without a key", h("span", { class: "muted" }, ` ${OUTCOMES[outcome] ?? outcome}, output ${output}`)),
          h("dl", { class: "remedy" }, ...(reason ? row("Reason", reason) : [...row("New", ours), ...row("Running", running)])),
        ),
      );
    },
  });

class ReplacementRow {
  constructor(table, replacement) {
    this.table = table;
    this.replacement = replacement;
    const { name } = replacement;
    this.what = h("span", { class: "s" });
    this.why = h("span", { class: "s why" });
    this.state = new StateButton(`the replacement of ${name}`, "Replace a running stream");
    this.cut = h("span", { class: "s" });
    this.bar = h("progress", { max: 1, "aria-label": `Progress of the replacement of ${name}` });
    this.cells = pairs(COLUMNS.slice(2, -1));
    this.cells.Read.second.replaceWith(this.bar);
    this.differences = dialogButton("Differences", `Differences of ${name}`, () => showDifferences(this.replacement));
    this.buttons = Object.entries(ACTIONS).map(([verb, [label]]) =>
      h("button", { type: "button", "data-verb": verb, "aria-label": `${label}: replacement of ${name}`, onclick: () => this.ask(verb) }, label),
    );
    this.node = h(
      "tr",
      { class: "replacement" },
      h("th", { scope: "row" }, h("a", { class: "v name", ...linkTo(["streams", name]) }, name), this.what, this.why),
      h("td", {}, this.state.node, this.cut),
      ...Object.values(this.cells).map(({ cell }) => cell),
      h("td", { class: "act" }, h("div", { class: "buttons" }, this.differences, ...this.buttons)),
    );
  }

  show(replacement, { now, viewer, replacement_states: states, replacement_remedies: remedies }) {
    this.replacement = replacement;
    const r = replacement;
    const c = this.cells;
    text(this.what, [`of app ${r.app}`, r.way].filter(Boolean).join(", "));
    text(this.why, r.why.split("\n", 1)[0]);
    attr(this.why, "title", r.why);
    attr(this.node, "data-state", r.state);
    attr(this.node, "data-alarm", r.alarm);
    this.state.show(r.state, r.why, { states, remedies: { [r.state]: remedies[r.state].replaceAll("NAME", r.name) } });
    const requested = r.cut_requested && r.actions.includes("cancel");
    const cut = requested ? "cut is requested" : r.actions.includes("cut") ? "waits for the cut" : outputPause(r);
    text(this.cut, cut);
    text(c.Read.first, r.total ? `${f.count(r.records)} of ${f.count(r.total)}` : f.count(r.records));
    attr(c.Read.cell, "title", r.total ? `${f.exact(r.records)} of ${f.exact(r.total)}` : null);
    attr(this.bar, "hidden", r.done == null);
    this.bar.value = r.done ?? 0;
    attr(this.bar, "title", r.done == null ? null : `${Math.floor(100 * r.done)} %`);
    text(c["Records/s"].first, f.count(r.rate));
    text(c["Records/s"].second, r.silent ? `last report ${f.age(r.reported_age_ms)} ago` : r.remaining_ms == null ? "" : `${f.age(r.remaining_ms)} left`);
    text(c.Lag.first, f.count(r.lag));
    const counts = [["different", r.different], ["only new", r.only_new], ["only running", r.only_running], ["refused", r.refused]];
    const differing = counts.filter(([, n]) => n > 0).map(([what, n]) => `${f.count(n)} ${what}`);
    text(c.Equal.first, !r.compared ? "not compared" : `${f.count(r.equal)} of ${f.count(r.compared)}`);
    text(c.Equal.second, differing.join(", "));
    attr(c.Equal.cell, "title", counts.map(([what, n]) => `${f.exact(n)} ${what}`).join(", "));
    attr(c.Equal.cell, "data-warn", differing.length > 0);
    text(c.Requested.first, f.moment(r.requested_at, now));
    text(c.Requested.second, `by ${r.actor}`);
    attr(c.Requested.cell, "title", `last report ${f.age(r.reported_age_ms)} ago`);
    attr(this.differences, "hidden", !r.examples);
    this.table.guard(this.differences, viewer);
    for (const button of this.buttons) {
      attr(button, "hidden", !r.actions.includes(button.dataset.verb));
      this.table.guard(button, viewer, "release");
    }
  }

  ask(verb) {
    const { id, name } = this.replacement;
    const [, title, message, label, done] = ACTIONS[verb];
    ask({
      title: title.replace("{}", () => name),
      message,
      label,
      action: { verb, replacement: id },
      send: api.replacement,
      dryRun: "at once",
      done: () => this.table.acted(done.replace("{}", () => name)),
    });
  }
}

export class ReplacementsView {
  constructor({ acted, guard }) {
    Object.assign(this, { acted, guard });
    this.shape = null;
    this.rows = new Map();
    this.pager = new Pager("replacements");
    this.place = scrolled("Replacements");
    this.place.id = "replacements";
    this.node = h("div", {}, this.place, this.pager.node);
  }

  load(query) {
    return api.replacements(query);
  }

  show(data, query) {
    const ids = data.replacements.map(({ id }) => id);
    if (this.shape !== ids.join()) {
      this.shape = ids.join();
      this.rows = new Map(data.replacements.map((one) => [one.id, this.rows.get(one.id) ?? new ReplacementRow(this, one)]));
      const none = "No stream is being replaced. *Replace* of a stream changes it while it runs, with a comparison before the cut: see docs/operations.md.";
      this.place.replaceChildren(ids.length ? table("runs cards", COLUMNS, [...this.rows.values()].map((row) => row.node), HINTS) : empty(...marked(none)));
    }
    for (const one of data.replacements) this.rows.get(one.id).show(one, data);
    this.pager.show(data, query);
  }
}
