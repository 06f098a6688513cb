// What does not work or needs a person, since when, what it affects and what to do; then what is over.
import { askCapture } from "./capture-requests.js";
import { dialogButton } from "./dialog.js";
import { attr, dagLink, h, marked, text } from "./dom.js";
import * as f from "./format.js";
import { showLog } from "./letters.js";
import { linkTo, placeOf } from "./router.js";
import { Replaced, empty, scrolled, table } from "./rows.js";
import { askToGoOn } from "./stream-actions.js";

const COLUMNS = ["Since", "What", "State", "Reason", "Affects", "What to do"];
const cell = (name, ...children) => h("td", { "data-label": name }, ...children);

const what = ({ kind, name, address }) => h("th", { scope: "row" }, h("a", linkTo(...placeOf(address)), name), h("span", { class: "muted" }, ` ${kind}`));

const affected = ({ affects, affects_total: all }, known) => (affects?.length ? affects.join(", ") + (all > affects.length ? `, and ${f.count(all - affects.length)} more` : "") : known ? "nothing else" : "not known yet");

// What a person can do about a fault here. Buttons ask before they do anything.
const remedies = ({ kind, name, app, state }, acted) => {
  if (kind === "backfill") return [h("a", linkTo(["backfills"]), "Open"), dagLink(`backfill_${name}`, "Its DAG", `The DAG of ${name}, in Airflow`)];
  if (kind === "replacement") return [h("a", linkTo(["replacements"]), "Open")];
  const log = dialogButton("Log", `Log of the driver of ${name}`, () => showLog(app));
  if (kind === "app") return [log, dagLink(`streams_${app}`, "Its DAG", `The DAG that supervises ${app}, in Airflow`)];
  if (state === "alarm") return [h("a", { ...linkTo(["dead-letters", name]), "aria-label": `Dead letters of ${name} by reason` }, "Dead letters")];
  if (state !== "blocked") return [log];
  if (kind === "capture") return [dialogButton("Continue", `Continue ${name}`, () => askCapture("continue", name, acted)), log];
  return [dialogButton("Go on", `Let ${name} go on`, () => askToGoOn(name, acted)), log];
};

export class FaultList {
  constructor({ acted, guard }) {
    Object.assign(this, { acted, guard });
    this.node = scrolled("Faults");
    this.node.id = "faults";
    this.lasting = new Replaced(this.node);
    this.ended = new Replaced(scrolled("Past faults"));
    this.summary = h("summary", {});
    this.past = h("details", { id: "past-faults", hidden: true }, this.summary, this.ended.node);
    this.ended.node.classList.add("tall");
  }

  show({ faults, faults_total: all, past_faults: past, declarations_known: known, now, viewer }) {
    Object.assign(this, { viewer, known });
    const key = faults.map((fault) => [fault.kind, fault.name, fault.state, fault.reason, f.age(fault.lasted_ms), fault.affects, fault.tried]);
    this.lasting.show([key, all, viewer, known], () => {
      if (!faults.length) return empty("Nothing needs a person.");
      const more = all > faults.length ? [empty(`And ${f.exact(all - faults.length)} more.`)] : [];
      return [table("list faults", COLUMNS, faults.map((fault) => this.row(fault, now))), ...more];
    });
    attr(this.past, "hidden", !past.length);
    text(this.summary, `${f.plural(past.length, "past fault")}, the newest first`);
    this.ended.show(past.map(({ kind, name, since }) => [kind, name, since]), () =>
      table("list faults", ["Ended", "Lasted", "What", "State", "Reason"], past.map((fault) => this.pastRow(fault, now))),
    );
  }

  row(fault, now) {
    const actions = remedies(fault, this.acted);
    for (const one of actions) if (one.localName === "button") this.guard(one, this.viewer);
    return h(
      "tr",
      {},
      cell("Since", h("span", { title: fault.since == null ? null : f.moment(fault.since, now) }, fault.since == null ? "now" : f.age(fault.lasted_ms))),
      what(fault),
      cell("State", h("span", { class: "pill", "data-state": fault.state }, fault.state)),
      cell("Reason", fault.reason, fault.tried ? h("div", { class: "muted" }, fault.tried) : null),
      cell("Affects", affected(fault, this.known)),
      cell("What to do", ...marked(fault.remedy), h("div", { class: "buttons" }, ...actions)),
    );
  }

  pastRow(fault, now) {
    return h("tr", {}, cell("Ended", f.moment(fault.ended_at, now)), cell("Lasted", f.age(fault.lasted_ms)), what(fault), cell("State", fault.state), cell("Reason", fault.reason));
  }
}
