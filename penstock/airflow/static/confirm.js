// One dialog for all actions: describes the effect, takes a note, and stays open until the action has succeeded.
import { act } from "./api.js";
import { $, text } from "./dom.js";

const dialog = $("confirm");
const yes = $("confirm-yes");
const note = $("confirm-note");
let pending = null;

export const ask = ({ title, message, label, action, done }) => {
  pending = { action, done, label };
  text($("confirm-title"), title);
  text($("confirm-text"), message);
  text($("confirm-error"), "");
  text(yes, label);
  yes.disabled = false;
  note.value = "";
  dialog.showModal();
  note.focus();
};

const send = async () => {
  if (!pending || yes.disabled) return;
  const { action, done, label } = pending;
  yes.disabled = true;
  text(yes, "Sending …");
  try {
    const answer = await act({ ...action, note: note.value.trim() });
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
