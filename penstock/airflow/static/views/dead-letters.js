// Dead letters of all streams: how many each has, and the newest by their reason, which can be replayed.
import * as api from "../api.js";
import { ask } from "../confirm.js";
import { attr, h, marked, text } from "../dom.js";
import * as f from "../format.js";
import { replayCounts, showLetters, showReplayed } from "../letters.js";
import { dialogButton } from "../dialog.js";
import { linkTo } from "../router.js";
import { Filters, Pager, Replaced, empty, scrolled, table } from "../rows.js";

const COLUMNS = ["Stream", "*Dead", "*Last hour", "*Late", "*Last hour", ""];
const HINTS = { Dead: "Records that could not be processed, since the first start", Late: "Rows that arrived after their window was closed, since the first start" };

const none = () => marked(
  "No stream has dead letters or late records. A record that cannot be decoded or computed, a row that a store refuses, and a record whose window is closed would be here, with its reason, to be replayed after a fix or discarded: see docs/operations.md, *Dead letters*.",
);

const example = (one) =>
  h("li", {}, h("span", { class: "muted" }, `from ${one.source}, ${f.bytes(one.size)}`), one.key == null ? null : h("div", {}, h("span", { class: "muted" }, "key "), h("code", {}, one.key)), h("pre", { class: "error", tabindex: "0" }, one.value ?? "no value: a tombstone"));

export class DeadLettersView {
  constructor({ acted, guard }, [stream = ""]) {
    Object.assign(this, { acted, guard });
    this.filters = new Filters("dead-letters", "Name or app");
    this.pager = new Pager("dead-letters");
    this.list = new Replaced(scrolled("Streams with dead letters or late records"));
    this.title = h("h3", {});
    this.again = h("button", { type: "button", onclick: () => this.read() }, "Read");
    this.groups = h("div", { class: "reasons", "aria-live": "polite" });
    this.all = h("a", linkTo(["dead-letters"]), "of all streams");
    this.node = h("div", {}, this.filters.node, this.list.node, this.pager.node, h("div", { class: "filters" }, this.title, this.again, this.all), this.groups);
    this.turn([stream]);
  }

  turn([stream = ""]) {
    this.stream = stream;
    text(this.title, stream ? `The newest of ${stream}, by reason` : "The newest, by reason");
    attr(this.all, "hidden", !stream);
    this.groups.replaceChildren();
    this.begun = false;
    return true;
  }

  load(query) {
    return api.deadLetters(query);
  }

  show(data, query) {
    const { streams, viewer, total } = data;
    this.viewer = viewer;
    this.list.show([streams, viewer.may_operate], () =>
      streams.length ? table("list letters", COLUMNS, streams.map((one) => this.row(one)), HINTS) : total ? empty("No stream matches.") : empty(...none()),
    );
    this.filters.show(data, query);
    this.pager.show(data, query);
    this.guard(this.again, viewer);
    if (this.stream && viewer.may_operate && !this.begun) this.read();
  }

  row({ name, app, dead, late, dead_last_hour: dead1, late_last_hour: late1 }) {
    const number = (value) => h("td", { class: "n", title: f.exact(value) }, f.count(value));
    const lateButton = dialogButton("Late records", `Late records of ${name}`, () => showLetters(name, "late"));
    this.guard(lateButton, this.viewer);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", linkTo(["streams", name]), name), h("span", { class: "muted" }, ` ${app}`)),
      number(dead),
      number(dead1),
      number(late),
      number(late1),
      h("td", { class: "act" }, h("div", { class: "buttons" }, h("a", { ...linkTo(["dead-letters", name]), "aria-label": `Dead letters of ${name} by reason` }, "By reason"), lateButton)),
    );
  }

  async read() {
    this.begun = true;
    const { stream } = this;
    this.groups.replaceChildren(h("p", { class: "muted" }, "Reading the topics of dead letters …"));
    let nodes;
    try {
      const { reasons, read, ended } = await api.reasons(stream);
      const settled = ended ? ` ${f.plural(ended, "dead letter")} ${ended === 1 ? "was" : "were"} replayed or discarded.` : "";
      nodes = reasons.length ? reasons.map((group) => this.group(group)) : [empty(`Nothing is left to do in the part of the topics that was read.${settled}`)];
      nodes.push(h("p", { class: "muted" }, ...marked(`The newest ${f.exact(read)} records of each partition were read; \`penstock dead-letters\` lists all.`)));
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      nodes = [h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`)];
    }
    if (stream === this.stream) this.groups.replaceChildren(...nodes);
  }

  group(group) {
    const { stream, topic, reason, count, newest_at: newest, oldest_at: oldest, examples, places } = group;
    const replay = h("button", { type: "button", "aria-label": `Replay ${f.plural(places.length, "dead letter")} of ${stream}: ${reason}`, hidden: !places.length, onclick: () => this.replay(group) }, "Replay …");
    const discard = h("button", { type: "button", "aria-label": `Discard ${f.plural(places.length, "dead letter")} of ${stream}: ${reason}`, hidden: !places.length, onclick: () => this.discard(group) }, "Discard …");
    for (const button of [replay, discard]) this.guard(button, this.viewer);
    const now = Date.now();
    return h(
      "article",
      { class: "letter" },
      h("h4", {}, reason || "no reason given"),
      h("p", { class: "muted" }, `${f.plural(count, "dead letter")} of `, h("a", linkTo(["streams", stream]), stream), ` in ${topic}, ${f.moment(oldest, now)} to ${f.moment(newest, now)}`),
      h("details", {}, h("summary", {}, f.plural(examples.length, "example")), h("ul", {}, ...examples.map(example))),
      h("div", { class: "buttons" }, replay, discard),
    );
  }

  replay({ stream, topic, reason, replayed_by: kind, name, places }) {
    ask({
      title: `Replay ${f.plural(places.length, "dead letter")} of ${stream}?`,
      message: `Their reason: ${reason}. ${kind === "sink" ? "Each goes through the statement to the store once more." : "Each is written to its topic once more, where all streams that read the topic read it."} What still cannot be processed becomes a dead letter again.`,
      label: "Replay",
      action: { verb: "replay", kind, name, places },
      dryRun: "asked",
      done: (answer) => {
        this.acted(`Replay of ${f.plural(places.length, "dead letter")} of ${stream}: ${replayCounts(answer) || "nothing is left of them"}.`);
        if (answer.left.length) showReplayed(stream, answer, kind === "sink" ? "Dead letters that remain; they can be replayed again." : `Dead letters that were not sent. \`penstock dead-letters replay ${topic}\` has the options that their reasons name.`);
        this.read();
      },
    });
  }

  discard({ stream, topic, reason, places }) {
    ask({
      title: `Discard ${f.plural(places.length, "dead letter")} of ${stream}?`,
      message: `Their reason: ${reason}. They are noted as needing nothing any more, and no replay takes them.`,
      label: "Discard",
      action: { verb: "discard", kind: "letters", name: topic, stream, places },
      dryRun: "at once",
      done: ({ counts }) => {
        this.acted(`${f.plural(counts.discarded ?? 0, "dead letter")} of ${stream} ${counts.discarded === 1 ? "is" : "are"} discarded.`);
        this.read();
      },
    });
  }
}
