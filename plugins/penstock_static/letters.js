// What a stream put aside, and the log of an app's driver: read when somebody asks for it.
import * as api from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { look } from "./look.js";

const WORDS = {
  dead: ["Dead letters", "Records that do not parse, or that no output takes. `penstock dead-letters` lists, shows and replays all of them.", "There are none in the topics of dead letters."],
  late: ["Late records", "Records that came after their window was closed.", "None are kept: an input that says late=\"keep\" keeps them, others only count them."],
};

const text = (said, empty) => (said == null ? h("p", { class: "muted" }, empty) : h("pre", { class: "error", tabindex: "0" }, said));

const card = (one) =>
  h(
    "article",
    { class: "letter" },
    h("h4", {}, one.reason || "no reason is said"),
    h("p", { class: "muted" }, `from ${one.source} · kept ${new Date(one.at).toISOString().slice(0, 19).replace("T", " ")} UTC in ${one.topic}, partition ${one.partition}, offset ${one.offset} · ${f.bytes(one.size)}`),
    one.key == null ? null : h("p", {}, h("span", { class: "muted" }, "key "), h("code", {}, one.key)),
    text(one.value, "no value: a tombstone"),
    one.replay ? h("p", {}, h("span", { class: "muted" }, "behind a fix "), h("code", {}, one.replay)) : null,
  );

export const showLetters = (stream, kind) => {
  const [title, about, none] = WORDS[kind];
  look({
    title: `${title} of ${stream}`,
    about: `${about} The newest 20 are shown.`,
    reread: true,
    make: async () => {
      const { letters } = await api.letters(stream, kind);
      return letters.length ? letters.map(card) : [h("p", { class: "muted" }, none)];
    },
  });
};

export const showLog = (app) =>
  look({
    title: `Log of the driver of ${app}`,
    about: "The last 200 lines; `penstock streams logs` follows it.",
    reread: true,
    atEnd: true,
    make: async () => {
      const { name, lines, at } = await api.log(app);
      const last = `${name}, last written ${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;
      return [h("p", { class: "muted" }, last), h("pre", { class: "log" }, lines.join("\n") || "It is empty.")];
    },
  });
