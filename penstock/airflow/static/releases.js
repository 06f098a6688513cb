// The releases of an app, and what differs between two of them or the disk.
import * as api from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { openDialog } from "./dialog.js";

// What an app runs, and what it is to run while the driver of an earlier release drains.
export const releaseText = ({ release_seq: last, running_release: running }) =>
  running == null || running === last ? `release ${f.exact(last)}` : `release ${f.exact(running)} drains, release ${f.exact(last)} is next`;

// What a release is at this moment.
const marksOf = (release, releases) => {
  const next = releases.find((one) => one.next);
  const code = release.digest && !release.running && releases.some((one) => one.running && one.digest === release.digest);
  return [
    release.running ? (next ? `runs, drains for release ${next.number}` : "runs") : null,
    release.next ? (releases.some((one) => one.running) ? "is next" : "is launched next") : null,
    code ? "has the code that runs" : null,
    release.on_disk ? "as on disk" : null,
  ].filter(Boolean);
};

// Options of a field for the code of a release: pairs of value and text.
export const releaseOptions = (releases) =>
  releases
    .filter(({ digest }) => digest)
    .map((release) => [String(release.number), [`of release ${release.number}, ${f.utc(release.at)}`, ...marksOf(release, releases), release.note].filter(Boolean).join(", ")]);

const lineKind = (line) => ({ "+": "added", "-": "removed", "@": "place" })[line[0]];

const changedFile = ({ path, change, diff, note }) =>
  h(
    "article",
    { class: "letter" },
    h("h4", {}, `${path} `, h("span", { class: "muted" }, change)),
    diff.length ? h("pre", { class: "diff", tabindex: "0" }, ...diff.map((line) => h("span", { "data-line": lineKind(line) }, `${line}\n`))) : null,
    note ? h("p", { class: "muted" }, note) : null,
  );

const showChanges = async (place, app, before, after) => {
  place.replaceChildren(h("p", { class: "muted" }, "Reading …"));
  try {
    const { files, more, count } = await api.changes(app, before, after);
    const others = count > files.length ? h("p", { class: "muted" }, `${count - files.length} more files: ${more.join(", ")}`) : null;
    place.replaceChildren(...[...files.map(changedFile), others].filter(Boolean));
    if (!count) place.replaceChildren(h("p", { class: "muted" }, "No file differs."));
  } catch (error) {
    place.replaceChildren(h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`));
  }
};

// What is read when it is opened.
const changesFrom = (app, label, before, after) => {
  const place = h("div", {});
  const details = h("details", {}, h("summary", {}, label), place);
  details.addEventListener("toggle", () => details.open && showChanges(place, app, before, after), { once: true });
  return details;
};

// onReturn: called with the number of the release whose code is to run again; null if the viewer may not.
const card = (app, release, releases, onReturn) => {
  const marks = marksOf(release, releases);
  const known = releases.filter(({ digest }) => digest);
  const previous = release.digest ? known[known.indexOf(release) + 1] : null;
  const back = release.digest && !release.running && !release.next;
  return h(
    "article",
    { class: "letter", "data-release": release.number },
    h("h4", {}, `Release ${release.number}`, marks.length ? h("span", { class: "muted" }, ` ${marks.join(", ")}`) : null),
    h("p", { class: "muted" }, `${f.utc(release.at)} by ${release.actor} · code ${release.digest?.slice(0, 12) ?? f.DASH}${release.note ? ` · ${release.note}` : ""}`),
    previous && previous.digest !== release.digest ? changesFrom(app, `Changes since release ${previous.number}`, previous.number, release.number) : null,
    back && onReturn ? h("button", { type: "button", "aria-label": `Return ${app} to release ${release.number}`, onclick: () => onReturn(release.number) }, "Return to this …") : null,
  );
};

export const showReleases = (app, onReturn) =>
  openDialog({
    title: `Releases of ${app}`,
    about: `A crash restarts the code of the release. \`penstock streams release ${app} --to NUMBER\` returns to an earlier one too.`,
    reread: true,
    make: async () => {
      const [{ releases }, changed] = await Promise.all([api.releases(app), api.changed()]);
      if (!releases.length) return [h("p", { class: "muted" }, "There is none yet: the first launch takes the code on the disk.")];
      const known = releases.filter((release) => release.digest);
      const last = known.find((release) => release.running) ?? known[0];
      const cards = releases.map((release) => card(app, release, releases, onReturn));
      if (!last) return cards;
      const differs = !last.on_disk;
      const about = !differs
        ? `Release ${last.number} has the code on the disk.`
        : changed[app]
          ? `The code on the disk differs from release ${last.number} and does not run.`
          : `Files on the disk differ from release ${last.number}, but none of ${app}.`;
      const disk = [h("p", {}, about), differs ? changesFrom(app, `Changes on the disk since release ${last.number}`, last.number, "disk") : null];
      return [...disk, ...cards].filter(Boolean);
    },
  });
