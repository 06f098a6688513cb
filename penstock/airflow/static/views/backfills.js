// Backfills: declarations, with a link to start a run, and the progress of runs.
import * as api from "../api.js";
import { kept } from "../api.js";
import { queuedRuns, startBackfill } from "../backfill-form.js";
import { dialogButton } from "../dialog.js";
import { attr, h, marked, text } from "../dom.js";
import * as f from "../format.js";
import { Pager, Replaced, empty, pairs, scrolled, table, undeclared } from "../rows.js";
import { StateButton } from "../state.js";

const HEAD = ["Backfill", "From", "To", "Description", "Last run", ""];
const COLUMNS = ["Run", "State", "Files", "Rows", "Rows/s", "Time left", "Started", "Verified"];
const HINTS = {
  Files: "Files that are read, of all",
  Rows: "Rows that are read, then written, then verified, of all",
  "Rows/s": "Rows per second",
  "Time left": "Estimate; below, the time since the start or until the end",
  Started: "When it was last started, and by whom",
  Verified: "Result of the comparison of source and target",
};
const NONE = "No backfills are declared: they write an archive or files into a topic, see docs/backfills.md.";
const BEGIN = "There are no runs yet. *Start* asks for the interval.";

// Event time is shown in UTC, not in the viewer's time zone.
const utc = (ms) => new Date(ms).toISOString().replace("T", " ").replace(/(:00)?\.000Z$|Z$/, "");
const interval = ({ begin, end }) => {
  if (begin == null && end == null) return "everything";
  if (begin == null) return `until ${utc(end)} UTC`;
  return end == null ? `since ${utc(begin)} UTC` : `${utc(begin)} to ${utc(end)} UTC`;
};
// Characters of a reason that are seen in a row.
const SHORT = 80;
const QUEUE_MS = 10000;
const of = (done, all) => (all ? `${f.count(done)} of ${f.count(all)}` : f.count(done));
const exactly = (done, all) => (all ? `${f.exact(done)} of ${f.exact(all)}` : f.exact(done));

class RunRow {
  constructor({ run }) {
    this.name = h("span", { class: "v name" });
    this.what = h("span", { class: "s" });
    this.why = h("span", { class: "s why" });
    this.whole = h("pre", { class: "error", tabindex: "0" });
    this.error = h("details", { hidden: true }, h("summary", {}, "The whole reason"), this.whole);
    this.state = new StateButton(run, "Backfills");
    this.again = h("span", { class: "s" });
    this.bar = h("progress", { max: 1, "aria-label": `Progress of ${run}` });
    this.cells = pairs(COLUMNS.slice(2, -1));
    this.cells.Files.second.replaceWith(this.bar);
    this.verified = h("td", { class: "verified", "data-label": "Verified" });
    this.node = h(
      "tr",
      { class: "run" },
      h("th", { scope: "row" }, this.name, this.what, this.why, this.error),
      h("td", {}, this.state.node, this.again),
      ...Object.values(this.cells).map(({ cell }) => cell),
      this.verified,
    );
  }

  show(run, { now, run_states: states, run_remedies: remedies }) {
    const c = this.cells;
    const part = run.done == null ? "" : `${Math.floor(100 * run.done)} %`;
    text(this.name, run.name);
    text(this.what, `${interval(run)} · to ${run.target}`);
    attr(this.name, "title", run.run);
    text(this.why, run.why.split("\n", 1)[0]);
    attr(this.why, "title", run.why);
    attr(this.error, "hidden", run.why.length <= SHORT && !run.why.includes("\n"));
    text(this.whole, run.why);
    attr(this.node, "data-state", run.state);
    attr(this.node, "data-alarm", Boolean(run.alarm));
    this.state.show(run.state, run.why, { states, remedies });
    text(this.again, [run.dry && "dry run", run.attempts > 1 && `attempt ${run.attempts}`].filter(Boolean).join(", "));
    text(c.Files.first, of(run.files_done, run.files));
    attr(c.Files.cell, "title", exactly(run.files_done, run.files));
    attr(this.bar, "hidden", run.done == null);
    this.bar.value = run.done ?? 0;
    attr(this.bar, "title", part);
    text(c.Rows.first, of(run.rows_done, run.rows));
    text(c.Rows.second, run.rows ? part : "");
    attr(c.Rows.cell, "title", exactly(run.rows_done, run.rows));
    text(c["Rows/s"].first, f.count(run.rate));
    text(c["Time left"].first, f.age(run.remaining_ms));
    text(c["Time left"].second, `${run.ended_age_ms == null ? "for" : "took"} ${f.age(run.took_ms)}`);
    text(c.Started.first, f.moment(run.started_at, now));
    text(c.Started.second, run.owner);
    attr(c.Started.second, "title", run.owner);
    text(this.verified, run.verified || f.DASH);
  }
}

export class BackfillsView {
  constructor({ acted }) {
    this.acted = acted;
    this.shape = null;
    this.rows = new Map();
    this.queue = kept(queuedRuns, QUEUE_MS);
    this.queued = new Replaced(h("div", { id: "queued" }));
    const box = (id, label) => {
      const node = scrolled(label);
      node.id = id;
      return node;
    };
    this.declared = new Replaced(box("backfills", "Declared backfills"));
    this.place = box("runs", "Runs of backfills");
    this.pager = new Pager("backfills");
    this.node = h("div", {}, this.declared.node, this.queued.node, this.place, this.pager.node);
  }

  async load(query) {
    const [data, queued] = await Promise.all([api.backfills(query), this.queue().catch((error) => error.message)]);
    return { ...data, queued };
  }

  show(data, query) {
    this.showDeclared(data);
    this.showQueued(data);
    const names = data.runs.map(({ run }) => run);
    attr(this.place, "hidden", !names.length && !data.declared.length);
    if (this.shape !== names.join("\n")) {
      this.shape = names.join("\n");
      this.rows = new Map(data.runs.map((run) => [run.run, this.rows.get(run.run) ?? new RunRow(run)]));
      this.place.replaceChildren(names.length ? table("runs cards", COLUMNS, [...this.rows.values()].map((row) => row.node), HINTS) : empty(...marked(BEGIN)));
    }
    for (const run of data.runs) this.rows.get(run.run).show(run, data);
    this.pager.show(data, query);
  }

  showQueued({ queued, declared, now }) {
    if (!declared.length) return;
    const rows = () => queued.map(({ name, run, at, why }) => h("tr", {}, h("th", { scope: "row", class: "what" }, name), h("td", { class: "note" }, run), h("td", { class: "when" }, at ? f.moment(at, now) : f.DASH), h("td", { class: "note" }, why)));
    this.queued.show(queued, () => {
      if (typeof queued === "string") return empty(`Runs that are queued in Airflow are not shown: ${queued}`);
      return queued.length ? scrolled("Queued runs", table("list", ["Queued", "Run", "Since", "Waits"], rows())) : [];
    });
  }

  showDeclared({ declared, declarations_known: known }) {
    const lastRun = ({ last_run: run }) => (run ? `${run.state}${run.ended_age_ms == null ? "" : `, ${f.age(Math.floor(run.ended_age_ms / 60_000) * 60_000)} ago`}` : "never");
    const places = (nodes) => h("td", { class: "places" }, ...nodes.map(({ kind, name }) => h("div", {}, name, h("span", { class: "muted" }, ` ${kind}`))));
    const start = (one) => dialogButton("Start", `Start ${one.name}`, () => startBackfill(one, this.acted));
    this.declared.show([known, declared.map((one) => [{ ...one, last_run: null }, lastRun(one)])], () =>
      declared.length
        ? table(
            "list backfills",
            HEAD,
            declared.map((one) =>
              h(
                "tr",
                {},
                h("th", { scope: "row", class: "what", title: one.location }, one.name),
                places(one.reads),
                places(one.writes),
                h("td", { class: "note" }, one.description || f.DASH),
                h("td", { class: "what" }, lastRun(one)),
                h("td", { class: "what act" }, one.runs ? start(one) : "its source is outside the project"),
              ),
            ),
          )
        : undeclared({ declarations_known: known }, NONE),
    );
  }
}
