// What can be done with a stream: start, stop, and go on without records that are lost.
import * as api from "./api.js";
import { ask } from "./confirm.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import * as f from "./format.js";

export const confirmStream = ({ name, app, desired }, acted) => {
  const stop = desired === "on";
  ask({
    title: `${stop ? "Stop" : "Start"} ${name}?`,
    message: stop
      ? `It finishes its batch and stops. Offsets and state are kept, and a later start continues from there. Other streams of ${app} continue.`
      : `It continues from its offsets and state.`,
    label: stop ? "Stop" : "Start",
    action: { verb: stop ? "stop" : "start", kind: "stream", name },
    dryRun: "at once",
    done: () => acted(`${stop ? "Stop" : "Start"} of ${name} is recorded.`),
  });
};

const unaccepted = ({ gaps }) => gaps.filter((gap) => !gap.accepted_by);
export const isBlockedByLoss = (stream) => stream.state === "blocked" && unaccepted(stream).length > 0;

// The dialog says what is given up before anything is done; the server refuses other gaps than these.
export const confirmGoOn = (stream, acted) => {
  const gaps = unaccepted(stream);
  const known = gaps.every((gap) => gap.records != null);
  const records = gaps.reduce((sum, gap) => sum + (gap.records ?? 0), 0);
  ask({
    title: `Let ${stream.name} go on without lost records?`,
    message: `It continues with the records that exist. Not read: ${known ? f.plural(records, "record") : `${f.plural(records, "record")} and an unknown number more`} (${gaps.map((gap) => gap.text).join("; ")}). This cannot be undone.`,
    label: "Go on",
    action: { verb: "go-on", kind: "stream", name: stream.name, gaps: gaps.map((gap) => gap.id) },
    done: () => acted(`${stream.name} goes on within half a minute.`),
  });
};

// The same from where only the name of the stream is known.
export const askToGoOn = async (name, acted) => {
  try {
    const { stream } = await api.stream(name);
    if (isBlockedByLoss(stream)) confirmGoOn(stream, acted);
    else openDialog({ title: `${name} is not blocked by lost records`, make: () => [h("p", {}, stream.error ?? stream.why ?? "It works.")] });
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    openDialog({ title: `${name} could not be read`, make: () => [h("p", { role: "alert" }, error.message)] });
  }
};
