// The frame of all views: navigation, banner, and the loop that reads and shows the data of the view before the user.
import * as api from "./api.js";
import { $, attr, h, text } from "./dom.js";
import * as f from "./format.js";
import { here, linkTo, scroll, start } from "./router.js";
import { ActivityView } from "./views/activity.js";
import { ArchivesView } from "./views/archives.js";
import { BackfillsView } from "./views/backfills.js";
import { CapturesView } from "./views/captures.js";
import { CatalogView } from "./views/catalog.js";
import { DeadLettersView } from "./views/dead-letters.js";
import { OverviewView } from "./views/overview.js";
import { ReplacementsView } from "./views/replacements.js";
import { SinksView } from "./views/sinks.js";
import { StreamView } from "./views/stream.js";
import { StreamsView } from "./views/streams.js";
import { ViewsView } from "./views/views.js";

const EVERY_MS = 3000;
const OLD_MS = 12000;

const VIEWS = {
  "": [OverviewView, "Overview"],
  streams: [StreamsView, "Streams"],
  captures: [CapturesView, "Captures"],
  sinks: [SinksView, "Sinks"],
  backfills: [BackfillsView, "Backfills"],
  replacements: [ReplacementsView, "Replacements"],
  archives: [ArchivesView, "Archives"],
  views: [ViewsView, "Views"],
  "dead-letters": [DeadLettersView, "Dead letters"],
  catalog: [CatalogView, "Catalog"],
  activity: [ActivityView, "Activity"],
};

let view = null; // the one before the user
let place = null; // its address
let data = null; // its newest answer
let fetchedAt = 0; // performance.now() of the last answer of any view
let failure = null;
let timer = null;
let latest = 0; // number of the newest request; answers of earlier ones are dropped

// Navigation

const entries = Object.entries(VIEWS).map(([name, [, title]]) => {
  const badge = h("span", { class: "badge", hidden: true });
  return { name, badge, link: h("a", linkTo(name ? [name] : []), title, badge) };
});
$("views").append(...entries.map(({ link }) => h("li", {}, link)));

const showNavigation = ({ attention }) => {
  for (const { name, badge } of entries) {
    const faults = attention[name] ?? 0;
    attr(badge, "hidden", !faults);
    badge.replaceChildren(...(faults ? [f.count(faults), h("span", { class: "unseen" }, faults === 1 ? " fault" : " faults")] : []));
  }
};

const navigate = () => {
  const first = place === null;
  scroll.begin();
  const { path, query } = here();
  const [name = "", ...of] = path;
  const known = Object.hasOwn(VIEWS, name) ? name : "";
  const [kind, title] = name === "streams" && of.length ? [StreamView, of[0]] : VIEWS[known];
  // A view that can turn to another of its subjects stays.
  const same = place?.kind === kind && (place.of.join("/") === of.join("/") || view.turn?.(of));
  place = { kind, of, query };
  if (!same) {
    view?.end?.();
    data = null;
    failure = null;
    view = new kind({ acted, guard, refresh }, of);
    const heading = h("h2", { id: "title", tabindex: "-1" }, title);
    $("view").replaceChildren(heading, view.node);
    document.title = `${title} · Penstock`;
    for (const entry of entries) attr(entry.link, "aria-current", entry.name === known ? (kind === StreamView ? "true" : "page") : null);
    attr($("main"), "aria-busy", true);
    if (!first) {
      window.scrollTo(0, 0);
      heading.focus({ preventScroll: true });
    }
  }
  if (known !== name && name !== "overview") acted(`There is no view ${name}: this is the overview.`);
  else refresh();
};

// Banner

const TITLES = {
  control: "The control database does not answer",
  server: "Airflow's API server does not answer",
  "signed-out": "You are signed out",
  forbidden: "You may not see this page",
  refused: "The page could not be updated",
};
const HELP = {
  server: "Streams continue. This page tries again every few seconds.",
  "signed-out": "Reload Airflow to sign in again.",
};

const ageOfData = () => performance.now() - fetchedAt;

const message = (stale) => {
  if (failure) return ["bad", TITLES[failure.kind] ?? TITLES.refused, HELP[failure.kind] ?? failure.message];
  if (stale) return ["bad", "This page's data is old", "It is being updated."];
  if (!data?.freshness.title) return ["", "", ""];
  const { old, down, title, message: body } = data.freshness;
  return [old === "all" || down.length ? "bad" : "warn", title, body];
};

const showBanner = () => {
  const stale = data !== null && ageOfData() > OLD_MS;
  const [level, title, body] = message(stale);
  const banner = $("banner");
  attr(banner, "data-level", level || null);
  // The live region is rewritten only when its subject changes, so that screen readers do not repeat a changing age.
  const key = `${level}|${title}|${level === "bad" && failure ? body : ""}`;
  if (banner.dataset.key !== key) {
    banner.dataset.key = key;
    banner.replaceChildren(...(title ? [h("b", {}, title), h("span", { class: "body" }, body)] : []));
  } else if (title) {
    attr(banner, "aria-busy", true);
    text(banner.querySelector(".body"), body);
    attr(banner, "aria-busy", null);
  }
  attr($("main"), "data-old", (failure !== null && data !== null) || stale);
  const status = failure || stale ? "bad" : data?.freshness.old === "all" ? "bad" : data ? "good" : "";
  attr($("status-dot"), "data-level", status);
  if (!data) text($("as-of"), failure ? "no data yet" : "loading");
  else {
    const behind = ageOfData();
    text($("as-of"), `as of ${f.clock(data.now)}` + (behind > EVERY_MS * 2 ? `, ${f.age(behind)} ago` : ""));
  }
};

const showViewer = ({ viewer }) => {
  const missing = ["operate", "release"].filter((permission) => !viewer[`may_${permission}`]);
  const limit = viewer.may_operate ? "no releases" : viewer.may_release ? "releases only" : "view only";
  text($("viewer"), missing.length ? `${viewer.name} · ${limit}` : viewer.name);
  const needed = missing.map((permission) => `to ${permission} needs the permission to trigger the DAG ${permission}_streams`);
  attr($("viewer"), "title", needed.join("; ").replace(/^./, (first) => first.toUpperCase()) || null);
};

// What views share

let toastTimer = null;
function acted(said) {
  text($("toast"), said);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => text($("toast"), ""), 6000);
  refresh();
}

// permission: operate or release.
function guard(button, viewer, permission = "operate") {
  const may = viewer[`may_${permission}`];
  attr(button, "disabled", !may);
  attr(button, "title", may ? null : `Needs the permission to trigger the DAG ${permission}_streams`);
}

// Meanings of the states, which do not change.
const texts = api.kept(api.texts);

// The loop

async function refresh() {
  const request = (latest += 1);
  const { query } = place;
  clearTimeout(timer);
  try {
    const [words, answer] = await Promise.all([texts(), view.load(query)]);
    if (request !== latest) return;
    data = { ...words, ...answer };
    fetchedAt = performance.now();
    failure = null;
    view.show(data, query);
    scroll.restore();
    showNavigation(data);
    showViewer(data);
  } catch (error) {
    if (request !== latest) return;
    if (!(error instanceof api.Failure)) throw error;
    failure = error;
  } finally {
    if (request === latest) {
      attr($("main"), "aria-busy", null);
      showBanner();
      if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
    }
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else refresh();
});
setInterval(() => {
  if (!document.hidden) showBanner();
}, 1000);
// A link to the heading would be an address.
$("skip").addEventListener("click", () => $("title").focus());
start(navigate);
navigate();
