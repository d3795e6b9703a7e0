// What one can do with a run: copy, save, replay and compare it.
import { api } from "../../core/api.js";
import { h, set, toast } from "../../core/dom.js";
import { count, when } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { statusBadge } from "../badges.js";
import { dialog } from "../dialog.js";
import { copy, menu, note } from "../page.js";

/** The buttons of a run's head; `path` is its path below the API.  Who only sees `own` runs can copy and save them. */
export function actions(run, path, { hasWire, own }) {
  const kept = [
    ["Copy as curl", "copy", () => copyAs(path, "curl")],
    ["Copy as Python", "copy", () => copyAs(path, "python")],
    ["Save as JSON", "down", () => download(path)],
    ["Copy the run’s address", "copy", () => copy(location.href, "Address")],
  ];
  if (own) return [menu("More", "more", kept)];
  return [
    hasWire && h("a.btn", { href: `/ui/${path}/wire` }, icon("wire"), "Wire"),
    h("button.btn", { type: "button", onclick: () => replay(path) }, icon("replay"), "Replay"),
    menu("More", "more", [
      ...kept.slice(0, 2),
      ["Compare with…", "compare", () => compareWith(run)],
      ["Save as fixture", "down", () => saveFixture(path)],
      ...kept.slice(2),
    ]),
  ];
}

async function copyAs(path, as) {
  try {
    const made = await api(`${path}/copy?as=${as}`);
    await copy(made.text, as === "curl" ? "curl command" : "Python program");
    if (made.note) toast(made.note);
  } catch (error) {
    toast(error.message);
  }
}

async function saveFixture(path) {
  try {
    const response = await fetch(`/ui/api/${path}/fixture`, { credentials: "same-origin" });
    if (!response.ok) {
      const answer = await response.json().catch(() => null);
      throw new Error(answer?.error?.message ?? `The server answered ${response.status}.`);
    }
    save(await response.blob(), `${path.split("/").at(-1)}.zip`);
  } catch (error) {
    toast(error.message);
  }
}

async function download(path) {
  try {
    const text = JSON.stringify(await api(`${path}/export`), null, 2);
    save(new Blob([text], { type: "application/json" }), `${path.split("/").at(-1)}.json`);
  } catch (error) {
    toast(error.message);
  }
}

/** Let the browser save a file. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function replay(path) {
  const waiting = "Replaying with the current configuration. No upstream is called and no tool runs.";
  const body = h("div.col", h("div.row.muted", h("i.spin"), waiting));
  dialog("Replay offline", body);
  try {
    const { same, differences = [], notes = [] } = await api(`${path}/replay`, { method: "POST", body: {} });
    const result = same
      ? h("span.badge.ok", icon("check"), "The same as recorded")
      : h("span.badge.warn", icon("alert"), `${count(differences.length, "difference")}`);
    const listed = h(
      "details",
      { open: true },
      h("summary", "Notes"),
      h(
        "ul",
        notes.map((one) => h("li.stranger", one)),
      ),
    );
    set(body, h("p", result), differences.map(difference), notes.length > 0 && listed);
  } catch (error) {
    set(body, note("warn", error.message));
  }
}

function difference(one) {
  const side = (title, value) => h("div.col", h("span.muted.small", title), h("pre.code", text(value)));
  return h("div.col", h("h3", one.where), h("div.diff", side("Recorded", one.was), side("Replayed", one.is)));
}

const text = (value) => {
  if (typeof value === "string") return value;
  return Array.isArray(value) ? value.join("\n") || "none" : JSON.stringify(value, null, 2);
};

async function compareWith(run) {
  const body = h("div.col", h("div.skeleton"));
  const close = dialog("Compare with another run", body);
  const same = (one) => one.prompt_hash === run.prompt_hash;
  const item = (one) =>
    h(
      "li",
      h(
        "a.row.pick",
        { href: `/ui/compare?a=${run.id}&b=${one.id}`, onclick: () => close() },
        statusBadge(one.status),
        h("span.grow.cut", one.model),
        same(one) && h("span.badge.accent", "same prompt"),
        h("span.muted.nowrap", when(one.started_at)),
      ),
    );
  try {
    const page = await api("runs?limit=100");
    const others = page.data
      .filter((one) => one.id !== run.id)
      .sort((a, b) => same(b) - same(a))
      .slice(0, 30);
    if (!others.length) return set(body, h("p.muted", "There is no other run yet."));
    const hint = "Runs of the same prompt come first: their requests have the same model, instructions and tools.";
    set(body, h("p.muted", hint), h("ul", others.map(item)));
  } catch (error) {
    set(body, note("bad", error.message));
  }
}
