// Dead letters and late records of a stream, and the log of an app's driver.
import * as api from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { openDialog } from "./dialog.js";

const TEXTS = {
  dead: ["Dead letters", "Records that could not be processed, and rows that an output refused. `penstock dead-letters` lists, shows and replays all of them.", "The dead-letter topics have none."],
  late: ["Late records", "Records that arrived after their window was closed.", "There are none. They are kept only for inputs with late=\"keep\", and counted for all."],
};

const text = (value, empty) => (value == null ? h("p", { class: "muted" }, empty) : h("pre", { class: "error", tabindex: "0" }, value));

const card = (one) =>
  h(
    "article",
    { class: "letter" },
    h("h4", {}, one.reason || "no reason given"),
    h("p", { class: "muted" }, `from ${one.source} · written ${f.utc(one.at)} in ${one.topic}, partition ${one.partition}, offset ${one.offset} · ${f.bytes(one.size)}`),
    one.key == null ? null : h("p", {}, h("span", { class: "muted" }, "key "), h("code", {}, one.key)),
    text(one.value, "no value: a tombstone"),
    one.ended ? h("p", { class: "muted" }, `It was ${one.ended}.`) : null,
    one.replay && !one.ended ? h("p", {}, h("span", { class: "muted" }, "after a fix: "), h("code", {}, one.replay)) : null,
  );

export const showLetters = (stream, kind) => {
  const [title, about, none] = TEXTS[kind];
  openDialog({
    title: `${title} of ${stream}`,
    about: `${about} The newest 20 are shown.`,
    reread: true,
    make: async () => {
      const { letters } = await api.letters(stream, kind);
      return letters.length ? letters.map(card) : [h("p", { class: "muted" }, none)];
    },
  });
};

// counts: records by what became of them, left: those that can be replayed again, with the reason.
export const replayCounts = ({ counts }) => Object.entries(counts).map(([what, n]) => `${f.exact(n)} ${what}`).join(", ");

export const showReplayed = (name, answer, about, none) =>
  openDialog({
    title: `Replay of ${name}`,
    about: answer.left.length ? about : "",
    make: () => [
      h("p", {}, replayCounts(answer) || none),
      ...answer.left.map(({ place, said: reason }) => h("article", { class: "letter" }, h("h4", {}, reason), h("p", { class: "muted" }, place))),
    ],
  });

export const showLog = (app) =>
  openDialog({
    title: `Log of the driver of ${app}`,
    about: "The last 200 lines; `penstock streams logs` shows more.",
    reread: true,
    atEnd: true,
    make: async () => {
      const { name, lines, at } = await api.log(app);
      const last = `${name}, last written ${f.utc(at)}`;
      return [h("p", { class: "muted" }, last), h("pre", { class: "log" }, lines.join("\n") || "It is empty.")];
    },
  });
