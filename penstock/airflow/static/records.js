// The newest records that a stream has written, and those of one key.
import * as api from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import * as f from "./format.js";

const card = ({ partition, offset, at, key, value, size }) =>
  h(
    "article",
    { class: "letter" },
    h("p", { class: "muted" }, `${f.utc(at, 23)} · partition ${partition}, offset ${f.exact(offset)} · ${f.bytes(size)}`),
    key == null ? h("p", { class: "muted" }, "no key") : h("p", {}, h("span", { class: "muted" }, "key "), h("code", {}, key)),
    value == null ? h("p", { class: "muted" }, "no value: a tombstone") : h("pre", { class: "error", tabindex: "0" }, value),
  );

const looked = ({ partition, partitions, begin, end, first }) => {
  if (partition == null) return "The newest 20 of the last records of each partition.";
  const all = begin <= first ? "which is all that the partition has" : `and not further back, where the partition has ${f.exact(begin - first)} more offsets`;
  return `Read: partition ${partition} of ${partitions}, in which this key is, offsets ${f.exact(begin)} to ${f.exact(end)}, ${all}.`;
};

export const showRecords = (stream, topics) => {
  const topic = h("select", { "aria-label": "Topic" }, ...topics.map((name) => h("option", {}, name)));
  const key = h("input", { type: "search", "aria-label": "Key", placeholder: "Exact key; empty: the newest records", maxlength: 1000, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const found = h("div", { "aria-live": "polite" });
  const read = async () => {
    found.replaceChildren(h("p", { class: "muted" }, "Reading …"));
    const asked = [topic.value, key.value];
    let nodes;
    try {
      const answer = await api.records(stream, ...asked);
      const none = asked[1] ? "No record with this key was found." : "It has no records.";
      nodes = [h("p", { class: "muted" }, looked(answer)), ...(answer.records.length ? answer.records.map(card) : [h("p", {}, none)])];
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      nodes = [h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`)];
    }
    if (asked.join("\n") === [topic.value, key.value].join("\n")) found.replaceChildren(...nodes);
  };
  const onsubmit = (event) => {
    event.preventDefault();
    read();
  };
  topic.addEventListener("change", read);
  openDialog({
    title: `Records of ${stream}`,
    about: "What its output topics have now, whoever wrote it. `penstock topics read` shows more.",
    make: async () => {
      read();
      return [h("form", { class: "search", role: "search", "aria-label": "Records", onsubmit }, topics.length > 1 ? topic : null, key, h("button", { type: "submit" }, "Find")), found];
    },
  });
};
