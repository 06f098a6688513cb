// Apps and their streams. Rows are created once and then updated, so that focus and charts stay.
import * as api from "../api.js";
import { AppHead } from "../app-head.js";
import { drop, spark, sparkWidth } from "../charts.js";
import { attr, h, text } from "../dom.js";
import * as f from "../format.js";
import { linkTo, retarget } from "../router.js";
import { Filters, Pager, empty, pair } from "../rows.js";
import { StateButton } from "../state.js";
import { confirmStream } from "../stream-actions.js";

// Columns that the server orders by, the greatest first, by the word of the address.
const ORDERS = { Lag: "lag", Watermark: "watermark" };
const COLUMNS = ["Stream", "State", "Last batch", "Rows/s", "Lag", "Watermark", "State size", "Late", "Dead", "Restarts", ""];
// Clocks of two hosts may differ by this.
const AHEAD_MS = 10_000;
const COMPARE_AGAIN_MS = 60_000;
const HISTORY_EVERY_MS = 15_000;
const HINTS = {
  "Last batch": "Time since the last batch was committed, and its duration",
  "Rows/s": "Rows read per second, now and over the last hour",
  Lag: "Records that are not read yet, over all topics, now and over the last hour",
  Watermark: "Age of the watermark by the database's clock, without the declared grace",
  "State size": "Bytes and rows of state",
  Late: "Rows that arrived after their window was closed, since the first start",
  Dead: "Records that could not be processed, since the first start",
  Restarts: "Restarts of the query within its driver",
};

// Producers send in bursts, and a batch reads what has arrived meanwhile: such a lag is no backlog.
const ON_ITS_WAY_MS = 30_000;
const onItsWay = ({ lag, rows_per_s: rate, batch_ms: duration }) => lag != null && lag <= ((rate ?? 0) * Math.max(ON_ITS_WAY_MS, 2 * (duration ?? 0))) / 1000;

class StreamRow {
  constructor(table, name) {
    this.table = table;
    this.name = name;
    this.link = h("a", { class: "name", ...linkTo(["streams", name]) }, name);
    this.app = h("a", { class: "s of-app", ...linkTo(["streams"]) });
    this.why = h("span", { class: "s why" });
    this.late = h("span", { class: "s late" });
    this.state = new StateButton(name);
    this.desired = h("span", { class: "s" });
    this.cells = Object.fromEntries(["batch", "rows", "lag", "watermark", "size", "late", "dead", "restarts"].map((key, n) => [key, pair(COLUMNS[n + 2])]));
    this.button = h("button", { type: "button", onclick: () => confirmStream(this.stream, this.table.acted) });
    this.node = h(
      "tr",
      { class: "stream" },
      h("th", { scope: "row" }, this.link, this.app, this.why, this.late),
      h("td", {}, this.state.node, this.desired),
      ...Object.values(this.cells).map((entry) => entry.cell),
      h("td", { class: "act" }, this.button),
    );
    this.sparks = { rows_per_s: spark(this.cells.rows.second), lag: spark(this.cells.lag.second) };
    for (const [key, title] of [["rows", "Rows per second"], ["lag", "Lag"]]) {
      attr(this.cells[key].second, "role", "img");
      attr(this.cells[key].second, "aria-label", `${title} over the last hour`);
    }
  }

  show(stream, app, { viewer, states, remedies, order }) {
    this.stream = stream;
    const c = this.cells;
    attr(this.app, "hidden", !order);
    text(this.app, app.name);
    retarget(this.app, ["streams"], { app: app.name });
    // A reason of the whole app is shown once, at its head.
    const why = stream.why === app.why && !order ? "" : stream.why;
    text(this.why, why || f.failed(stream));
    attr(this.why, "title", why || stream.error);
    text(this.late, stream.late_because && `late: ${stream.late_because}`);
    attr(this.node, "data-state", stream.state);
    attr(this.node, "data-stale", stream.stale);
    attr(this.node, "data-alarm", stream.alarms?.length > 0);
    this.state.show(stream.state, stream.why, { states, remedies });
    text(this.desired, stream.desired === "on" ? "desired on" : "desired off");
    text(c.batch.first, f.age(stream.batch_age_ms));
    text(c.batch.second, stream.batch_ms == null ? "" : `took ${f.span(stream.batch_ms)}`);
    text(c.rows.first, f.count(stream.rows_per_s));
    text(c.lag.first, f.count(stream.lag));
    attr(c.lag.cell, "data-zero", onItsWay(stream));
    attr(c.lag.cell, "title", onItsWay(stream) ? "The stream reads this in half a minute, or in two batches" : null);
    const behind = stream.behind_ms;
    const age = stream.watermark_age_ms;
    text(c.watermark.first, f.age(age == null ? null : age - behind));
    text(c.watermark.second, age == null ? "none yet" : age < -AHEAD_MS ? "ahead of the clock" : behind ? `+ ${f.age(behind)}` : f.clock(stream.watermark));
    attr(c.watermark.cell, "title", age == null ? null : `${new Date(stream.watermark).toISOString()}: ${f.age(age)} ago${behind ? `, ${f.age(behind)} of it as declared` : ""}`);
    attr(c.watermark.cell, "data-warn", age < -AHEAD_MS);
    text(c.size.first, f.bytes(stream.state_bytes));
    text(c.size.second, stream.state_rows == null ? "" : `${f.count(stream.state_rows)} rows`);
    for (const key of ["late", "dead", "restarts"]) {
      text(c[key].first, f.count(stream[key]));
      attr(c[key].first, "title", f.exact(stream[key]));
      attr(c[key].cell, "data-zero", !stream[key]);
    }
    const verb = stream.desired === "on" ? "Stop" : "Start";
    text(this.button, verb);
    attr(this.button, "aria-label", `${verb} ${stream.name}`);
    this.table.guard(this.button, viewer);
  }

  draw(history) {
    const series = history.streams[this.name];
    for (const [key, chart] of Object.entries(this.sparks)) {
      chart.setData([history.t, series?.[key] ?? history.t.map(() => null)]);
    }
  }

  end() {
    Object.values(this.sparks).forEach(drop);
  }
}

export class StreamsView {
  constructor({ acted, guard }) {
    Object.assign(this, { acted, guard });
    this.shape = null;
    this.rows = new Map();
    this.heads = new Map();
    this.history = null;
    this.historyAt = -Infinity;
    this.changed = {}; // by app, how many of its files on the disk differ from its release
    this.compared = null;
    this.filters = new Filters("streams", "Name, app, state or reason", { app: "All apps", state: "All states", sort: "In order of apps" });
    this.orders = Object.fromEntries(Object.keys(ORDERS).map((column) => [column, h("a", linkTo(["streams"]), column)]));
    this.pager = new Pager("streams");
    this.place = h("div", { class: "scroll", id: "streams" });
    this.node = h("div", {}, this.filters.node, this.place, this.pager.node);
    this.resized = () => {
      const width = sparkWidth();
      for (const row of this.rows.values()) for (const chart of Object.values(row.sparks)) if (chart.width !== width) chart.setSize({ width, height: chart.height });
    };
    window.addEventListener("resize", this.resized);
  }

  load(query) {
    return api.streams(query);
  }

  // Asks which apps have files on the disk that differ from their release, once after each change of either.
  async compare({ apps, disk_hash: disk }) {
    const state = JSON.stringify([disk, apps.map((app) => [app.name, app.release_seq])]);
    if (state === this.compared) return;
    this.compared = state;
    let changed = {};
    try {
      if (apps.some((app) => app.driver && app.driver.spec_hash !== disk)) changed = await api.changed();
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      setTimeout(() => (this.compared = null), COMPARE_AGAIN_MS);
    }
    if (this.compared === state) this.changed = changed;
  }

  build(apps, total, order) {
    for (const row of this.rows.values()) row.end();
    this.rows.clear();
    this.heads.clear();
    const nodesOf = (names) =>
      names.map((name) => {
        this.rows.set(name, new StreamRow(this, name));
        return this.rows.get(name).node;
      });
    const ofApp = (app) => {
      const head = new AppHead(this, app.name, COLUMNS.length);
      this.heads.set(app.name, head);
      return h("tbody", { "data-app": app.name }, head.node, ...nodesOf(app.streams.map((stream) => stream.name)));
    };
    const bodies = order ? [h("tbody", {}, ...nodesOf(order))] : apps.map(ofApp);
    this.columns = Object.fromEntries(COLUMNS.map((c) => [c, h("th", { scope: "col", title: HINTS[c] }, this.orders[c] ?? (c || h("span", { class: "unseen" }, "Action")))]));
    const head = h("thead", {}, h("tr", {}, ...Object.values(this.columns)));
    const none = total ? "No stream matches." : "No streams are declared yet: docs/tutorial.md shows how to write one.";
    this.place.replaceChildren(apps.length ? h("table", { class: "streams cards" }, h("colgroup", {}, ...COLUMNS.map((c) => h("col", { "data-column": c }))), head, ...bodies) : empty(none));
    this.historyAt = -Infinity;
  }

  show(data, query) {
    const { apps, total, order } = data;
    this.compare(data);
    const shape = JSON.stringify([total > 0, order, apps.map((app) => [app.name, app.streams.map((stream) => stream.name)])]);
    if (shape !== this.shape) {
      this.build(apps, total, order);
      this.shape = shape;
    }
    this.showOrder(query);
    for (const app of apps) {
      this.heads.get(app.name)?.show(app, data);
      for (const stream of app.streams) this.rows.get(stream.name).show(stream, app, data);
    }
    this.filters.show(data, query, { app: data.app_names, state: Object.keys(data.states), sort: Object.values(ORDERS).map((word) => [word, `By ${word}`]) });
    this.pager.show(data, query);
    this.draw();
  }

  // A second click on a heading leads back to the order of apps.
  showOrder({ sort, page, ...query }) {
    for (const [column, word] of Object.entries(ORDERS)) {
      attr(this.columns[column], "aria-sort", sort === word ? "descending" : null);
      retarget(this.orders[column], ["streams"], sort === word ? query : { ...query, sort: word });
    }
  }

  async draw() {
    if (performance.now() - this.historyAt < HISTORY_EVERY_MS || !this.rows.size) return;
    this.historyAt = performance.now();
    const { shape } = this;
    try {
      const history = await api.histories([...this.rows.keys()]);
      if (shape === this.shape) for (const row of this.rows.values()) row.draw(history);
    } catch (error) {
      // The next refresh tells of a server that does not answer.
      if (!(error instanceof api.Failure)) throw error;
    }
  }

  end() {
    this.shape = null;
    window.removeEventListener("resize", this.resized);
    for (const row of this.rows.values()) row.end();
  }
}
