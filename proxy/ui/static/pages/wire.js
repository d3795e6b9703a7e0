// Both sides of the wire, aligned: what came, what left, and what the proxy did in between.
import { api } from "../core/api.js";
import { h, say, set } from "../core/dom.js";
import { bytes, count, duration, ms, shortId } from "../core/format.js";
import { icon } from "../core/icons.js";
import { keys } from "../core/keys.js";
import { go } from "../core/router.js";
import { hexOf, legsOf, middle, rowsOf, textOf } from "../parts/align.js";
import { meaningOf } from "../parts/compare/meaning.js";
import { empty, figures, head, note } from "../parts/page.js";
import { capture } from "../parts/run/capture.js";

const FATES = {
  untouched: ["check", "untouched"],
  rewritten: ["tools", "rewritten"],
  withheld: ["block", "withheld"],
  inserted: ["plus", "inserted"],
  composed: ["plus", "composed"],
};
const OFF = " Capturing is off until somebody asks for it, and is limited in time and size.";
const SHOWN = 3000;
const GAP_MS = 1000;

export async function show({ params, session, signal }) {
  const path = `/ui/runs/${params.id}`;
  const wire = await api(`runs/${params.id}/wire`, { signal }).catch((error) => {
    if (error.status !== 404) throw error;
    return { captured: false, never: true, reason: "this server does not capture bytes" };
  });
  const crumbs = h(
    "nav.small",
    { "aria-label": "Breadcrumb" },
    h("a", { href: "/ui/runs" }, "Runs"),
    h("span.muted", " / "),
    h("a", { href: path }, h("code", shortId(params.id))),
    h("span.muted", " / "),
    "Wire",
  );
  keys({ Escape: () => go(path) }, signal);
  // The bytes of each run are kept anyway: nothing has to be asked for.
  const start =
    !session.capture?.keeps &&
    h("button.btn", { type: "button", onclick: () => capture(session) }, icon("wire"), "Capture the next runs");
  const title = "Wire inspector";
  const sub = "What each side sent and received, byte for byte, and what the proxy did in between.";
  if (!wire.captured) {
    return {
      title,
      node: [
        crumbs,
        head(title, sub),
        h(
          "div.card",
          empty(
            "wire",
            "The bytes of this run were not captured",
            (wire.reason ? `${wire.reason[0].toUpperCase()}${wire.reason.slice(1)}.` : "") +
              (wire.never || !start ? "" : OFF),
            !wire.never && start,
          ),
        ),
      ],
    };
  }
  const legs = legsOf(wire);
  const pairs = wire.alignment.map((pair) => ({ ...pair, rows: rowsOf(pair, legs) }));
  const end = Math.max(1, ...wire.chunks.map((chunk) => chunk.at_ms));
  const drawn = [];
  let hex = false;
  let only = "";
  let now = end;
  let playing = 0;

  const range = h("input", {
    type: "range",
    min: 0,
    max: Math.ceil(end),
    value: Math.ceil(end),
    step: 1,
    "aria-label": "Moment of the stream",
    oninput: () => {
      stop();
      at(Number(range.value));
    },
  });
  const clock = h("output.num");
  const button = h("button.btn.icon-only", { type: "button", onclick: () => (playing ? stop() : play()) });
  const speed = h(
    "select.input",
    { "aria-label": "Speed", style: { width: "auto" } },
    [
      ["1", "original speed"],
      ["0.25", "¼ speed"],
      ["4", "4 × speed"],
    ].map(([value, text]) => h("option", { value }, text)),
  );
  const place = h("div.col", { style: { gap: "1.1rem" } });

  function at(moment) {
    now = moment;
    range.value = Math.ceil(now);
    range.setAttribute("aria-valuetext", ms(now));
    set(clock, `${ms(now)} of ${ms(end)}`);
    let newest = null;
    for (const row of drawn) {
      const later = row.at > now + 0.5;
      row.element.classList.toggle("later", later);
      row.element.classList.remove("now");
      if (!later && now < end && (!newest || row.at >= newest.at)) newest = row;
    }
    if (newest && playing) newest.element.classList.add("now");
  }

  function play() {
    if (now >= end - 1) now = 0;
    let before = performance.now();
    const step = (time) => {
      if (signal.aborted) return;
      at(Math.min(end, now + (time - before) * Number(speed.value)));
      before = time;
      if (now >= end) return stop();
      playing = requestAnimationFrame(step);
    };
    playing = requestAnimationFrame(step);
    draw();
  }

  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    draw();
    drawn.forEach((row) => row.element.classList.remove("now"));
  }
  signal.addEventListener("abort", () => cancelAnimationFrame(playing));

  function draw() {
    set(button, icon(playing ? "pause" : "resume"));
    button.setAttribute("aria-label", playing ? "Pause" : "Replay the stream");
  }

  function body() {
    drawn.length = 0;
    return pairs
      .filter((pair) => pair.rows.length)
      .map((pair) => {
        const [left, right] = pair.between.map((id) => legs.get(id));
        const asked = pair.between[0].includes("request");
        const rows = pair.rows.filter((row) => !only || row.kind === only);
        let last = null;
        return h(
          "section.card",
          { "aria-label": `${name(pair.between[0])} and ${name(pair.between[1])}` },
          h(
            "header",
            h("h2", asked ? `Request of turn ${right?.turn || 1}` : `Answer of turn ${left?.turn || 1}`),
            h("span.muted.small", summary(pair.rows)),
          ),
          h(
            "div.wire-head",
            { "aria-hidden": "true" },
            h("div", side(left, pair.between[0])),
            h("div", "The proxy"),
            h("div", side(right, pair.between[1])),
          ),
          asked &&
            left &&
            right &&
            meaningOf(textOf(left, [0, left.data.length]), textOf(right, [0, right.data.length]), wire),
          rows.length
            ? rows.map((row) => {
                const gap =
                  last !== null && row.arrives - last > GAP_MS
                    ? h("div.break", `${duration((row.arrives - last) / 1000)} without a byte`)
                    : null;
                last = Math.max(last ?? 0, row.at);
                return [gap, drawRow(row)];
              })
            : h("p.body.muted", "No bytes of this kind."),
          pair.joined
            ? h(
                "p.body.muted",
                `There are too many changes to show: the last row stands for ${count(pair.joined, "row")}.`,
              )
            : null,
        );
      });
  }

  function drawRow(row) {
    const size = row.a[1] - row.a[0];
    if (row.kind === "untouched") return ribbon(row, size);
    const [sign, word] = FATES[row.kind] ?? ["info", row.kind];
    const difference = row.b[1] - row.b[0] - size;
    const changed = row.kind === "rewritten" && size < 20_000 && !hex;
    const [a, b] = changed
      ? middle(textOf(row.left, row.a), textOf(row.right, row.b)).map(([before, one, after]) => [
          before,
          one && h("mark", one),
          after,
        ])
      : [cut(row.left, row.a), cut(row.right, row.b)];
    const element = h(
      "div.wire-row",
      { class: row.kind },
      cell("l", row.a, a),
      h(
        "div.fate",
        h("span", icon(sign), " ", h("strong", word)),
        h("span", fate(row, size, difference)),
        row.why && h("span.small", row.why),
        h("span.small", ms(row.at)),
      ),
      cell("r", row.b, b),
    );
    drawn.push({ element, at: row.at });
    return element;
  }

  const cell = (which, [from, to], content) =>
    from === to
      ? h("div.bytes.none", { class: which }, h("span.unseen", "nothing"))
      : h("div.bytes", { class: which }, content);

  function fate(row, size, difference) {
    if (row.kind === "rewritten") return `${difference >= 0 ? "+" : "−"}${bytes(Math.abs(difference))}`;
    return bytes(Math.max(size, row.b[1] - row.b[0]));
  }

  function ribbon(row, size) {
    const shown = h("div", { hidden: true });
    const toggle = h(
      "button.ribbon",
      {
        type: "button",
        "aria-expanded": "false",
        onclick: () => {
          const open = shown.hidden;
          if (open && !shown.firstChild)
            set(
              shown,
              h(
                "div.wire-row",
                cell("l", row.a, cut(row.left, row.a)),
                h("div.fate", icon("check"), "the same bytes"),
                cell("r", row.b, cut(row.right, row.b)),
              ),
            );
          shown.hidden = !open;
          toggle.setAttribute("aria-expanded", String(open));
        },
      },
      icon("check"),
      `untouched, ${size.toLocaleString()} bytes`,
      h("span.small", ms(row.at)),
    );
    drawn.push({ element: toggle, at: row.at });
    return [toggle, shown];
  }

  function cut(leg, span) {
    const view = hex ? hexOf : textOf;
    if (!leg || span[0] === span[1]) return null;
    if (span[1] - span[0] <= SHOWN) return view(leg, span);
    const box = h("span", view(leg, [span[0], span[0] + SHOWN]), "… ");
    box.append(
      h(
        "button.btn.small",
        { type: "button", onclick: () => set(box, view(leg, span)) },
        `Show all ${bytes(span[1] - span[0])}`,
      ),
    );
    return box;
  }

  function again() {
    set(place, body());
    at(now);
  }

  const all = pairs.flatMap((pair) => pair.rows);
  const kinds = [...new Set(all.map((row) => row.kind))];
  const filter = h(
    "select.input",
    {
      "aria-label": "Which stretches",
      style: { width: "auto" },
      onchange: (event) => {
        only = event.target.value;
        again();
        say(only || "all");
      },
    },
    h("option", { value: "" }, "all stretches"),
    kinds.map((kind) => h("option", { value: kind }, kind)),
  );
  const toggleHex = h(
    "button.btn",
    {
      type: "button",
      "aria-pressed": "false",
      onclick: () => {
        hex = !hex;
        toggleHex.setAttribute("aria-pressed", String(hex));
        set(toggleHex, hex ? "Text" : "Hex");
        again();
      },
    },
    "Hex",
  );
  const sum = (kind, which) =>
    all.filter((row) => row.kind === kind).reduce((total, row) => total + row[which][1] - row[which][0], 0);
  draw();
  again();
  return {
    title,
    node: [
      crumbs,
      head(
        title,
        sub,
        start,
        h("button.btn", { type: "button", onclick: () => downloads(legs, params.id) }, icon("down"), "Both sides"),
      ),
      wire.truncated &&
        note("warn", "More bytes went over the wire than are kept of one run; the rest is missing here."),
      figures([
        ["Untouched", bytes(sum("untouched", "a"))],
        ["Rewritten", count(all.filter((row) => row.kind === "rewritten").length, "stretch", "stretches")],
        ["Withheld", bytes(sum("withheld", "a"))],
        ["Inserted", bytes(sum("inserted", "b"))],
        ["Composed", bytes(sum("composed", "b"))],
      ]),
      h(
        "div.card",
        h("div.wire-bar", { style: { "border-bottom": "0" } }, button, range, clock, speed, filter, toggleHex),
      ),
      place,
    ],
  };
}

const name = (id) => id.replaceAll(".", " ");

function side(leg, id) {
  const words =
    { "client.request": "The client sent", "client.response": "The client got" }[id] ??
    (id.endsWith("request") ? "The upstream got" : "The upstream sent");
  return [words, leg && h("span.muted", ` · ${bytes(leg.bytes)}${leg.status ? ` · ${leg.status}` : ""}`)];
}

function summary(rows) {
  const counts = new Map();
  for (const row of rows) counts.set(row.kind, (counts.get(row.kind) ?? 0) + 1);
  return [...counts].map(([kind, number]) => `${number} ${kind}`).join(" · ");
}

function downloads(legs, id) {
  for (const leg of legs.values()) {
    const url = URL.createObjectURL(new Blob([leg.data], { type: "application/octet-stream" }));
    const link = h("a", { href: url, download: `${id}.${leg.id}` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}
