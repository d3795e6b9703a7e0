// The live list of runs, filtered by the address.
import { api, query } from "../core/api.js";
import { h, say, set, toast } from "../core/dom.js";
import { NONE, ago, cost, count, duration, moment, shortId, short, when } from "../core/format.js";
import { icon } from "../core/icons.js";
import { keys } from "../core/keys.js";
import { liveState, on } from "../core/live.js";
import { go, reload, remember } from "../core/router.js";
import { dialectName, statusDot, statusWord, toolBadges } from "../parts/badges.js";
import { code, head, note } from "../parts/page.js";
import { rows } from "../parts/rows.js";

const PAGE = 100;
const MOST = 20_000;
const NAMES = ["status", "model", "tool", "key", "since", "until", "errors", "id"];
const STATES = [["", "All"], ["running", "Running"], ["completed", "Completed"], ["failed", "Failed"], ["suspended", "Waiting"]];
const AGES = [["", "Any time"], ["15m", "Last 15 min"], ["1h", "Last hour"], ["24h", "Last day"], ["7d", "Last 7 days"]];

export async function show({ query: asked, session, signal }) {
  const filter = Object.fromEntries(NAMES.map((name) => [name, asked.get(name) ?? ""]));
  let runs = [];
  let more = true;
  let paused = false;
  let waiting = new Map();
  let loading = false;
  let grew = 0;

  const first = await load();
  runs = first.data;
  more = first.has_more;

  const list = rows({ label: "Runs", head: headRow(), draw: drawRow, height: () => (innerWidth <= 640 ? 92 : 56), more: older, open: (id) => go(`/ui/runs/${id}`) });
  signal.addEventListener("abort", list.destroy);
  const fresh = h("button.btn.main.small.new-rows", { type: "button", hidden: true, onclick: () => { list.scroll.scrollTop = 0; grew = 0; flush(); } });
  list.element.append(fresh);
  const counted = h("span");
  const pause = h("button.btn", { type: "button", onclick: toggle });
  const foot = h("div.foot", counted, h("span.row", h("kbd", "j"), h("kbd", "k"), "move", h("kbd", "Enter"), "opens"));
  list.element.append(foot);
  const place = h("div.col.grow", { style: { "min-height": "0", gap: "1.1rem" } });
  const search = textFilter();
  const bar = h("form.filters", { role: "search", "aria-label": "Filter the runs", onsubmit: (event) => event.preventDefault() }, search, segments(), choice("since", "Time", AGES), chips());

  function load(before) {
    const wanted = { ...filter, errors: filter.errors ? "true" : "", limit: PAGE, before };
    return api(`runs${query(wanted)}`, { signal });
  }

  async function older() {
    if (loading || !more || runs.length >= MOST) return;
    loading = true;
    try {
      const page = await load(runs.at(-1).id);
      const known = new Set(runs.map((run) => run.id));
      runs = runs.concat(page.data.filter((run) => !known.has(run.id)));
      more = page.has_more;
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
    set(counted, `${count(runs.length, "run")}${more ? ", more below" : ""}`);
    set(pause, icon(paused ? "resume" : "pause"), paused ? `Resume${waiting.size ? ` (${waiting.size})` : ""}` : "Pause");
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
    if (!run?.id || !fits(run, filter)) {
      // A run that no longer matches the filter leaves the list at the next load.
      return;
    }
    waiting.set(run.id, run);
    if (paused) return draw();
    // Runs that arrive together are drawn together.
    if (!timer) timer = setTimeout(() => { timer = 0; if (!signal.aborted && !paused) flush(); }, 120);
  };
  on("run", arrive, signal);
  on("reset", () => again(), signal);
  list.scroll.addEventListener("scroll", () => { if (list.scroll.scrollTop < 30) { grew = 0; fresh.hidden = true; } }, { passive: true });
  keys({ j: () => list.move(1), k: () => list.move(-1), Enter: () => list.open(), ".": toggle }, signal);
  // Update the durations of running runs.
  const clock = setInterval(() => runs.some((run) => run.status === "running") && !paused && list.put((runs = runs.map((run) => (run.status === "running" ? { ...run } : run)))), 1000);
  // Without events, load the list every few seconds.
  const poll = setInterval(async () => {
    if (paused || document.hidden || liveState() === "on") return;
    const page = await load().catch(() => null);
    if (page && !signal.aborted) page.data.filter((run) => JSON.stringify(run) !== JSON.stringify(runs.find((one) => one.id === run.id))).forEach(arrive);
  }, 5000);
  signal.addEventListener("abort", () => { clearInterval(clock); clearInterval(poll); clearTimeout(timer); });

  async function again() {
    const page = await load();
    runs = page.data;
    more = page.has_more;
    list.scroll.scrollTop = 0;
    draw();
    say(count(runs.length, "run"));
  }

  async function change(name, value) {
    filter[name] = value;
    remember(query(filter));
    set(bar, search, segments(), choice("since", "Time", AGES), chips());
    await again().catch((error) => error.name !== "AbortError" && set(place, note("bad", error.message)));
  }

  function segments() {
    return h("div.seg", { role: "group", "aria-label": "Status" }, STATES.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(filter.status === value && !filter.errors), onclick: () => { filter.errors = ""; change("status", value); } }, text)),
    h("button", { type: "button", "aria-pressed": String(Boolean(filter.errors)), onclick: () => { filter.status = ""; change("errors", filter.errors ? "" : "true"); } }, "With errors"));
  }

  function choice(name, label, options) {
    const known = options.some(([value]) => value === filter[name]);
    const all = known ? options : [...options, [filter[name], filter[name]]];
    return h("select.input", { "aria-label": label, onchange: (event) => change(name, event.target.value) }, all.map(([value, text]) => h("option", { value, selected: value === filter[name] }, text)));
  }

  function chips() {
    return ["model", "tool", "key", "id", "until"].filter((name) => filter[name]).map((name) =>
      h("button.badge.accent", { type: "button", style: { border: 0 }, "aria-label": `Remove the filter ${name} ${filter[name]}`, onclick: () => change(name, "") }, h("span", `${name}: ${filter[name]}`), icon("cross")));
  }

  function textFilter() {
    const field = h("input.input", { type: "search", "aria-label": "Filter: model:fast tool:mcp__* key:webui, or the beginning of a run’s id", placeholder: "model:fast tool:mcp__* key:webui", autocomplete: "off", spellcheck: "false", onkeydown: (event) => {
      if (event.key !== "Enter") return;
      const words = field.value.trim().split(/\s+/).filter(Boolean);
      field.value = "";
      for (const word of words) {
        const [, name, value] = /^(model|tool|key|status|since|until|id):(.+)$/.exec(word) ?? [null, "id", word];
        filter[name] = name === "id" && !value.startsWith("run_") ? `run_${value}` : value;
      }
      if (words.length) change("status", filter.status);
    } });
    return h("div.search", icon("search"), field, h("kbd", { "aria-hidden": "true" }, "/"));
  }

  function nothing() {
    if (NAMES.some((name) => filter[name]))
      return h("div.card", h("div.empty", icon("search"), h("h2", "No run matches this filter"), h("p", "New runs that match appear here automatically."), h("button.btn", { type: "button", onclick: () => go("/ui/runs") }, "Show all runs")));
    return welcome(session);
  }

  draw();
  return {
    title: "Runs",
    class: "full",
    node: [head("Runs", "Each request with server tools on offer: its turns, its calls and their outcome.", session.demo && runs.length > 0 && askDemo(session), pause), bar, place],
    shown: () => draw(),
  };
}

/** Whether a run that an event brings belongs in the filtered list; patterns work as on the server. */
function fits(run, filter) {
  const glob = (pattern, text) => new RegExp(`^${pattern.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`).test(text ?? "");
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
  const names = [["", "Time"], ["", "Model"], ["", "Tools"], ["c-turns num", "Turns"], ["c-tokens num", "Tokens"], ["c-cost num", "Cost"], ["c-time num", "Took"]];
  return h("div.run-grid", { role: "row" }, names.map(([name, text]) => h("div", { role: "columnheader", class: name }, text)));
}

function drawRow(run) {
  const took = run.status === "running" ? Date.now() / 1000 - run.started_at : run.duration_s;
  const tokens = run.total_tokens === null ? NONE : `${short(run.total_tokens)}${run.unreported ? "+" : ""}`;
  return h(
    "div.run-grid",
    { role: "presentation" },
    cell("status", statusDot(run.status), h("div", h("time.nowrap", { datetime: new Date(run.started_at * 1000).toISOString(), title: moment(run.started_at) }, when(run.started_at)), h("div.small.muted.cut", statusWord(run.status)))),
    cell("lead", h("div.cut", h("a", { href: `/ui/runs/${run.id}`, title: run.id, "aria-label": `${run.model || "Direct call"}, ${statusWord(run.status)}, ${ago(run.started_at)}, run ${shortId(run.id)}` }, run.model || "Direct tool call")), h("div.small.muted.cut", [run.caller_name ?? run.caller, dialectName(run.wire), run.upstream].filter(Boolean).join(" · "))),
    cell("c-tools", run.error_code && !(run.calls ?? []).length ? h("span.badge.bad", icon("alert"), h("span", run.error_code)) : toolBadges(run.calls, run.calls_more)),
    cell("c-turns num soft", run.turns),
    cell("c-tokens num", tokens),
    cell("c-cost num soft", cost(run.cost)),
    cell("c-time num", duration(took)),
  );
}

/** Ask the demo's question as the playground does; its run appears in the list. */
async function ask(session, button) {
  button.disabled = true;
  try {
    const { streamPlay } = await import("../client/dialects.js");
    await streamPlay("chat", { model: session.demo.model, messages: [{ role: "user", content: session.demo.question }] }, {}, () => {});
    if (liveState() !== "on") await reload();
  } catch (error) {
    toast(error.message);
  } finally {
    button.disabled = false;
  }
}

function askDemo(session, main = false) {
  const button = h("button.btn", { type: "button", class: main ? "main" : "", onclick: () => ask(session, button) }, icon("spark"), "Ask the demo question");
  return button;
}

function welcome(session) {
  const base = `${location.origin}/v1`;
  const model = session.demo?.model ?? "gpt-4o-mini";
  const question = session.demo?.question ?? "What time is it in Lisbon?";
  const text = `curl -N ${base}/chat/completions \\\n  -H 'content-type: application/json' \\\n  ${session.demo ? "" : '-H "authorization: Bearer $TOOLRELAY_API_KEY" \\\n  '}-d '${JSON.stringify({ model, stream: true, messages: [{ role: "user", content: question }] })}'`;
  return h(
    "div.card.hello",
    h("div.col", { style: { gap: "1rem" } }, h("h2", session.demo ? "The first tool call is one click away" : "No run yet"),
      h("p", session.demo ? ["Ask: “", h("span.isolate", session.demo.question), "” The model calls two tools, toolrelay runs them, and the client sees one stream."] : ["Point any OpenAI client at ", h("code", base), ". Each request in which tools are offered appears here as it happens."]),
      h("div.row.wrap", session.demo ? askDemo(session, true) : h("a.btn.main", { href: "/ui/play" }, icon("play"), "Open the playground"), session.demo && h("a.btn", { href: "/ui/play" }, icon("play"), "Open the playground"))),
    code(text, "curl command"),
  );
}
