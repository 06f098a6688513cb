// One dialog for all actions: describes the effect, takes a note, and stays open until the action has succeeded.
import { act } from "./api.js";
import { $, attr, h, marked, text } from "./dom.js";

const dialog = $("confirm");
const yes = $("confirm-yes");
const note = $("confirm-note");
const choice = $("confirm-choice");
const would = $("confirm-would");
const dry = $("confirm-dry");
let pending = null;

// choice: a field of the action: its name and label, the value that is chosen, its options as pairs of value and text, and
// more of them by a promise. dryRun: whether the server says first what the action would do: `at once`, or when it is
// `asked`, where that takes seconds. busy: what the button says meanwhile.
export const ask = ({ title, message, label, action, done, send = act, choice: field = null, dryRun = null, busy = "Sending …" }) => {
  pending = { action, done, label, send, field, busy, dryRun, asked: 0 };
  offer(pending);
  text($("confirm-title"), title);
  text($("confirm-text"), message);
  text($("confirm-error"), "");
  text(yes, label);
  yes.disabled = false;
  note.value = "";
  would.replaceChildren();
  attr(dry, "hidden", dryRun !== "asked");
  dry.disabled = false;
  dialog.showModal();
  note.focus();
  if (dryRun === "at once") tryDry();
};

const offer = async (mine) => {
  const { field } = mine;
  attr($("confirm-choices"), "hidden", !field);
  choice.replaceChildren();
  if (!field) return;
  text($("confirm-choice-label"), field.label);
  const show = (options) => choice.append(...options.map(([value, name]) => h("option", { value, selected: value === field.chosen }, name)));
  // What is chosen before the others are known.
  show(field.options.some(([value]) => value === field.chosen) ? field.options : [...field.options, [field.chosen, `of release ${field.chosen}`]]);
  try {
    const more = await field.more();
    if (pending !== mine) return;
    const { value } = choice;
    choice.replaceChildren();
    show([...field.options, ...more]);
    choice.value = value;
  } catch (error) {
    if (pending === mine) text($("confirm-error"), `${field.missing}: ${error.message}`);
  }
};

const request = ({ action, field }) => ({ ...action, ...(field ? { [field.name]: choice.value } : {}) });

const tryDry = async () => {
  const mine = pending;
  const asked = (mine.asked += 1);
  would.replaceChildren(h("p", { class: "muted" }, "Reading what it would do …"));
  dry.disabled = true;
  let nodes;
  try {
    const { would: lines } = await mine.send({ ...request(mine), dry: true });
    nodes = [h("ul", {}, ...lines.map((line) => h("li", {}, ...marked(line))))];
  } catch (error) {
    nodes = [h("p", { class: "failed" }, `No dry run: ${error.message}`)];
  }
  if (pending !== mine || mine.asked !== asked) return;
  would.replaceChildren(...nodes);
  dry.disabled = false;
};

const send = async () => {
  if (!pending || yes.disabled) return;
  const mine = pending;
  const { done, label } = mine;
  yes.disabled = true;
  text(yes, mine.busy);
  try {
    const answer = await mine.send({ ...request(mine), note: note.value.trim() });
    dialog.close();
    done(answer);
  } catch (error) {
    text($("confirm-error"), `Not done: ${error.message}`);
    text(yes, label);
    yes.disabled = false;
  }
};

yes.addEventListener("click", send);
dry.addEventListener("click", tryDry);
choice.addEventListener("change", () => pending?.dryRun === "at once" && tryDry());
$("confirm-no").addEventListener("click", () => dialog.close());
note.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.isComposing) send();
});
dialog.addEventListener("close", () => {
  pending = null;
});
