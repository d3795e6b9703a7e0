// Stacked bars a day, drawn as SVG.  The table beside it has the same numbers.
import { h, svg } from "../core/dom.js";
import { tip, tipRows } from "./tip.js";

const MOST = 5;
const [TALL, LEFT, BELOW] = [220, 52, 24];
const DAY_MS = 86_400_000;

/** `rows` are of the API, told apart by `by` and day; `order` says which group comes first. */
export function stacked(rows, shape) {
  const box = h("div.chart-box");
  const { chart, legend } = draw(rows, shape, 900);
  box.append(chart);
  // Drawn for the width that there is, so that letters keep their form.
  let wide = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === wide || now < 100) return;
    wide = now;
    box.replaceChildren(draw(rows, shape, wide).chart);
  }).observe(box);
  return h("div.col", { style: { gap: ".9rem" } }, box, legend);
}

function draw(rows, { by, key, name, format, order, since }, wide) {
  const days = span(since);
  const groups = order.slice(0, MOST);
  const rest = order.length > MOST;
  const values = new Map(days.map((day) => [day, new Map()]));
  for (const row of rows) {
    const day = values.get(row.group.day);
    if (!day) continue;
    const group = groups.includes(row.group[by]) ? row.group[by] : null;
    day.set(group, (day.get(group) ?? 0) + (row[key] ?? 0));
  }
  const sums = days.map((day) => [...values.get(day).values()].reduce((a, b) => a + b, 0));
  const top = nice(Math.max(...sums, 0));
  const step = (wide - LEFT) / days.length;
  const bar = Math.min(46, step * 0.62);
  const y = (value) => TALL - (value / top) * (TALL - 12);
  const parts = [...groups, ...(rest ? [null] : [])];
  const lines = [0, 0.25, 0.5, 0.75, 1].map((part) => [
    svg("line.grid-line", { x1: LEFT, x2: wide, y1: y(part * top), y2: y(part * top) }),
    svg("text", { x: LEFT - 8, y: y(part * top) + 4, "text-anchor": "end" }, format(part * top)),
  ]);
  const every = Math.ceil(days.length / Math.max(2, Math.floor(wide / 90)));
  const columns = days.map((day, at) => {
    let below = 0;
    const x = LEFT + step * at;
    const found = values.get(day);
    const rects = parts.map((group, index) => {
      const value = found.get(group) ?? 0;
      if (!value) return null;
      const from = y(below + value);
      const height = y(below) - from;
      below += value;
      return svg("rect", {
        x: x + (step - bar) / 2,
        y: from,
        width: bar,
        height: Math.max(1, height - 1),
        rx: Math.min(3, bar / 4),
        class: `s${index}`,
      });
    });
    const hit = svg("rect.hit", { x, y: 0, width: step, height: TALL });
    tip(hit, () =>
      tipRows([
        [long(day), format(sums[at])],
        ...parts.map((group) => [label(group), found.get(group) ? format(found.get(group)) : null]),
      ]),
    );
    return [
      rects,
      hit,
      at % every === 0 && svg("text", { x: x + step / 2, y: TALL + BELOW - 6, "text-anchor": "middle" }, small(day)),
    ];
  });
  return {
    chart: svg(
      "svg.chart",
      {
        viewBox: `0 0 ${wide} ${TALL + BELOW}`,
        role: "img",
        "aria-label": `${name} by day; the table below has the numbers`,
      },
      lines,
      columns,
    ),
    legend: h(
      "div.legend",
      parts.map((group, index) => h("span", h("i", { class: `s${index}` }), label(group))),
    ),
  };
}

const label = (group) => (group === null ? "others" : group === "" ? "(none)" : String(group));
const small = (day) =>
  new Date(`${day}T12:00:00Z`).toLocaleDateString(undefined, { month: "short", day: "numeric", timeZone: "UTC" });
const long = (day) =>
  new Date(`${day}T12:00:00Z`).toLocaleDateString(undefined, {
    weekday: "short",
    month: "short",
    day: "numeric",
    timeZone: "UTC",
  });

/** The days of an age, in UTC as the record counts them. */
function span(since) {
  const many = { "24h": 2, "7d": 7, "30d": 30, "90d": 90 }[since] ?? 7;
  return Array.from({ length: many }, (_, at) =>
    new Date(Date.now() - (many - 1 - at) * DAY_MS).toISOString().slice(0, 10),
  );
}

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((one) => one * power).find((one) => one >= value);
}
