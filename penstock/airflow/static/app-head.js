// The head of an app: its driver, its release, and actions on all of its streams.
import * as api from "./api.js";
import { ask } from "./confirm.js";
import { closeDialog } from "./dialog.js";
import { attr, h, text } from "./dom.js";
import * as f from "./format.js";
import { showLog } from "./letters.js";
import { releaseOptions, releaseText, showReleases } from "./releases.js";
import { StateButton } from "./state.js";

const short = (hash) => hash.slice(0, 8);

export class AppHead {
  // table: the view that it heads, columns: of its table.
  constructor(table, name, columns) {
    this.table = table;
    this.name = name;
    this.state = new StateButton(name);
    this.facts = h("span", { class: "driver" });
    this.why = h("span", { class: "why" });
    this.start = h("button", { type: "button", "aria-label": `Start all of ${name}`, onclick: () => this.confirm("start") }, "Start all");
    this.stop = h("button", { type: "button", "aria-label": `Stop all of ${name}`, onclick: () => this.confirm("stop") }, "Stop all");
    this.release = h("button", { type: "button", "aria-label": `Release ${name}`, onclick: () => this.confirmRelease() }, "Release");
    this.log = h("button", { type: "button", "aria-label": `Log of ${name}`, "aria-haspopup": "dialog", onclick: () => showLog(name) }, "Log");
    this.releases = h("button", { type: "button", "aria-label": `Releases of ${name}`, "aria-haspopup": "dialog", onclick: () => this.showReleases() }, "Releases");
    this.node = h(
      "tr",
      { class: "app" },
      h(
        "th",
        { scope: "rowgroup", colspan: columns },
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
    this.viewer = viewer;
    this.state.show(app.state, app.why, { states, remedies });
    text(this.why, app.why);
    const d = app.driver;
    const facts = [releaseText(app), f.plural(app.restarts, "restart")];
    if (d && d.state !== "ended") facts.push(`up ${f.age(d.up_ms)}`, `reported ${f.age(d.alive_age_ms)} ago`, `${d.submission ?? `pid ${d.pid ?? f.DASH}`} on ${d.host}`);
    // Changed files restart nothing, so they are no error.
    const differs = this.table.changed[this.name] > 0;
    if (d) facts.push(`code ${short(d.spec_hash)}${differs ? `, the disk differs (${short(disk)})` : ""}`);
    text(this.facts, facts.join(" · "));
    attr(this.facts, "title", d ? `driver ${d.incarnation}\nlog ${d.log}\nowner ${d.owner}\nits code ${d.spec_hash}\ncode on disk ${disk}, which a release starts` : null);
    attr(this.start, "hidden", app.streams_on === app.streams_total);
    attr(this.stop, "hidden", app.streams_on === 0);
    attr(this.log, "hidden", !d);
    for (const button of [this.start, this.stop, this.releases, this.log]) this.table.guard(button, viewer);
    this.table.guard(this.release, viewer, "release");
  }

  showReleases() {
    const back = (number) => {
      closeDialog();
      this.confirmRelease(String(number));
    };
    showReleases(this.name, this.viewer.may_release ? back : null);
  }

  // to: the number of the release whose code is chosen; empty for the code on the disk.
  confirmRelease(to = "") {
    const { name } = this;
    ask({
      title: `Release ${name}?`,
      message: "The driver finishes its batches and ends; the next one runs the code that you choose. Offsets and state are kept.",
      label: "Release",
      action: { app: name },
      send: api.release,
      busy: "Checking the code, which may take minutes …",
      dryRun: "at once",
      choice: {
        name: "to",
        label: "Code",
        options: [["", "on the disk now"]],
        chosen: to,
        more: async () => releaseOptions((await api.releases(name)).releases),
        missing: "Earlier releases are not listed",
      },
      done: () => this.table.acted(`Release of ${name} is recorded.`),
    });
  }

  confirm(verb) {
    const { name } = this;
    const texts = {
      start: [`Start all streams of ${name}?`, "Each continues from its offsets and state.", "Start all"],
      stop: [`Stop all streams of ${name}?`, "The driver finishes its batches and ends. Offsets and state are kept.", "Stop all"],
    }[verb];
    ask({
      title: texts[0],
      message: texts[1],
      label: texts[2],
      action: { verb, kind: "app", name },
      dryRun: "at once",
      done: () => this.table.acted(`${texts[2]} of ${name} is recorded.`),
    });
  }
}
