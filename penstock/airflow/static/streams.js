// The table of apps and their streams. Rows are created once and then updated, so that focus and charts stay.
import * as api from "./api.js";
import { drop, spark, sparkWidth } from "./charts.js";
import { ask } from "./confirm.js";
import { Detail } from "./detail.js";
import { $, attr, h, text } from "./dom.js";
import * as f from "./format.js";
import { showLog } from "./letters.js";
import { earlierReleases, showReleases } from "./releases.js";
import { StateButton } from "./state.js";

const COLUMNS = ["Stream", "State", "Last batch", "Rows/s", "Lag", "Watermark", "State size", "Late", "Dead", "Restarts", ""];
// Clocks of two hosts may differ by this.
const AHEAD_MS = 10_000;
const COMPARE_AGAIN_MS = 60_000;
const short = (hash) => hash.slice(0, 8);
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

const pair = (label) => {
  const first = h("span", { class: "v" });
  const second = h("span", { class: "s" });
  return { cell: h("td", { class: "n", "data-label": label }, first, second), first, second };
};
// Producers send in bursts, and a batch reads what has arrived meanwhile: such a lag is no backlog.
const ON_ITS_WAY_MS = 30_000;
const onItsWay = ({ lag, rows_per_s: rate, batch_ms: duration }) => lag != null && lag <= ((rate ?? 0) * Math.max(ON_ITS_WAY_MS, 2 * (duration ?? 0))) / 1000;

class StreamRow {
  constructor(table, name) {
    this.table = table;
    this.name = name;
    this.unfold = h("button", { type: "button", class: "unfold", "aria-expanded": "false", onclick: () => this.toggle() }, name);
    this.why = h("span", { class: "s why" });
    this.state = new StateButton(name);
    this.desired = h("span", { class: "s" });
    this.cells = Object.fromEntries(["batch", "rows", "lag", "watermark", "size", "late", "dead", "restarts"].map((key, n) => [key, pair(COLUMNS[n + 2])]));
    this.button = h("button", { type: "button", onclick: () => this.confirm() });
    this.node = h(
      "tr",
      { class: "stream" },
      h("th", { scope: "row" }, this.unfold, this.why),
      h("td", {}, this.state.node, this.desired),
      ...Object.values(this.cells).map((entry) => entry.cell),
      h("td", { class: "act" }, this.button),
    );
    this.sparks = { rows_per_s: spark(this.cells.rows.second), lag: spark(this.cells.lag.second) };
    for (const [key, title] of [["rows", "Rows per second"], ["lag", "Lag"]]) {
      attr(this.cells[key].second, "role", "img");
      attr(this.cells[key].second, "aria-label", `${title} over the last hour`);
    }
    this.holder = h("tr", { class: "unfolded", hidden: true }, h("td", { colspan: COLUMNS.length }));
    this.detail = null;
  }

  show(stream, app, { viewer, states, remedies }) {
    this.stream = stream;
    this.viewer = viewer;
    const c = this.cells;
    // A reason of the whole app is shown once, at its head.
    const why = stream.why === app.why ? "" : stream.why;
    text(this.why, why || f.failed(stream));
    attr(this.why, "title", why || stream.error);
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
    const behind = this.table.behind.get(this.name) ?? 0;
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
    this.detail?.show(stream, viewer);
  }

  draw(history) {
    const series = history.streams[this.name];
    for (const [key, chart] of Object.entries(this.sparks)) {
      chart.setData([history.t, series?.[key] ?? history.t.map(() => null)]);
    }
    this.detail?.draw(history);
  }

  toggle() {
    const open = this.detail === null;
    attr(this.unfold, "aria-expanded", String(open));
    attr(this.holder, "hidden", !open);
    if (!open) {
      this.detail.end();
      this.detail = null;
      return;
    }
    this.detail = new Detail(this.name, this.table);
    this.holder.firstChild.append(this.detail.node);
    this.detail.begin(this.table.history);
    this.detail.show(this.stream, this.viewer);
  }

  confirm() {
    const { name, app, desired } = this.stream;
    const stop = desired === "on";
    ask({
      title: `${stop ? "Stop" : "Start"} ${name}?`,
      message: stop
        ? `It finishes its batch and stops. Offsets and state are kept, and a later start continues from there. Other streams of ${app} continue.`
        : `It continues from its offsets and state.`,
      label: stop ? "Stop" : "Start",
      action: { verb: stop ? "stop" : "start", kind: "stream", name },
      done: () => this.table.acted(`${stop ? "Stop" : "Start"} of ${name} is recorded.`),
    });
  }

  end() {
    this.detail?.end();
    Object.values(this.sparks).forEach(drop);
  }
}

class AppHead {
  constructor(table, name) {
    this.table = table;
    this.name = name;
    this.state = new StateButton(name);
    this.facts = h("span", { class: "driver" });
    this.why = h("span", { class: "why" });
    this.start = h("button", { type: "button", "aria-label": `Start all of ${name}`, onclick: () => this.confirm("start") }, "Start all");
    this.stop = h("button", { type: "button", "aria-label": `Stop all of ${name}`, onclick: () => this.confirm("stop") }, "Stop all");
    this.release = h("button", { type: "button", "aria-label": `Release ${name}`, onclick: () => this.confirmRelease() }, "Release");
    this.log = h("button", { type: "button", "aria-label": `Log of ${name}`, "aria-haspopup": "dialog", onclick: () => showLog(name) }, "Log");
    this.releases = h("button", { type: "button", "aria-label": `Releases of ${name}`, "aria-haspopup": "dialog", onclick: () => showReleases(name) }, "Releases");
    this.node = h(
      "tr",
      { class: "app" },
      h(
        "th",
        { scope: "rowgroup", colspan: COLUMNS.length },
        h(
          "div",
          {},
          h("span", { class: "name" }, name),
          this.state.node,
          h("span", { class: "about" }, this.why, this.facts),
          h("span", { class: "buttons" }, this.start, this.stop, this.release, this.releases, this.log),
        ),
      ),
    );
  }

  show(app, { viewer, states, remedies, disk_hash: disk }) {
    this.app = app;
    this.state.show(app.state, app.why, { states, remedies });
    text(this.why, app.why);
    const d = app.driver;
    const facts = [`release ${app.release_seq}`, f.plural(app.restarts, "restart")];
    if (d && d.state !== "ended") facts.push(`up ${f.age(d.up_ms)}`, `reported ${f.age(d.alive_age_ms)} ago`, `${d.submission ?? `pid ${d.pid ?? f.DASH}`} on ${d.host}`);
    // Changed files restart nothing, so they are no error.
    const differs = this.table.changed[this.name] > 0;
    if (d) facts.push(`code ${short(d.spec_hash)}${differs ? `, the disk differs (${short(disk)})` : ""}`);
    text(this.facts, facts.join(" · "));
    attr(this.facts, "title", d ? `driver ${d.incarnation}\nlog ${d.log}\nowner ${d.owner}\nits code ${d.spec_hash}\ncode on disk ${disk}, which a release starts` : null);
    const on = app.streams.filter((stream) => stream.desired === "on").length;
    attr(this.start, "hidden", on === app.streams.length);
    attr(this.stop, "hidden", on === 0);
    attr(this.log, "hidden", !d);
    for (const button of [this.start, this.stop, this.releases, this.log]) this.table.guard(button, viewer);
    this.table.guard(this.release, viewer, "release");
  }

  confirmRelease() {
    const { name, streams } = this.app;
    ask({
      title: `Release ${name}?`,
      message: `The driver finishes its batches and ends; the next one runs the code that you choose. Offsets and state are kept. Affected: ${streams.map((s) => s.name).join(", ")}.`,
      label: "Release",
      action: { app: name },
      send: api.release,
      choice: {
        name: "to",
        label: "Code",
        options: [["", "on the disk now"]],
        more: async () => earlierReleases((await api.releases(name)).releases),
        missing: "Earlier releases are not listed",
      },
      done: () => this.table.acted(`Release of ${name} is recorded.`),
    });
  }

  confirm(verb) {
    const { name, streams } = this.app;
    const changes = streams.filter((s) => (s.desired === "on") === (verb === "stop")).map((s) => s.name);
    const texts = {
      start: [`Start all streams of ${name}?`, `Starts ${changes.join(", ")}.`, "Start all"],
      stop: [`Stop all streams of ${name}?`, `Stops ${changes.join(", ")}. The driver finishes its batches and ends. Offsets and state are kept.`, "Stop all"],
    }[verb];
    ask({
      title: texts[0],
      message: texts[1],
      label: texts[2],
      action: { verb, kind: "app", name },
      done: () => this.table.acted(`${texts[2]} of ${name} is recorded.`),
    });
  }
}

export class StreamTable {
  constructor({ acted }) {
    this.acted = acted;
    this.shape = null;
    this.rows = new Map();
    this.heads = new Map();
    this.history = null;
    this.behind = new Map();
    this.replaceable = new Set();
    this.changed = {}; // by app, how many of its files on the disk differ from its release
    this.compared = null;
    window.addEventListener("resize", () => {
      const width = sparkWidth();
      for (const row of this.rows.values()) for (const chart of Object.values(row.sparks)) if (chart.width !== width) chart.setSize({ width, height: chart.height });
    });
  }

  // permission: operate or release.
  guard(button, viewer, permission = "operate") {
    const may = viewer[`may_${permission}`];
    attr(button, "disabled", !may);
    attr(button, "title", may ? null : `Needs the permission to trigger the DAG ${permission}_streams`);
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

  build(apps) {
    const open = new Set([...this.rows.values()].filter((row) => row.detail).map((row) => row.name));
    for (const row of this.rows.values()) row.end();
    this.rows.clear();
    this.heads.clear();
    const bodies = apps.map((app) => {
      const head = new AppHead(this, app.name);
      this.heads.set(app.name, head);
      const rows = app.streams.map((stream) => new StreamRow(this, stream.name));
      for (const row of rows) this.rows.set(row.name, row);
      return h("tbody", { "data-app": app.name }, head.node, ...rows.flatMap((row) => [row.node, row.holder]));
    });
    const empty = h("p", { class: "empty" }, "No streams are declared yet.");
    const head = h("thead", {}, h("tr", {}, ...COLUMNS.map((c) => h("th", { scope: "col", title: HINTS[c] }, c || h("span", { class: "unseen" }, "Action")))));
    $("streams").replaceChildren(apps.length ? h("table", { class: "streams cards" }, h("colgroup", {}, ...COLUMNS.map((c) => h("col", { "data-column": c }))), head, ...bodies) : empty);
    return open;
  }

  show(data) {
    const { apps } = data;
    this.compare(data);
    const shape = JSON.stringify(apps.map((app) => [app.name, app.streams.map((stream) => stream.name)]));
    let open = new Set();
    if (shape !== this.shape) {
      open = this.build(apps);
      this.shape = shape;
    }
    for (const app of apps) {
      this.heads.get(app.name).show(app, data);
      for (const stream of app.streams) this.rows.get(stream.name).show(stream, app, data);
    }
    for (const row of this.rows.values()) if (open.has(row.name)) row.toggle();
    if (open.size || (shape === this.shape && this.history)) this.draw(this.history);
  }

  draw(history) {
    if (!history) return;
    this.history = history;
    for (const row of this.rows.values()) row.draw(history);
  }
}
