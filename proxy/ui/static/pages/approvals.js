// The calls that wait for a person's decision.
import { api, query } from "../core/api.js";
import { h, say, set } from "../core/dom.js";
import { count } from "../core/format.js";
import { icon } from "../core/icons.js";
import { keys } from "../core/keys.js";
import { on } from "../core/live.js";
import { remember } from "../core/router.js";
import { askCard } from "../parts/approvals/ask.js";
import { grantCard } from "../parts/approvals/grant.js";
import { equalCards } from "../parts/approvals/equal.js";
import { empty, head, note } from "../parts/page.js";

const waits = (number) =>
  number ? `${count(number, "call")} ${number === 1 ? "waits" : "wait"} for you` : "No call waits for you";

export async function show({ query: asked, session, signal }) {
  let state = ["pending", "decided", "grants"].includes(asked.get("state")) ? asked.get("state") : "pending";
  const box = h("div.col", { style: { gap: "1rem" } });
  const counted = h("span");
  let list = null;
  // An approver's session may not open runs.
  const card = (row, equal) =>
    askCard(row, { runs: session.role === "admin", rules: list.rules, equal, decided: recount });
  // Equal calls are shown together, and decided together only if somebody says so.
  const grouped = (rows) => {
    const groups = new Map();
    for (const row of rows) {
      const key =
        row.status === "pending" && row.arguments_digest
          ? `${row.tool} ${row.caller} ${row.arguments_digest} ${row.spec_digest}`
          : row.id;
      groups.set(key, [...(groups.get(key) ?? []), row]);
    }
    return [...groups.values()].map((group) => (group.length === 1 ? card(group[0]) : equalCards(group, card)));
  };
  const recount = (row) => {
    const own = list?.data.find((one) => one.id === row.id);
    if (own) own.status = row.status;
    if (state === "pending") set(counted, waits(list.data.filter((one) => one.status === "pending").length));
  };

  async function load() {
    if (state === "grants") return drawGrants(await api(`approvals/grants${query({ limit: 100 })}`, { signal }));
    list = await api(`approvals${query({ state, limit: 100 })}`, { signal });
    draw();
  }

  function drawGrants(grants) {
    list = null;
    set(counted, count(grants.data.filter((one) => one.status === "active").length, "active grant"));
    set(
      box,
      grants.has_more &&
        note("info", "This page shows the newest 100. List all of them with: toolrelay approvals grants --all"),
      grants.data.length
        ? grants.data.map((row) => grantCard(row, { runs: session.role === "admin" }))
        : h(
            "div.card",
            empty(
              "approvals",
              "There are no grants",
              "Who approves a call can let later calls of its tool run unasked, for a time or in one conversation.",
            ),
          ),
    );
  }

  function draw() {
    const rows = list.data;
    set(counted, state === "pending" ? waits(rows.length) : count(rows.length, "decision"));
    set(
      box,
      list.has_more &&
        note("info", "This page shows the newest 100. List all of them with: toolrelay approvals list --all"),
      rows.length
        ? grouped(rows)
        : h(
            "div.card",
            state === "pending"
              ? empty(
                  "approvals",
                  "No call waits for you",
                  "Calls of tools in policy.approve appear here, with their exact arguments. Each call asks once.",
                )
              : empty("approvals", "Nothing has been decided yet", ""),
          ),
    );
  }

  on(
    "approval",
    async (told) => {
      // What is too long for an event is read as a whole.
      if (!list) return;
      const row = told.cut ? await api(`approvals/${told.id}`, { signal }).catch(() => null) : told;
      if (!row) return;
      const at = list?.data.findIndex((one) => one.id === row.id) ?? -1;
      const here = box.querySelector(`[data-id="${CSS.escape(row.id)}"]`);
      if (here) {
        document.dispatchEvent(new CustomEvent("toolrelay:approval", { detail: row }));
        recount(row);
      } else if (state === "pending" && row.status === "pending" && at < 0) {
        list.data.unshift(row);
        if (list.data.length === 1) draw();
        else box.prepend(card(row));
        recount(row);
        say(`A call of ${row.tool} waits for approval.`);
      }
    },
    signal,
  );

  const cards = () => [...box.querySelectorAll(".ask")];
  const focused = () => document.activeElement?.closest(".ask");
  const move = (step) => {
    const all = cards();
    const at = all.indexOf(focused());
    all[Math.min(all.length - 1, Math.max(0, at + step))]?.querySelector("button, a, [tabindex]")?.focus();
  };
  // A key alone decides nothing: it moves the focus to the button, and Enter acts.
  keys(
    {
      j: () => move(1),
      k: () => move(-1),
      a: () => (focused() ?? cards()[0])?.querySelector("[data-act=approve]")?.focus(),
      d: () => (focused() ?? cards()[0])?.querySelector("[data-act=deny]")?.click(),
    },
    signal,
  );

  const choose = (next) => {
    state = next;
    remember(next === "pending" ? "" : `?state=${next}`);
    set(choice, options());
    load().catch((error) => error.name !== "AbortError" && set(box, note("bad", error.message)));
  };
  const options = () =>
    [
      ["pending", "Waiting"],
      ["decided", "Decided"],
      ["grants", "Grants"],
    ].map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(state === value), onclick: () => choose(value) }, text),
    );
  const choice = h("div.seg", { role: "group", "aria-label": "Which" }, options());
  await load();
  const remind =
    "Notification" in window &&
    Notification.permission === "default" &&
    h(
      "button.btn",
      {
        type: "button",
        onclick: (event) => {
          Notification.requestPermission();
          event.target.hidden = true;
        },
      },
      icon("info"),
      "Notify me",
    );
  // After a lost connection the list may lack calls that came meanwhile.
  on("reset", () => load().catch(() => {}), signal);
  on(
    "approval",
    (row) => {
      if (
        row.status === "pending" &&
        document.hidden &&
        "Notification" in window &&
        Notification.permission === "granted"
      )
        new Notification("A tool call waits for your approval", { body: String(row.tool ?? ""), tag: row.id });
    },
    signal,
  );
  return { title: "Approvals", node: [head("Approvals", counted, remind, choice), box] };
}
