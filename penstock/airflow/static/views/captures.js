// Captures: metrics, and requests to them.
import { REQUESTS, askCapture } from "../capture-requests.js";
import { attr, h, text } from "../dom.js";
import * as f from "../format.js";
import { linkTo } from "../router.js";
import { ListView } from "../rows.js";
import { StateButton } from "../state.js";

const COLUMNS = ["Capture", "State", "Behind", "Rows read", "Written", "Last poll", "Open since", "Drift", ""];
const HINTS = {
  Behind: "Age of the last row that was read, by the database's clock",
  "Rows read": "Since the first start",
  Written: "Records written to its topic since the first start",
  "Open since": "Age of the oldest open transaction of the database; its rows are read when it has ended",
  Drift: "Rows that the last comparison of table and topic found missing, differing or extra, and repaired",
};
// A transaction that is open longer is marked.
const OPEN_MS = 60_000;

class CaptureRow {
  constructor(table, name) {
    this.table = table;
    this.name = name;
    this.why = h("span", { class: "s why" });
    this.state = new StateButton(name);
    this.phase = h("span", { class: "s" });
    this.cells = Object.fromEntries(COLUMNS.slice(2, -1).map((column) => [column, h("td", { class: "n", "data-label": column })]));
    this.buttons = Object.keys(REQUESTS).map((verb) => {
      const [label] = REQUESTS[verb];
      return h("button", { type: "button", "data-verb": verb, "aria-label": `${label} ${name}`, onclick: () => askCapture(verb, name, table.acted) }, label);
    });
    this.node = h(
      "tr",
      { class: "capture" },
      h("th", { scope: "row" }, h("a", { class: "v name", ...linkTo(["streams", name]) }, name), this.why),
      h("td", {}, this.state.node, this.phase),
      ...Object.values(this.cells),
      h("td", { class: "act" }, h("div", { class: "buttons" }, ...this.buttons)),
    );
    this.nodes = [this.node];
  }

  show(capture, { viewer, states, remedies }) {
    const { snapshot, drift } = capture;
    attr(this.node, "data-state", capture.state);
    attr(this.node, "data-stale", capture.stale);
    this.state.show(capture.state, capture.why, { states, remedies });
    const part = snapshot ? ` ${Math.min(100, Math.floor((100 * snapshot[0]) / snapshot[1]))} %` : "";
    text(this.phase, capture.phase ? `${capture.phase}${part}` : "");
    const notes = [
      capture.asked && `${capture.asked} is requested`,
      capture.answer && `the last request was refused: ${capture.answer}`,
      capture.waits,
      capture.skipped_transactions && "transactions are open longer than HOLD",
      capture.dead_letter_rows && `${f.count(capture.dead_letter_rows.rows)} rows are dead letters, e.g. ${capture.dead_letter_rows.first}`,
      capture.why,
    ].filter(Boolean);
    text(this.why, notes.join("; "));
    attr(this.why, "title", notes.join("\n"));
    const differences = drift ? drift.missing + drift.differing + drift.extra : null;
    const figures = {
      Behind: f.age(capture.lag_ms),
      "Rows read": f.count(capture.rows_in),
      Written: f.count(capture.rows_out),
      "Last poll": capture.poll_age_ms == null ? f.DASH : `${f.age(capture.poll_age_ms)} ago`,
      "Open since": f.age(capture.open_ms),
      Drift: drift ? `${f.count(differences)} of ${f.count(drift.rows)}` : "not compared",
    };
    for (const [column, cell] of Object.entries(this.cells)) text(cell, figures[column]);
    attr(this.cells["Open since"], "data-warn", capture.open_ms > OPEN_MS);
    attr(this.cells.Drift, "data-warn", differences > 0 && !drift.explained);
    const kinds = drift && `${drift.missing} missing, ${drift.differing} differing, ${drift.extra} extra`;
    attr(this.cells.Drift, "title", drift?.why ? `${kinds}; reason of the comparison: ${drift.why}` : kinds);
    for (const button of this.buttons) {
      attr(button, "hidden", button.dataset.verb === "continue" && capture.phase !== "refused");
      this.table.guard(button, viewer);
    }
  }

}

export class CapturesView extends ListView {
  constructor(context) {
    const none = "No captures are declared: they copy tables of a database into topics, see docs/captures.md.";
    super(context, { view: "captures", search: "Name, state or reason", columns: COLUMNS, hints: HINTS, Row: CaptureRow, none });
  }
}
