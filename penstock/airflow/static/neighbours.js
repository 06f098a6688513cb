// What something reads from or is read by, as a link to where it is shown.
import { h } from "./dom.js";
import { linkTo } from "./router.js";

const LISTS = { backfill: "backfills", archive: "archives", view: "views" };

// What is only declared has no view of its own.
export const neighbour = ({ kind, name, through, shown }) => [
  h("a", linkTo(shown ? ["streams", name] : LISTS[kind] ? [LISTS[kind]] : ["catalog", name]), name),
  h("span", { class: "muted" }, ` ${kind}${through && through !== name ? ` through ${through}` : ""}`),
];
