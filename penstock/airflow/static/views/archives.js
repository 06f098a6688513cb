// Archives: where topics are kept for longer, and how far each is.
import * as api from "../api.js";
import { h } from "../dom.js";
import * as f from "../format.js";
import { linkTo } from "../router.js";
import { Replaced, reason, scrolled, table, undeclared } from "../rows.js";
import { StateButton } from "../state.js";

const COLUMNS = ["Archive", "Of", "Table", "Lies in", "State", "*Rows/s", "*Lag", "Closed hour"];
const HINTS = { "Closed hour": "The newest hour of event time that is complete, of archives with asset events" };

const row = (data) => (archive) => {
  const { name, location, topic, table: iceberg, place, state, newest_closed_hour: hour } = archive;
  const pill = state && new StateButton(name);
  pill?.show(state, archive.why, data);
  return h(
    "tr",
    { "data-state": state },
    h("th", { scope: "row", title: location }, state ? h("a", linkTo(["streams", name]), name) : name, reason(archive.why)),
    h("td", { class: "what" }, topic),
    h("td", { class: "what" }, iceberg),
    h("td", { class: "places" }, place),
    h("td", {}, pill?.node ?? h("span", { class: "muted" }, "not running")),
    h("td", { class: "n" }, f.count(archive.rows_per_s)),
    h("td", { class: "n" }, f.count(archive.lag)),
    h("td", { class: "what" }, hour ?? f.DASH),
  );
};

export class ArchivesView {
  constructor() {
    const box = scrolled("Archives");
    box.id = "archives";
    this.list = new Replaced(box);
    this.node = box;
  }

  load() {
    return api.archives();
  }

  show(data) {
    const { archives } = data;
    const key = [data.declarations_known, ...archives.map((one) => [one.name, one.topic, one.table, one.place, one.state, one.why, f.count(one.rows_per_s), f.count(one.lag), one.newest_closed_hour])];
    this.list.show(key, () =>
      archives.length
        ? table("list", COLUMNS, archives.map(row(data)), HINTS)
        : undeclared(data, "No archives are declared: they keep the records of a topic in files, for backfills and state of the past, see docs/archives.md."),
    );
  }
}
