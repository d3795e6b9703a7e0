// The live list of runs, filtered by the address.
import { api, query } from "../core/api.js";
import { h, say, set } from "../core/dom.js";
import { NONE, ago, cost, count, date, duration, moment, shortId, short, time, when } from "../core/format.js";
import { icon } from "../core/icons.js";
import { keys } from "../core/keys.js";
import { liveState, on } from "../core/live.js";
import { go, remember } from "../core/router.js";
import { dialectName, statusDot, statusWord, toolBadges } from "../parts/badges.js";
import { head, menu, note } from "../parts/page.js";
import { rows } from "../parts/rows.js";
import { exportRuns } from "../parts/runs/export.js";
import { NAMES, filterBar, searches } from "../parts/runs/filters.js";
import { runTexts } from "../parts/runs/texts.js";
import { askDemo, welcome } from "../parts/runs/welcome.js";

const PAGE = 100;
const MOST = 20_000;
export async function show({ query: asked, session, signal }) {
  const filter = Object.fromEntries(NAMES.map((name) => [name, asked.get(name) ?? ""]));
  let runs = [];
  let more = true;
  let paused = false;
  let waiting = new Map();
  let loading = false;
  let grew = 0;
  let last = null;
  let scope = "";

  const take = (page) => {
    more = page.has_more;
    last = page.last_id;
    scope =
      page.searched === undefined
        ? ""
        : `Searched ${count(page.searched, "run")}${page.has_more ? `, back to ${when(page.searched_until)}` : ""}. `;
    return page.data;
  };
  runs = take(await load());

  const texts = runTexts({
    signal,
    changed: (ids) => list.put((runs = runs.map((run) => (ids.has(run.id) ? { ...run } : run)))),
  });
  signal.addEventListener("abort", texts.stop);
  const drawRow = (run) => rowOf(run, session.content === "none" ? {} : texts.of(run));
  const list = rows({
    label: "Runs",
    head: headRow(),
    draw: drawRow,
    height: () => (innerWidth <= 640 ? 108 : 56),
    more: older,
    open: (id) => go(`/ui/runs/${id}`),
  });
  signal.addEventListener("abort", list.destroy);
  const fresh = h("button.btn.main.small.new-rows", {
    type: "button",
    hidden: true,
    onclick: () => {
      list.scroll.scrollTop = 0;
      grew = 0;
      flush();
    },
  });
  list.element.append(fresh);
  const counted = h("span");
  const pause = h("button.btn", { type: "button", onclick: toggle });
  const foot = h("div.foot", counted, h("span.row", h("kbd", "j"), h("kbd", "k"), "move", h("kbd", "Enter"), "opens"));
  list.element.append(foot);
  const place = h("div.col.grow", { style: { "min-height": "0", gap: "1.1rem" } });
  const bar = filterBar(filter, change);

  function load(before) {
    const wanted = { ...filter, errors: filter.errors ? "true" : "", limit: PAGE, before };
    return api(`runs${query(wanted)}`, { signal });
  }

  async function older() {
    if (loading || !more || runs.length >= MOST) return;
    loading = true;
    try {
      const known = new Set(runs.map((run) => run.id));
      runs = runs.concat(take(await load(last)).filter((run) => !known.has(run.id)));
      draw();
    } catch {
      more = false;
    } finally {
      loading = false;
    }
  }

  function draw(added = 0) {
    if (!runs.length) {
      if (list.element.isConnected || !place.firstChild) set(place, nothing());
    } else if (!list.element.isConnected) set(place, list.element);
    list.put(runs, added);
    set(
      counted,
      `${scope}${count(runs.length, "run")}${more && !scope ? ", more below" : ""} `,
      more && scope && h("button.btn.small", { type: "button", onclick: older }, "Search older runs"),
    );
    set(
      pause,
      icon(paused ? "resume" : "pause"),
      paused ? `Resume${waiting.size ? ` (${waiting.size})` : ""}` : "Pause",
    );
    pause.setAttribute("aria-pressed", String(paused));
    fresh.hidden = !grew || list.scroll.scrollTop < 30;
    set(fresh, `${count(grew, "new run")}`);
  }

  function toggle() {
    paused = !paused;
    if (!paused) flush();
    else draw();
    say(paused ? "The list is paused." : "The list is live.");
  }

  function flush() {
    const arrived = [...waiting.values()];
    waiting = new Map();
    let added = 0;
    const at = new Map(runs.map((run, index) => [run.id, index]));
    const next = runs.slice();
    const begun = [];
    for (const run of arrived) {
      const index = at.get(run.id);
      if (index !== undefined) next[index] = run;
      else begun.push(run);
    }
    begun.sort((a, b) => b.started_at - a.started_at);
    added = begun.length;
    runs = [...begun, ...next].sort((a, b) => b.started_at - a.started_at).slice(0, MOST);
    if (added && list.scroll.scrollTop > 30) grew += added;
    draw(added);
    begun.forEach((run) => list.fresh(run.id));
  }

  let timer = 0;
  const arrive = (run) => {
    if (!run?.id || searches(filter) || !fits(run, filter)) {
      // A run that no longer matches the filter leaves the list at the next load.
      return;
    }
    waiting.set(run.id, run);
    if (paused) return draw();
    // Runs that arrive together are drawn together.
    if (!timer)
      timer = setTimeout(() => {
        timer = 0;
        if (!signal.aborted && !paused) flush();
      }, 120);
  };
  on("run", arrive, signal);
  on("reset", () => again(), signal);
  list.scroll.addEventListener(
    "scroll",
    () => {
      if (list.scroll.scrollTop < 30) {
        grew = 0;
        fresh.hidden = true;
      }
    },
    { passive: true },
  );
  keys({ j: () => list.move(1), k: () => list.move(-1), Enter: () => list.open(), ".": toggle }, signal);
  // Update the durations of running runs.
  const clock = setInterval(
    () =>
      runs.some((run) => run.status === "running") &&
      !paused &&
      list.put((runs = runs.map((run) => (run.status === "running" ? { ...run } : run)))),
    1000,
  );
  // Without events, load the list every few seconds.
  const poll = setInterval(async () => {
    if (paused || document.hidden || liveState() === "on") return;
    const page = await load().catch(() => null);
    if (page && !signal.aborted)
      page.data
        .filter((run) => JSON.stringify(run) !== JSON.stringify(runs.find((one) => one.id === run.id)))
        .forEach(arrive);
  }, 5000);
  signal.addEventListener("abort", () => {
    clearInterval(clock);
    clearInterval(poll);
    clearTimeout(timer);
  });

  async function again() {
    runs = take(await load());
    list.scroll.scrollTop = 0;
    draw();
    say(count(runs.length, "run"));
  }

  async function change(values) {
    Object.assign(filter, values);
    remember(query(filter));
    bar.draw();
    await again().catch((error) => error.name !== "AbortError" && set(place, note("bad", error.message)));
  }

  async function textsOf(data) {
    if (session.content === "none" || !data.length) return new Map();
    const wires = Object.fromEntries(data.slice(0, PAGE).map((run) => [run.id, run.wire]));
    const answer = await api("runs/texts", { method: "POST", body: { runs: wires }, signal });
    return new Map(answer.data.map((one) => [one.id, one]));
  }

  function nothing() {
    if (NAMES.some((name) => filter[name]))
      return h(
        "div.card",
        h(
          "div.empty",
          icon("search"),
          h("h2", "No run matches this filter"),
          h("p", scope || "New runs that match appear here automatically."),
          more && scope && h("button.btn.main", { type: "button", onclick: older }, "Search older runs"),
          h("button.btn", { type: "button", onclick: () => go("/ui/runs") }, "Show all runs"),
        ),
      );
    return welcome(session);
  }

  draw();
  return {
    title: "Runs",
    class: "full",
    node: [
      head(
        "Runs",
        "Each request with server tools on offer: its turns, its calls and their outcome.",
        session.demo && runs.length > 0 && askDemo(session),
        pause,
        menu("Export", "down", [
          ["As a table (CSV)", "down", () => exportRuns("csv", load, textsOf)],
          ["As JSON lines", "down", () => exportRuns("jsonl", load, textsOf)],
        ]),
      ),
      bar.element,
      place,
    ],
    shown: () => draw(),
  };
}

/** Whether a run that an event brings belongs in the filtered list; patterns work as on the server. */
function fits(run, filter) {
  const glob = (pattern, text) =>
    new RegExp(
      `^${pattern
        .split("*")
        .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
        .join(".*")}$`,
    ).test(text ?? "");
  if (filter.status && run.status !== filter.status) return false;
  if (filter.model && !glob(filter.model, run.model)) return false;
  if (filter.tool && !(run.calls ?? []).some((call) => glob(filter.tool, call.tool))) return false;
  if (filter.key && ![run.caller_name, run.caller, run.caller?.split("/")[0]].includes(filter.key)) return false;
  if (filter.id && !run.id.startsWith(filter.id)) return false;
  if (filter.until) return false;
  return !filter.errors || Boolean(run.error_code) || (run.calls ?? []).some((call) => call.status === "error");
}

const cell = (name, ...children) => h("div", { role: "cell", class: name }, children);

function headRow() {
  const names = [
    ["", "Date"],
    ["", "Question"],
    ["c-answer", "Answer"],
    ["c-model", "Model"],
    ["", "Tools"],
    ["c-tokens num", "Tokens"],
    ["c-cost num", "Cost"],
    ["c-time num", "Took"],
  ];
  return h(
    "div.run-grid",
    { role: "row" },
    names.map(([name, text]) =>
      h(
        "div",
        {
          role: "columnheader",
          class: name,
        },
        text,
      ),
    ),
  );
}

/** A row: what was asked and answered, if that was kept. */
function rowOf(run, text) {
  const took = run.status === "running" ? Date.now() / 1000 - run.started_at : run.duration_s;
  const tokens = run.total_tokens === null ? NONE : `${short(run.total_tokens)}${run.unreported ? "+" : ""}`;
  const model = run.model || run.agent || "Direct tool call";
  const title = text?.question ?? (text ? model : "…");
  const answer = text?.answer ?? (text && run.error_code) ?? " ";
  const label = `${title}, ${model}, ${statusWord(run.status)}, ${ago(run.started_at)}, run ${shortId(run.id)}`;
  const began = new Date(run.started_at * 1000).toISOString();
  return h(
    "div.run-grid",
    { role: "presentation" },
    cell(
      "status",
      statusDot(run.status),
      h(
        "div",
        h("time.nowrap", { datetime: began, title: moment(run.started_at) }, time(run.started_at)),
        h("div.small.muted.cut", `${date(run.started_at)} · ${statusWord(run.status)}`),
      ),
    ),
    cell(
      "lead",
      h("div.cut.isolate", h("a", { href: `/ui/runs/${run.id}`, title: run.id, "aria-label": label }, title)),
      h("div.small.muted.cut.isolate.under", answer),
    ),
    cell("c-answer", h("div.clamp.isolate.soft", answer)),
    cell(
      "c-model",
      h("div.cut", model),
      h(
        "div.small.muted.cut",
        [run.caller_name ?? run.caller, dialectName(run.wire), run.upstream].filter(Boolean).join(" · "),
      ),
    ),
    cell(
      "c-tools",
      run.error_code && !(run.calls ?? []).length
        ? h("span.badge.bad", icon("alert"), h("span", run.error_code))
        : toolBadges(run.calls, run.calls_more),
    ),
    cell("c-tokens num", tokens),
    cell("c-cost num soft", cost(run.cost)),
    cell("c-time num", duration(took)),
  );
}
