// One run: what was asked, what the tools did, and what was answered; beside it, what happened when.
import { api } from "../core/api.js";
import { h, set } from "../core/dom.js";
import { NONE, cost, duration, ms, number, shortId, when } from "../core/format.js";
import { keys } from "../core/keys.js";
import { on } from "../core/live.js";
import { go } from "../core/router.js";
import { dialectName, statusBadge } from "../parts/badges.js";
import { seen } from "../parts/conversation/seen.js";
import { thread } from "../parts/conversation/thread.js";
import { figures, head, note } from "../parts/page.js";
import { actions } from "../parts/run/actions.js";
import { linked } from "../parts/run/linked.js";
import { budgets, sections } from "../parts/run/sections.js";
import { timeline } from "../parts/timeline.js";

export async function show({ params, session, query, signal }) {
  const path = `runs/${params.id}`;
  const read = () => Promise.all([api(path, { signal }), conversationOf(path, signal)]);
  let [detail, conversation] = await read();
  const rules = session.approvals
    ? { edit: session.approvals.edit, max_grant_s: session.approvals.max_grant_s ?? 0 }
    : null;
  const pair = linked();
  const top = h("div");
  const talk = h("div", { id: "talk" });
  const beside = h("div");
  const status = h("span");
  let view = "conversation";

  const drawTalk = async () => {
    if (view === "seen") return set(talk, await seen(path, signal).catch((error) => note("bad", error.message)));
    set(talk, thread(detail, conversation, { link: pair.card, rules, signal }));
  };
  const draw = () => {
    set(status, statusBadge(detail.run.status));
    set(top, summary(detail));
    const line = timeline(detail, { pinned: pair.chosen(), onChoose: pair.fromLine, onHover: pair.light });
    pair.line(line);
    set(beside, line.element, budgets(detail.budgets));
    drawTalk();
  };
  draw();
  if (query.get("at")) setTimeout(() => !signal.aborted && pair.go(query.get("at")));

  let timer = 0;
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const next = await read().catch(() => null);
      // Who is writing a reason or arguments is not interrupted.
      if (!next || signal.aborted || talk.querySelector("form")) return;
      [detail, conversation] = next;
      pair.redraw(talk, draw);
    }, 150);
  };
  on("run", (row) => row.id === params.id && refresh(), signal);
  on("approval", (row) => row.run_id === params.id && row.status !== "pending" && refresh(), signal);

  // If the server cannot capture, there is nothing to inspect.
  const hasWire = Boolean(detail.wire);
  const toWire = hasWire && { w: () => go(`/ui/${path}/wire`) };
  keys({ ...toWire, j: () => pair.step(1), k: () => pair.step(-1), Escape: () => go("/ui/runs") }, signal);

  const { run } = detail;
  const choose = (name) =>
    history.replaceState(null, "", name ? `${location.pathname}?section=${name}` : location.pathname);
  const views = viewTabs(hasWire, (next) => {
    view = next;
    drawTalk();
  });
  return {
    title: `Run ${shortId(run.id)}`,
    class: "wide",
    node: [
      h(
        "nav.small",
        { "aria-label": "Breadcrumb" },
        h("a", { href: "/ui/runs" }, "Runs"),
        h("span.muted", " / "),
        h("code", run.id),
      ),
      head(
        [
          h("span.isolate", run.model || "Direct tool call"),
          run.upstream && h("span.muted.thin", "→ ", run.upstream),
          status,
        ],
        subtitle(detail),
        actions(run, path, { hasWire, own: session.role !== "admin" }),
      ),
      top,
      h(
        "div.run-pair",
        h(
          "section.card.thread-card",
          { "aria-label": "Conversation" },
          h("header", h("h2", "Conversation"), views),
          talk,
        ),
        h("section.card.beside", { "aria-label": "Timeline" }, h("header", h("h2", "Timeline")), beside),
      ),
      sections(detail, query.get("section"), choose),
    ],
  };
}

/** The conversation, or a note in its place: the rest of the page does not need it. */
async function conversationOf(path, signal) {
  try {
    return await api(`${path}/conversation`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { system: [], messages: [], failure: null, notes: [error.message] };
  }
}

function subtitle({ run, meaning }) {
  const parts = [
    run.caller_name ?? run.caller,
    dialectName(run.wire),
    run.stream ? "streamed" : "not streamed",
    when(run.started_at),
  ];
  const parent = run.parent_run && [
    " · part of ",
    h("a", { href: `/ui/runs/${run.parent_run}` }, shortId(run.parent_run)),
  ];
  const calm = run.status === "completed" && !run.spent;
  return h("span", parts.filter(Boolean).join(" · "), parent, !calm && h("span.isolate.soft", " · ", meaning));
}

function viewTabs(hasWire, choose) {
  const list = [["conversation", "As a conversation"], hasWire && ["seen", "What the model saw"]].filter(Boolean);
  const buttons = list.map(([id, text]) => {
    const pressed = String(id === "conversation");
    return h(
      "button",
      { type: "button", "aria-pressed": pressed, "aria-controls": "talk", onclick: () => press(id) },
      text,
    );
  });
  const press = (id) => {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(list[at][0] === id)));
    choose(id);
  };
  return h("div.seg", { role: "group", "aria-label": "What to show" }, buttons);
}

function summary({ run, turns, agent_runs: below = [] }) {
  const none = run.total_tokens === null;
  const tokens = none
    ? [NONE]
    : [number(run.total_tokens), `${number(run.input_tokens)} in, ${number(run.output_tokens)} out`];
  const inner = below.reduce((sum, one) => sum + (one.cost ?? 0), 0);
  return figures(
    [
      ["Took", run.ended_at ? duration(run.duration_s) : "still running"],
      ["First byte", ms(turns[0]?.first_ms)],
      ["Turns", number(run.turns)],
      ["Tool calls", number(run.tool_calls)],
      ["Tokens", ...tokens],
      ["Cost", cost(run.cost), inner > 0 && `and ${cost(inner)} below it`],
    ],
    "slim",
  );
}
