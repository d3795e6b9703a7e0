// A call that waits for a person: what would run, why it waits, and buttons that act once.
import { api } from "../../core/api.js";
import { h, say, set } from "../../core/dom.js";
import { ago, moment, time } from "../../core/format.js";
import { icon } from "../../core/icons.js";
import { approveForm } from "./approve.js";
import { json } from "../json.js";
import { note } from "../page.js";
import { toolName } from "../badges.js";
import { context } from "./context.js";

const WORD = {
  approved: ["yes", "ok", "check", "Approved"],
  used: ["yes", "ok", "check", "Approved and run"],
  denied: ["no", "bad", "block", "Denied"],
  expired: ["", "", "clock", "Expired"],
  superseded: ["", "", "clock", "Could not run"],
};

/**
 * A card for an approval; `decided(row)` is called with the decision.  `rules` say what an approval may change.
 * `equal()` are the ids of equal calls that the same decision is for.
 */
export function askCard(row, { inline = false, runs = true, rules = null, equal = () => [], decided = () => {} } = {}) {
  const id = row.id ?? row.approval_id;
  const box = h("article.ask.card", { "aria-label": `Approval of ${row.tool ?? row.name}`, "data-id": id });
  let busy = false;
  let current = row;
  const why = !inline && row.run_id ? context(row, id) : null;
  // Later answers have the arguments without private fields again; the exact ones stay.
  const take = (news) =>
    (current = { ...current, ...news, ...(current.exact && { arguments: current.arguments, arguments_cut: false }) });

  /** The approval as it is on record, for example after another user decided it. */
  const asItIs = () => api(`approvals/${id}`).catch(() => null);

  /** All arguments; the rows of lists have very long ones cut. */
  async function all() {
    try {
      take(await api(`approvals/${id}`));
      draw();
    } catch (error) {
      draw(error.message);
    }
  }

  /** The arguments with the tool's private fields, which the log says who read. */
  async function exact(event) {
    event.target.disabled = true;
    try {
      current = { ...current, ...(await api(`approvals/${id}?content=true`)), exact: true };
      draw();
    } catch (error) {
      draw(error.message);
    }
  }

  /** Record a decision; with `form` errors other than a conflict are thrown, and the form shows them. */
  async function decide(body, { form = false } = {}) {
    if (busy) return; // A second click repeats the decision.
    busy = true;
    if (!form) box.querySelectorAll("button").forEach((button) => (button.disabled = true));
    try {
      const answer = await api(`approvals/${id}`, { method: "POST", body });
      // What runs may be other arguments now; those that were read before are no longer exact.
      current = body.arguments ? { ...current, exact: false } : current;
      take(answer?.id || answer?.status ? answer : { status: body.approve ? "approved" : "denied" });
      await together(body);
      say(body.grant ? "Approved, and later calls run without asking." : body.approve ? "Approved." : "Denied.");
    } catch (error) {
      if (form && !(error.status === 409 && error.code === "approval_decided")) {
        busy = false;
        throw error;
      }
      if (error.status === 409) {
        const other = await asItIs();
        take(other ?? { status: "superseded" });
        busy = false;
        draw(error.message);
        return decided(current);
      }
      busy = false;
      return draw(error.message);
    }
    busy = false;
    draw();
    decided(current);
  }

  /** Decide the equal calls alike; each tells its own card. */
  async function together(body) {
    for (const other of equal().filter((one) => one !== id)) {
      const answer = await api(`approvals/${other}`, {
        method: "POST",
        body: { approve: body.approve, ...(body.reason && { reason: body.reason }) },
      }).catch(() => null);
      const now = answer ?? (await api(`approvals/${other}`).catch(() => null));
      if (now) document.dispatchEvent(new CustomEvent("toolrelay:approval", { detail: { ...now, id: other } }));
    }
  }

  function draw(trouble) {
    const state = WORD[current.status];
    const was = current.edited ? "A person changed the arguments." : "";
    const tool = current.tool ?? current.name;
    const shown = current.arguments ?? current.arguments_redacted;
    box.className = `ask card ${state ? `decided ${state[0]}` : ""}`;
    set(
      box,
      h(
        "div.row.wrap",
        h("strong.isolate", { title: tool }, toolName(tool)),
        state
          ? h("span.badge", { class: state[1] }, icon(state[2]), state[3])
          : h("span.badge.warn", icon("clock"), "Waits for you"),
        h("span.grow"),
        h(
          "span.muted.small",
          [
            current.caller_name ?? current.caller,
            current.created_at && ago(current.created_at),
            !state && current.expires_at && `until ${time(current.expires_at)}`,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
      ),
      why,
      current.why && h("p.soft", "Why it needs approval: ", h("span.isolate", current.why)),
      h("div.code", { tabindex: 0, "aria-label": "Arguments" }, json(shown, { whole: true })),
      current.arguments_cut &&
        note(
          "warn",
          "These are not all arguments. ",
          h("button.btn.small", { type: "button", onclick: all }, "Show all arguments"),
        ),
      !state && current.meaning && h("p.soft", current.meaning),
      was && h("p.soft", was),
      trouble && note("warn", trouble),
      state ? after() : buttons(),
      !inline &&
        h(
          "div.row.wrap.small.muted",
          runs &&
            current.run_id &&
            h("a", { href: `/ui/runs/${current.run_id}?at=${current.invocation_id ?? id}` }, "Show it in its run"),
          current.spec_digest && h("span", "Definition ", h("code", current.spec_digest.slice(0, 8))),
          current.arguments_digest && h("span", "Arguments ", h("code", current.arguments_digest.slice(0, 8))),
          h("span.grow"),
          current.exact
            ? h("span", "These are the exact arguments.")
            : h("button.btn.small", { type: "button", onclick: exact }, "Show exact arguments"),
        ),
    );
  }

  function after() {
    return h(
      "div",
      current.meaning && h("p.soft", current.meaning),
      h(
        "p.muted.small",
        [
          (current.decided_by_name ?? current.decided_by) && `by ${current.decided_by_name ?? current.decided_by}`,
          current.decided_via && `via ${current.decided_via}`,
          current.decided_at && moment(current.decided_at),
          current.reason,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );
  }

  function buttons() {
    const many = equal().length;
    const name = current.description ?? toolName(current.tool ?? current.name ?? "this call");
    const what = h("span.isolate.what", `${name}${many > 1 ? ` ${many} times` : ""}`);
    const row = h("div.buttons");
    const ask = () => {
      const field = h("input.input", {
        maxlength: 500,
        placeholder: "Reason, which the model reads (optional)",
        "aria-label": "Reason",
      });
      const reason = () => (field.value.trim() ? { reason: field.value.trim() } : {});
      const form = h(
        "form.row.grow",
        {
          onsubmit: (event) => {
            event.preventDefault();
            decide({ approve: false, ...reason() });
          },
        },
        field,
        h("button.btn.no", { type: "submit" }, "Deny"),
        h("button.btn.ghost", { type: "button", onclick: () => draw() }, "Back"),
      );
      set(row, form);
      field.focus();
    };
    const conditions = async (event) => {
      event.target.disabled = true;
      try {
        const form = await approveForm({ ...current, id, tool: current.tool ?? current.name }, rules, {
          approve: (body) => decide(body, { form: true }),
          back: () => draw(),
        });
        set(row, form);
        form.querySelector("textarea, select")?.focus();
      } catch (error) {
        draw(error.message);
      }
    };
    return add(row, [
      h(
        "button.btn.yes",
        {
          type: "button",
          "data-act": "approve",
          disabled: current.arguments_cut,
          title: current.arguments_cut && "Show all arguments first",
          onclick: () => decide({ approve: true }),
        },
        icon("check"),
        h("span", "Approve ", what),
      ),
      rules &&
        !current.arguments_cut &&
        (rules.edit || rules.max_grant_s > 0) &&
        h(
          "button.btn",
          { type: "button", "data-act": "conditions", onclick: conditions },
          rules.edit ? "Edit and approve…" : "Approve with a grant…",
        ),
      h(
        "button.btn.no",
        { type: "button", "data-act": "deny", onclick: ask },
        icon("block"),
        h("span", "Deny ", what.cloneNode(true), "…"),
      ),
    ]);
  }

  document.addEventListener("toolrelay:approval", (event) => {
    // Who fills in the form is not interrupted while the call still waits.
    if (
      event.detail?.id !== id ||
      !box.isConnected ||
      busy ||
      (event.detail.status === current.status && box.querySelector("form"))
    )
      return;
    take(event.detail);
    draw();
  });
  draw();
  // What comes over a run's own stream lacks the words of the tool.
  if (inline && id && current.description === undefined)
    asItIs().then((known) => known && !busy && !box.querySelector("form") && (take(known), draw()));
  box.addEventListener("toolrelay:equal", () => !box.querySelector("form") && draw());
  return box;
}

const add = (row, children) => {
  row.append(...children.filter(Boolean));
  return row;
};
