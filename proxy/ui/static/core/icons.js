// Signs of one family: 20 by 20, drawn with one line.
import { svg } from "./dom.js";

const PATHS = {
  runs: "M3.5 5h13M3.5 10h9M3.5 15h11",
  play: "M4 4.5h12a1.5 1.5 0 0 1 1.5 1.5v7a1.5 1.5 0 0 1-1.5 1.5H9L5.5 17v-2.5H4A1.5 1.5 0 0 1 2.5 13V6A1.5 1.5 0 0 1 4 4.5Z",
  approvals: "M10 2.5 16 5v4.5c0 3.700-2.5 6.600-6 8-3.5-1.4-6-4.300-6-8V5l6-2.5ZM7.300 9.800l2 2 3.600-3.800",
  tools:
    "M11.800 5.200a3.800 3.800 0 0 1 4.900 4.900l-2.200-2.200-1.900.4-.4 1.900-7 7a1.600 1.600 0 0 1-2.300-2.300l7-7 .4-1.900 1.5-.8Z",
  mcp: "M6.5 3v4M13.5 3v4M4.5 7h11v3a5.5 5.5 0 0 1-11 0V7ZM10 15.5V18",
  keys: "M12.5 11.5a4 4 0 1 0-3.800-2.800L3 14.400V17h2.6v-1.800h1.800v-1.800h1.800l1.5-1.5a4 4 0 0 0 1.800.1ZM13.5 6.5h.01",
  usage: "M3.5 16.5h13M5.5 13.5v-4M10 13.5v-9M14.5 13.5v-6",
  upstreams: "M4 4h12v4.5H4zM4 11.5h12V16H4zM7 6.200h.01M7 13.700h.01",
  settings: "M3.5 6h7M14 6h2.5M3.5 14h2.5M9.5 14h7M12.200 4.200v3.600M7.800 12.200v3.600",
  search: "M9 14.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11ZM13 13l4 4",
  sun: "M10 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM10 2v1.800M10 16.200V18M2 10h1.800M16.200 10H18M4.300 4.300l1.300 1.300M14.400 14.400l1.300 1.300M4.300 15.700l1.300-1.300M14.400 5.600l1.300-1.300",
  moon: "M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.5 8.5Z",
  system: "M3 4h14v9.5H3zM7 17h6M10 13.5V17",
  out: "M12 6V4.5A1.5 1.5 0 0 0 10.5 3h-5A1.5 1.5 0 0 0 4 4.5v11A1.5 1.5 0 0 0 5.5 17h5a1.5 1.5 0 0 0 1.5-1.5V14M8.5 10h8.5M14.5 7.5 17 10l-2.5 2.5",
  help: "M7.5 7.5a2.5 2.5 0 1 1 3.600 2.300c-.8.4-1.100.9-1.100 1.700M10 14.5h.01M10 17.5a7.5 7.5 0 1 0 0-15 7.5 7.5 0 0 0 0 15Z",
  check: "m4.5 10.5 3.5 3.5 7.5-8",
  cross: "m5.5 5.5 9 9M14.5 5.5l-9 9",
  clock: "M10 17.5a7.5 7.5 0 1 0 0-15 7.5 7.5 0 0 0 0 15ZM10 6v4.200l2.700 1.6",
  pause: "M7 4.5v11M13 4.5v11",
  resume: "M6.5 4.5 15 10l-8.5 5.5v-11Z",
  stop: "M5.5 5.5h9v9h-9z",
  copy: "M7.5 7.5h9v9h-9zM12.5 7.5v-4h-9v9h4",
  down: "M10 3.5v9.5M6 9.5l4 4 4-4M3.5 16.5h13",
  more: "M4.5 10h.01M10 10h.01M15.5 10h.01",
  back: "M11.5 4.5 6 10l5.5 5.5",
  next: "M8.5 4.5 14 10l-5.5 5.5",
  wire: "M2.5 7h4l2-3 3 9 2-6 1.5 3h2.5M3 16.5h14",
  compare: "M7 3v14M13 3v14M3 7l-.5 3 .5 3M17 7l.500 3-.5 3",
  replay: "M4 10a6 6 0 1 0 2-4.5M3.5 3.5V7H7",
  send: "M10 16V4M5 9l5-5 5 5",
  image: "M3 4h14v12H3zM3 13.5l4-4 3 3 2.5-2.5 4.5 4M13 7.5h.01",
  info: "M10 9.5v4M10 6.5h.01M10 17.5a7.5 7.5 0 1 0 0-15 7.5 7.5 0 0 0 0 15Z",
  alert: "M10 3 2.5 16.5h15L10 3ZM10 8.5v3.5M10 14.300h.01",
  block: "M10 17.5a7.5 7.5 0 1 0 0-15 7.5 7.5 0 0 0 0 15ZM4.800 4.800l10.400 10.400",
  spark: "M10 2.5l1.800 5.700 5.700 1.800-5.700 1.800L10 17.5l-1.800-5.700L2.5 10l5.700-1.800L10 2.5Z",
  plus: "M10 4v12M4 10h12",
};

/** A sign that says nothing by itself: its button or text does. */
export function icon(name, extra = "") {
  return svg(
    "svg.icon",
    {
      viewBox: "0 0 20 20",
      "aria-hidden": "true",
      focusable: "false",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.6",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      class: extra,
    },
    svg("path", { d: PATHS[name] ?? PATHS.more }),
  );
}

/** The product's mark. */
export function mark() {
  return svg(
    "svg.mark",
    { viewBox: "0 0 32 32", "aria-hidden": "true", focusable: "false" },
    svg("rect", { width: 32, height: 32, rx: 8, fill: "#4a46d6" }),
    svg(
      "g",
      { fill: "none", stroke: "#fff", "stroke-width": 2.6, "stroke-linecap": "round", "stroke-linejoin": "round" },
      svg("path", { d: "M6.5 12H20a4 4 0 0 1 0 8h-4" }),
      svg("path", { d: "m19 16.5-3.5 3.5 3.5 3.5" }),
      svg("circle", { cx: 9, cy: 20, r: 1.6, fill: "#fff", stroke: "none" }),
    ),
  );
}
