// What does not work or needs a person, since when, what it affects and what to do; then what is over.
import { $, attr, h, marked, text } from "./dom.js";
import * as f from "./format.js";

const NONE = "Nothing needs a person.";
// More names than these are counted only.
const AFFECTED = 6;

// By the name of what is declared, what reads its output, directly or through others; the nearest first.
export const downstream = (declared) => {
  const readers = new Map();
  for (const one of declared) {
    for (const { kind, name } of one.reads) {
      const place = `${kind} ${name}`;
      readers.set(place, [...(readers.get(place) ?? []), one]);
    }
  }
  return new Map(
    declared.map((first) => {
      const found = new Set();
      const queue = [first];
      for (const one of queue) {
        for (const { kind, name } of one.writes) {
          for (const reader of readers.get(`${kind} ${name}`) ?? []) {
            if (reader === first || found.has(reader.name)) continue;
            found.add(reader.name);
            queue.push(reader);
          }
        }
      }
      return [first.name, [...found]];
    }),
  );
};

const cell = (name, ...children) => h("td", { "data-label": name }, ...children);

export class FaultList {
  constructor() {
    this.key = "";
    this.pastKey = "";
    this.affects = new Map();
    this.apps = new Map();
  }

  declare(declared) {
    this.affects = downstream(declared);
    this.apps = new Map();
    for (const { app, name } of declared) this.apps.set(app, [...(this.apps.get(app) ?? []), name]);
  }

  // What a fault affects: of an app, also its own streams.
  affected({ kind, name }) {
    if (kind !== "app") return this.affects.get(name) ?? [];
    const own = this.apps.get(name) ?? [];
    return [...new Set([...own, ...own.flatMap((stream) => this.affects.get(stream) ?? [])])];
  }

  show({ faults, past_faults: past, now }) {
    const rows = faults.map((fault) => [fault, this.affected(fault)]);
    const key = JSON.stringify(rows.map(([fault, names]) => [fault.kind, fault.name, fault.state, fault.reason, f.age(fault.lasted_ms), names]));
    if (key !== this.key) {
      this.key = key;
      $("faults").replaceChildren(rows.length ? this.table(rows, now) : h("p", { class: "empty" }, NONE));
    }
    this.showPast(past, now);
  }

  table(rows, now) {
    const columns = ["Since", "What", "State", "Reason", "Affects", "What to do"];
    const body = rows.map(([fault, names]) => {
      const more = names.length > AFFECTED ? `, and ${f.count(names.length - AFFECTED)} more` : "";
      return h(
        "tr",
        {},
        cell("Since", h("span", { title: fault.since == null ? null : f.moment(fault.since, now) }, fault.since == null ? "now" : f.age(fault.lasted_ms))),
        h("th", { scope: "row" }, fault.name, h("span", { class: "muted" }, ` ${fault.kind}`)),
        cell("State", h("span", { class: "pill", "data-state": fault.state }, fault.state)),
        cell("Reason", fault.reason),
        cell("Affects", h("span", { title: names.join(", ") }, names.length ? `${names.slice(0, AFFECTED).join(", ")}${more}` : "nothing else")),
        cell("What to do", ...(fault.remedy ? marked(fault.remedy) : [f.DASH])),
      );
    });
    return h("table", { class: "list faults" }, h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, ...body));
  }

  showPast(past, now) {
    const key = JSON.stringify(past.map(({ kind, name, since }) => [kind, name, since]));
    if (key === this.pastKey) return;
    this.pastKey = key;
    const place = $("past-faults");
    attr(place, "hidden", !past.length);
    text(place.querySelector("summary"), `${f.plural(past.length, "past fault")}, the newest first`);
    const columns = ["Ended", "Lasted", "What", "State", "Reason"];
    const body = past.map((fault) =>
      h(
        "tr",
        {},
        cell("Ended", f.moment(fault.ended_at, now)),
        cell("Lasted", f.age(fault.lasted_ms)),
        h("th", { scope: "row" }, fault.name, h("span", { class: "muted" }, ` ${fault.kind}`)),
        cell("State", fault.state),
        cell("Reason", fault.reason),
      ),
    );
    place.querySelector("div").replaceChildren(
      h("table", { class: "list faults" }, h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, ...body)),
    );
  }
}
