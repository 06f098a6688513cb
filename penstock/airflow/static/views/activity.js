// Who did what, the newest first.
import * as api from "../api.js";
import { attr, h } from "../dom.js";
import * as f from "../format.js";
import { linkTo, retarget } from "../router.js";
import { Filters, Replaced, empty, scrolled, table } from "../rows.js";

// The name of a supervisor is the long key of a task instance.
const who = ({ actor, source }) =>
  source === "supervisor"
    ? h("td", { class: "who muted", title: actor }, source)
    : h("td", { class: "who" }, actor, h("span", { class: "muted" }, ` ${source}`));

// A supervisor notes the same of one app after the other, and at each of its runs: such a run of actions is one row.
const FOLDED = 3;
const folded = (actions) => {
  const runs = [];
  for (const action of actions) {
    const last = runs.at(-1)?.[0];
    if (last && action.source === "supervisor" && last.source === "supervisor" && last.verb === action.verb) runs.at(-1).push(action);
    else runs.push([action]);
  }
  return runs.flatMap((run) => (run.length < FOLDED ? run.map((one) => [one]) : [run]));
};

const foldedRow = (run, now) => {
  const [first, last] = [run[0], run.at(-1)];
  const each = run.map(({ at, target, detail }) => h("li", {}, f.moment(at, now), ` ${target}`, h("span", { class: "muted" }, detail ? `: ${detail}` : "")));
  return h(
    "tr",
    { class: "folded" },
    h("td", { class: "when" }, `${f.moment(last.at, now)} to ${f.moment(first.at, now)}`),
    who(first),
    h("td", { class: "what" }, h("b", {}, first.verb), ` ${f.plural(run.length, "time")}`),
    h("td", { class: "note" }, h("details", {}, h("summary", {}, [...new Set(run.map(({ target }) => target))].join(", ")), h("ul", {}, ...each))),
  );
};

const row = (action, now) =>
  h(
    "tr",
    {},
    h("td", { class: "when", title: new Date(action.at).toISOString() }, f.moment(action.at, now)),
    who(action),
    h("td", { class: "what" }, h("b", {}, action.verb), ` ${action.target}`),
    h("td", { class: "note" }, action.detail ?? ""),
  );

export class ActivityView {
  constructor() {
    this.filters = new Filters("activity", "Name or note", { actor: "By anybody", verb: "All actions" });
    const box = scrolled("Actions");
    box.id = "actions";
    this.list = new Replaced(box);
    this.newest = h("a", linkTo(["activity"]), "Newest");
    this.earlier = h("a", linkTo(["activity"]), "Earlier");
    this.pager = h("nav", { class: "pager", "aria-label": "Pages" }, this.newest, this.earlier);
    this.node = h("div", {}, this.filters.node, box, this.pager);
  }

  load(query) {
    return api.activity(query);
  }

  show({ actions, actors, verbs, more, now }, query) {
    this.filters.show({}, query, { actor: actors, verb: verbs });
    const filtered = query.q || query.actor || query.verb;
    this.list.show([actions.map((action) => action.id), filtered], () =>
      actions.length ? table("list", ["When", "Who", "What", "Note"], folded(actions).map((run) => (run.length > 1 ? foldedRow(run, now) : row(run[0], now)))) : empty(filtered ? "No action matches." : "There are no actions yet."),
    );
    const { before, ...rest } = query;
    attr(this.newest, "hidden", !before);
    retarget(this.newest, ["activity"], rest);
    attr(this.earlier, "hidden", !more);
    if (more) retarget(this.earlier, ["activity"], { ...rest, before: actions.at(-1).id });
  }
}
