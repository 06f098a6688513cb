// What needs a person, first; then what is under way, the apps and the heartbeats.
import * as api from "../api.js";
import { drop, spark } from "../charts.js";
import { attr, h, marked, text, tileIn } from "../dom.js";
import { FaultList } from "../faults.js";
import * as f from "../format.js";
import { linkTo, retarget } from "../router.js";
import { Replaced, empty, scrolled, table } from "../rows.js";

const HISTORY_EVERY_MS = 15000;
const RECENT = 20; // steps of the history, ten minutes
const SPARK = { width: 110, height: 20 };
// In ages that are compared to learn whether a table has to be written again.
const seconds = (ms) => (ms == null ? null : Math.floor(ms / 1000));

class Totals {
  constructor() {
    this.node = h("section", { id: "totals", class: "tiles", "aria-label": "Totals" });
    const tile = (name, title) => tileIn(this.node, name, title);
    this.tiles = {
      streams: tile("Streams", "Streams with the desired state on that run or are idle"),
      rows_per_s: tile("Rows/s", "Over all streams with current metrics"),
      lag: tile("Lag", "Records that are not read yet, over all streams with current metrics"),
      watermark_age_ms: tile("Oldest watermark", "The greatest watermark age of all streams with current metrics, without the declared grace"),
      state_bytes: tile("State", "Bytes of state of all streams with current metrics"),
      late: tile("Late", "Rows that arrived after their window was closed, since the first start"),
      dead: tile("Dead-lettered", "Records that could not be processed, since the first start"),
      restarts: tile("Driver restarts", "Over all apps"),
    };
    this.oldest = h("a", { class: "of", ...linkTo(["streams"]) });
    this.tiles.watermark_age_ms.value.after(this.oldest);
    this.sparks = Object.fromEntries(["rows_per_s", "lag", "watermark_age_ms", "state_bytes"].map((key) => [key, spark(this.tiles[key].note, SPARK)]));
  }

  show({ totals, freshness }) {
    const { tiles } = this;
    const stale = freshness.old === "all";
    text(tiles.streams.value, `${totals.healthy} of ${totals.wanted}`);
    const tally = totals.by_state;
    const others = Object.entries(tally).filter(([state]) => state !== "running" && state !== "idle");
    const note = others.map(([state, n]) => `${n} ${state}`).join(", ") || "all running";
    text(tiles.streams.note, note);
    attr(tiles.streams.note, "title", note);
    attr(tiles.streams.value, "data-bad", Boolean(tally.failing || tally.blocked || tally.hung || tally.down));
    text(tiles.rows_per_s.value, stale ? f.DASH : f.count(totals.rows_per_s));
    // Streams with unknown lag may add to it.
    const more = totals.lag_unknown && totals.lag != null;
    text(tiles.lag.value, stale ? f.DASH : (more ? "≥ " : "") + f.count(totals.lag));
    attr(tiles.lag.value, "title", totals.lag_unknown ? `unknown of ${f.plural(totals.lag_unknown, "stream")}` : null);
    text(tiles.watermark_age_ms.value, f.age(totals.watermark_age_ms));
    attr(this.oldest, "hidden", !totals.watermark_of);
    text(this.oldest, totals.watermark_of ?? "");
    attr(this.oldest, "title", totals.watermark_of);
    retarget(this.oldest, ["streams", totals.watermark_of ?? ""]);
    text(tiles.state_bytes.value, stale ? f.DASH : f.bytes(totals.state_bytes));
    for (const key of ["late", "dead", "restarts"]) {
      text(tiles[key].value, f.count(totals[key]));
      attr(tiles[key].value, "title", f.exact(totals[key]));
    }
    text(tiles.restarts.note, `and ${f.count(totals.query_restarts)} of queries`);
  }

  draw({ t, totals }) {
    for (const [key, chart] of Object.entries(this.sparks)) chart.setData([t, totals[key]]);
    // The first answers of a server begin later than an hour ago, as the history of a new platform does.
    const known = t.findIndex((_, i) => totals.rows_per_s[i] != null);
    const minutes = known < 0 ? 0 : Math.max(1, Math.round((t.at(-1) - t[known]) / 60));
    const whole = minutes > 57;
    const since = whole ? "in the last hour" : `in ${minutes} min`;
    const drawn = known < 0 ? "There is no history yet" : whole ? "The last hour" : `The last hour, known since ${f.clock(t[known] * 1000).slice(0, 5)}`;
    for (const key of Object.keys(this.sparks)) attr(this.tiles[key].note, "title", drawn);
    for (const key of ["late", "dead"]) {
      const rise = totals[key].reduce((all, value) => all + (value ?? 0), 0);
      text(this.tiles[key].note, known < 0 ? "no history yet" : `${rise ? f.count(rise) : "none"} ${since}`);
      attr(this.tiles[key].value, "data-warn", totals[key].slice(-RECENT).some((value) => value > 0));
    }
  }

  end() {
    Object.values(this.sparks).forEach(drop);
  }
}

const progressRow = ({ kind, name, view, what, done, rate, remaining_ms: remaining }) =>
  h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", view === "streams" ? linkTo(["streams", name]) : linkTo([view]), name), h("span", { class: "muted" }, ` ${kind}`)),
    h("td", { class: "note" }, what),
    h("td", { class: "n" }, done == null ? f.DASH : h("div", { class: "done" }, h("progress", { max: 1, value: done, "aria-label": `Progress of ${name}` }), `${Math.floor(100 * done)} %`)),
    h("td", { class: "n" }, rate == null ? f.DASH : `${f.count(rate)}/s`),
    h("td", { class: "n" }, f.age(remaining)),
  );

const appRow = ({ name, state, why, desired, release_seq: release, running_release: running, restarts, streams, by_state: tally }) =>
  h(
    "tr",
    { "data-state": state },
    h("th", { scope: "row" }, h("a", linkTo(["streams"], { app: name }), name)),
    h("td", {}, h("span", { class: "pill", "data-state": state }, state), h("span", { class: "muted" }, desired === "on" ? "" : " desired off")),
    h("td", { class: "n" }, f.exact(streams)),
    h("td", { class: "note" }, Object.entries(tally).map(([of, n]) => `${f.exact(n)} ${of}`).join(", ")),
    h("td", { class: "n" }, running == null || running === release ? f.exact(release) : `${f.exact(running)} → ${f.exact(release)}`),
    h("td", { class: "n" }, f.exact(restarts)),
    h("td", { class: "note why" }, why),
  );

const beatRow = (now) => (beat) =>
  h(
    "tr",
    {},
    h("td", { class: "what" }, beat.topic),
    h("td", { class: "when", title: `sent by ${beat.sender}` }, beat.at ? f.moment(beat.at, now) : f.DASH),
    h("td", { class: "n" }, beat.at ? f.age(beat.age_ms) : f.DASH),
    h("td", { class: "n" }, f.exact(beat.partitions)),
    h("td", { class: "note" }, beat.held ? `${beat.held_at ? `held at ${f.moment(beat.held_at, now)}` : "held"}: ${beat.held}` : ""),
  );

const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);

export class OverviewView {
  constructor(context) {
    this.totals = new Totals();
    this.faults = new FaultList(context);
    this.historyAt = -Infinity;
    const box = (id, label) => {
      const node = scrolled(label);
      node.id = id;
      return new Replaced(node);
    };
    this.progress = box("progress", "Under way");
    this.apps = box("apps", "Apps");
    this.beats = box("beats", "Heartbeats");
    this.states = new Replaced(h("dl", { id: "states" }));
    this.underWay = section("Under way", this.progress.node);
    this.node = h(
      "div",
      {},
      this.totals.node,
      section("Faults", this.faults.node, this.faults.past),
      this.underWay,
      section("Apps", this.apps.node),
      section("Heartbeats", this.beats.node),
      h("details", { id: "legend" }, h("summary", {}, "What the states mean"), this.states.node),
    );
  }

  load() {
    return api.overview();
  }

  show(data) {
    this.totals.show(data);
    this.faults.show(data);
    const { progress, apps, apps_total: all, beats, now, states, remedies } = data;
    attr(this.underWay, "hidden", !progress.length);
    this.progress.show(progress.map((one) => [one.kind, one.name, one.what, one.done, one.rate, seconds(one.remaining_ms)]), () =>
      table("list", ["What", "How far", "*Done", "*Rate", "*Time left"], progress.map(progressRow)),
    );
    this.apps.show([apps, all], () =>
      apps.length
        ? [
            table("list apps", ["App", "State", "*Streams", "Of them", "*Release", "*Restarts", "Reason"], apps.map(appRow)),
            ...(all > apps.length ? [empty(`${f.exact(all - apps.length)} more, which all work: `, h("a", linkTo(["streams"]), "all streams"))] : []),
          ]
        : empty("No streams are declared yet: see docs/tutorial.md."),
    );
    this.beats.show(beats.map((beat) => [beat.topic, beat.at, seconds(beat.age_ms), beat.held, beat.held_at]), () =>
      beats.length ? table("list", ["Topic", "Last beat", "*Age", "*Partitions", "Held"], beats.map(beatRow(now))) : empty("No heartbeat has been sent yet: streams with windows need them, see docs/streams.md."),
    );
    this.states.show([states, remedies], () =>
      Object.entries(states).flatMap(([state, meaning]) => {
        const remedy = remedies[state];
        const action = remedy ? [" What to do: ", ...marked(remedy), /[.?]$/.test(remedy) ? "" : "."] : [];
        return [h("dt", {}, h("span", { class: "pill", "data-state": state }, state)), h("dd", {}, meaning, ...action)];
      }),
    );
    this.draw();
  }

  async draw() {
    if (performance.now() - this.historyAt < HISTORY_EVERY_MS) return;
    this.historyAt = performance.now();
    try {
      const history = await api.totalHistory();
      if (this.totals) this.totals.draw(history);
    } catch (error) {
      // The next refresh tells of a server that does not answer.
      if (!(error instanceof api.Failure)) throw error;
    }
  }

  end() {
    this.totals.end();
    this.totals = null;
  }
}
