// A run on one time axis: its turns, and below each its calls; overlapping bars ran at the same time.
import { h, set } from "../core/dom.js";
import { icon } from "../core/icons.js";
import { NONE, bytes, cost, moment, ms, number } from "../core/format.js";
import { callState, toolName } from "./badges.js";
import { facts } from "./page.js";
import { hideTip, tip, tipRows } from "./tip.js";

const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];

/**
 * `detail` is as the API has it.  A click on a row pins its numbers below the axis.  `onChoose(id)` and `onHover(id)`
 * are called with the row that is chosen or pointed at, or null.  `end` is the least length of the axis, in ms.
 */
export function timeline(detail, { pinned = null, end: least = 0, onChoose = () => {}, onHover = () => {} } = {}) {
  const { run, turns, invocations, inner_calls: inner = [], agent_runs: below = [] } = detail;
  const waiting = (detail.approvals ?? []).filter((one) => !one.invocation_id);
  const began = run.started_at;
  const now = Date.now() / 1000;
  // The calls of a program follow the call that ran it.
  const parents = new Map(below.map((one) => [one.id, one.parent_call]));
  const linesOf = (call) =>
    [call, ...inner.filter((one) => parents.get(one.run_id) === call.id)].map((one) => callLine(one, began, now));
  const lines = turns.flatMap((turn) => [
    turnLine(turn, began, run, now),
    ...invocations.filter((call) => call.turn === turn.number).flatMap(linesOf),
    ...waiting.filter((one) => one.turn === turn.number).map((one) => waitLine(one, began, run, now)),
  ]);
  const known = new Set(turns.map((turn) => turn.number));
  lines.push(...invocations.filter((call) => !known.has(call.turn)).flatMap(linesOf));
  const end = Math.max(1, least, (run.duration_s ?? 0) * 1000, ...lines.map((line) => line.to));
  const { top, ticks } = scale(end);
  const pin = h("aside.pin", { "aria-label": "Pinned", hidden: true });
  const body = h("tbody");
  const box = h("div.timeline", h("div.tl-box", table(body, top, ticks), legend(lines)), pin);
  let chosen = null;

  const choose = (line) => {
    onChoose(pinLine(line, chosen !== line?.id));
  };
  const pinLine = (line, on = true) => {
    chosen = on ? (line?.id ?? null) : null;
    for (const row of body.children) {
      const on = row.dataset.id === chosen;
      row.classList.toggle("on", on);
      row.querySelector("button").setAttribute("aria-pressed", String(on));
    }
    box.classList.toggle("pinned", chosen !== null);
    pin.hidden = chosen === null;
    if (chosen)
      set(
        pin,
        h(
          "div.row",
          h("h3.grow.cut", line.title),
          h(
            "button.btn.ghost.icon-only.small",
            { type: "button", "aria-label": "Unpin", onclick: () => choose(line) },
            icon("cross"),
          ),
        ),
        line.detail(),
      );
    return chosen;
  };

  for (const line of lines) {
    const row = h(
      "tr",
      { class: line.kind === "call" ? "call-row" : "", "data-id": line.id, onclick: () => choose(line) },
      h(
        "th.tl-name",
        { scope: "row" },
        h(
          "button",
          {
            type: "button",
            "aria-pressed": "false",
            onclick: (event) => {
              event.stopPropagation();
              choose(line);
            },
          },
          h("span.cut", line.name),
          line.sign,
        ),
      ),
      h(
        "td",
        h(
          "div.track",
          line.bars.map(([kind, from, to]) =>
            h("i.bar", {
              class: kind,
              style: { left: `${(from / top) * 100}%`, width: `${Math.max(0, (to - from) / top) * 100}%` },
            }),
          ),
          h("span.unseen", line.words),
        ),
      ),
      h("td.tl-ms.num", line.length),
    );
    tip(row, () => tipRows([["", line.title], ...line.numbers]));
    row.addEventListener("pointerenter", () => onHover(line.id));
    row.addEventListener("pointerleave", () => onHover(null));
    row.addEventListener("focusin", () => onHover(line.id));
    row.addEventListener("focusout", () => onHover(null));
    body.append(row);
  }
  const lineOf = (id) => lines.find((one) => one.id === id);
  const rowOf = (id) => [...body.children].find((one) => one.dataset.id === id);
  if (pinned && lineOf(pinned)) pinLine(lineOf(pinned));
  hideTip();
  return {
    element: box,
    /** Pin the numbers of a row, without telling anybody. */
    choose: (id) => lineOf(id) && pinLine(lineOf(id)),
    light: (id) => [...body.children].forEach((one) => one.classList.toggle("lit", one.dataset.id === id)),
    focus: (id) => rowOf(id)?.querySelector("button").focus({ preventScroll: true }),
  };
}

function table(body, top, ticks) {
  return h(
    "table.tl",
    h("caption.unseen", "What happened when, from the start of the run"),
    h(
      "thead",
      h(
        "tr",
        h("th.tl-name", { scope: "col" }, "Turn or call"),
        h(
          "th",
          { scope: "col" },
          h("span.unseen", "Time axis"),
          h(
            "div.ticks",
            { "aria-hidden": "true" },
            ticks.map((tick) => h("span", { style: { left: `${(tick / top) * 100}%` } }, tick ? ms(tick) : "0")),
          ),
        ),
        h("th.tl-ms", { scope: "col" }, "Took"),
      ),
    ),
    body,
  );
}

function legend(lines) {
  const kinds = new Set(lines.flatMap((line) => line.bars.map(([kind]) => kind)));
  const one = (kind, text) => h("span", h("i.bar", { class: kind }), text);
  return h(
    "div.tl-foot",
    one("wait", "waiting for the first byte"),
    one("turn", "the model is answering"),
    [...kinds].some((kind) => kind.includes("tool")) && one("tool", "a tool is running"),
  );
}

/** Four equal parts that are round numbers. */
function scale(end) {
  let unit = 1;
  let step = 1;
  search: for (let power = 0; power < 9; power++)
    for (const one of STEPS) {
      unit = one * 10 ** power;
      step = unit;
      if (unit * 4 >= end) break search;
    }
  return { top: step * 4, ticks: [0, 1, 2, 3, 4].map((at) => at * step) };
}

function turnLine(turn, began, run, now) {
  const from = turn.offset_ms ?? Math.max(0, (turn.started_at - began) * 1000);
  const open = turn.ended_at === null || turn.ended_at === undefined;
  const to = open
    ? Math.max(from, (now - began) * 1000)
    : from + (turn.duration_s ?? turn.ended_at - turn.started_at) * 1000;
  const first = turn.first_ms === null || turn.first_ms === undefined ? null : Math.min(to, from + turn.first_ms);
  const bad = turn.error_code ? " bad" : "";
  const going = open && run.status === "running" ? " going" : "";
  const bars =
    first === null
      ? [[`turn${bad}${going}`, from, to]]
      : [
          ["wait", from, first],
          [`turn${bad}${going}`, first, to],
        ];
  const tokens =
    turn.total_tokens === null ? null : `${number(turn.input_tokens)} in, ${number(turn.output_tokens)} out`;
  const numbers = [
    ["Started at", ms(from)],
    ["First byte after", first === null ? null : ms(turn.first_ms)],
    ["Took", open ? "still running" : ms(to - from)],
    ["Tokens", tokens],
    ["Cost", turn.cost === null ? null : cost(turn.cost)],
    ["Ended with", turn.error_code ?? turn.finish_reason],
  ];
  return {
    id: `turn-${turn.number}`,
    kind: "turn",
    name: `Turn ${turn.number}`,
    title: `Turn ${turn.number}`,
    to,
    bars,
    numbers,
    length: open ? "…" : ms(to - from),
    sign: turn.error_code ? h("span.badge.bad", turn.error_code) : null,
    words: `from ${ms(from)} to ${ms(to)}${first === null ? "" : `, first byte after ${ms(turn.first_ms)}`}`,
    detail: () => [
      facts([
        ...numbers,
        ["Tool calls", number(turn.tool_calls)],
        ["Upstream’s id", turn.upstream_id && h("code", turn.upstream_id)],
        ["Began", moment(turn.started_at)],
      ]),
      Object.keys(turn.withheld ?? {}).length > 0 &&
        h(
          "div.col",
          h("h3", "Withheld in this turn"),
          h(
            "ul.col",
            Object.entries(turn.withheld).map(([tool, rule]) =>
              h("li", h("code", tool), h("span.muted", ` by ${rule}`)),
            ),
          ),
        ),
    ],
  };
}

function callLine(call, began, now) {
  const from = call.offset_ms ?? Math.max(0, (call.started_at - began) * 1000);
  const open = call.ended_at === null || call.ended_at === undefined;
  const to = open
    ? Math.max(from, (now - began) * 1000)
    : from + (call.duration_s ?? call.ended_at - call.started_at) * 1000;
  const [kind, sign, word] = callState(call);
  const shared = /shared|cached/.test(call.decision ?? "") || call.source === "shared" || call.source === "cached";
  const bad = kind === "bad" ? " bad" : "";
  const numbers = [
    ["Started at", ms(from)],
    ["Took", open ? "still running" : ms(to - from)],
    ["Outcome", word],
    ["Error", call.error_code],
    ["Result", call.result_bytes ? bytes(call.result_bytes) : null],
    ["Effect", call.effect?.replaceAll("_", " ")],
    ["Cost", call.cost === null || call.cost === undefined ? null : cost(call.cost)],
  ];
  return {
    id: call.id,
    kind: "call",
    name: toolName(call.tool),
    title: call.tool,
    to,
    numbers,
    bars: [[`tool${bad}${open && call.status === "started" ? " going" : ""}${shared ? " shared" : ""}`, from, to]],
    length: open ? (call.status === "started" ? "…" : NONE) : ms(to - from),
    sign: sign ? h("span.badge", { class: kind, title: word }, icon(sign), h("span.unseen", word)) : h("i.spin"),
    words: `from ${ms(from)} to ${ms(to)}, ${word}`,
    detail: () => [
      h("div.row.wrap", callBadge(call), h("span.muted.small", call.provider)),
      facts([
        ...numbers.filter(([name]) => name !== "Outcome"),
        ["Decision", call.decision],
        ["Call id", h("code", call.call_id)],
        ["Operation", call.operation_id && h("code", call.operation_id)],
        ["Definition", call.spec_digest && h("code", call.spec_digest.slice(0, 12))],
      ]),
    ],
  };
}

/** A call that waits for a person, or whose approval came to nothing. */
function waitLine(approval, began, run, now) {
  const from = Math.max(0, (approval.created_at - began) * 1000);
  const pending = approval.status === "pending";
  const end = approval.decided_at ?? (pending ? now : approval.created_at);
  // A person may take hours; the axis stays that of the run.
  const to = Math.max(from, Math.min((end - began) * 1000, (run.duration_s ?? 0) * 1000 || from));
  const word = pending ? "waits for approval" : approval.status;
  const numbers = [
    ["Asked after", ms(from)],
    ["State", word],
    ["Why", approval.why],
  ];
  return {
    id: approval.id,
    kind: "call",
    name: toolName(approval.tool),
    title: approval.tool,
    to,
    numbers,
    bars: [["held", from, to]],
    length: pending ? "…" : NONE,
    sign: h("span.badge", { class: pending ? "warn" : "", title: word }, icon("clock"), h("span.unseen", word)),
    words: `asked after ${ms(from)}, ${word}`,
    detail: () => [facts(numbers)],
  };
}

function callBadge(call) {
  const [kind, sign, word] = callState(call);
  return h("span.badge", { class: kind }, sign ? icon(sign) : h("i.spin"), word);
}
