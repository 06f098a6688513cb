// One dialog for all actions: describes the effect, takes a note, and stays open until the action has succeeded.
import { act } from "./api.js";
import { $, attr, h, text } from "./dom.js";

const dialog = $("confirm");
const yes = $("confirm-yes");
const note = $("confirm-note");
const choice = $("confirm-choice");
let pending = null;

// choice: a field of the action: its name and label, its options as pairs of value and text, and more of them by a promise.
// busy: what the button says meanwhile.
export const ask = ({ title, message, label, action, done, send = act, choice: field = null, busy = "Sending …" }) => {
  pending = { action, done, label, send, field, busy };
  offer(field);
  text($("confirm-title"), title);
  text($("confirm-text"), message);
  text($("confirm-error"), "");
  text(yes, label);
  yes.disabled = false;
  note.value = "";
  dialog.showModal();
  note.focus();
};

const offer = async (field) => {
  attr($("confirm-choices"), "hidden", !field);
  choice.replaceChildren();
  if (!field) return;
  text($("confirm-choice-label"), field.label);
  const show = (options) => choice.append(...options.map(([value, name]) => h("option", { value }, name)));
  show(field.options);
  try {
    const more = await field.more();
    if (pending?.field === field) show(more);
  } catch (error) {
    if (pending?.field === field) text($("confirm-error"), `${field.missing}: ${error.message}`);
  }
};

const send = async () => {
  if (!pending || yes.disabled) return;
  const { action, done, label, field } = pending;
  yes.disabled = true;
  text(yes, pending.busy);
  try {
    const chosen = field ? { [field.name]: choice.value } : {};
    const answer = await pending.send({ ...action, ...chosen, note: note.value.trim() });
    dialog.close();
    done(answer);
  } catch (error) {
    text($("confirm-error"), `Not done: ${error.message}`);
    text(yes, label);
    yes.disabled = false;
  }
};

yes.addEventListener("click", send);
$("confirm-no").addEventListener("click", () => dialog.close());
note.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.isComposing) send();
});
dialog.addEventListener("close", () => {
  pending = null;
});
