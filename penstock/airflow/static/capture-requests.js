// Requests to a capture.
import { ask } from "./confirm.js";

export const REQUESTS = {
  poll: ["Poll", "It polls now."],
  reconcile: ["Reconcile", "It compares table and topic and repairs differences. This reads the whole table."],
  snapshot: ["Snapshot", "It reads the whole table again and writes each row to its topic."],
  continue: ["Continue", "It accepts what it waits for, such as the removal of many rows."],
};

export const askCapture = (verb, name, acted) => {
  const [label, message] = REQUESTS[verb];
  ask({
    title: `${label} ${name}?`,
    message,
    label,
    action: { verb, kind: "capture", name },
    dryRun: "at once",
    done: () => acted(`${label} of ${name} is requested.`),
  });
};
