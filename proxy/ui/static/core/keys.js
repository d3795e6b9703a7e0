// Shortcuts.  A single key changes only the view, and all shortcuts can be switched off.
import { h } from "./dom.js";
import { dialog } from "../parts/dialog.js";
import { go } from "./router.js";

const PLACES = {
  r: "runs",
  p: "play",
  a: "approvals",
  t: "tools",
  m: "mcp",
  k: "keys",
  u: "usage",
  h: "upstreams",
  s: "settings",
};
const WORDS = [
  ["g then r", "Runs"],
  ["g then p", "Playground"],
  ["g then a", "Approvals"],
  ["g then t", "Tools"],
  ["g then m", "MCP servers"],
  ["g then k", "Keys"],
  ["g then u", "Usage"],
  ["g then h", "Upstreams"],
  ["g then s", "Settings"],
  ["/", "Search or filter"],
  ["j k", "Next and previous row, turn or call"],
  ["Enter", "Open the row"],
  [".", "Pause or resume the live list"],
  ["w", "Wire inspector of a run"],
  ["Esc", "Close, or back"],
  ["?", "This list"],
];
const own = new Map();
let waits = false;

/** A page's own keys until `signal` fires: `{key: act}`. */
export function keys(map, signal) {
  for (const [key, act] of Object.entries(map)) own.set(key, act);
  signal.addEventListener("abort", () => {
    for (const [key, act] of Object.entries(map)) if (own.get(key) === act) own.delete(key);
  });
}

const stored = () => {
  try {
    return localStorage.getItem("toolrelay.keys") !== "off";
  } catch {
    return true;
  }
};

function typing(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null;
}

/** Listen from now on; `pages` are those that the session may open, null for all. */
export function listen(pages) {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape" && typing(event.target) && !event.target.closest("dialog")) return event.target.blur();
    if (typing(event.target) || event.target.closest?.("dialog") || !stored()) return;
    if (waits) {
      waits = false;
      const place = PLACES[event.key];
      if (place && (!pages || pages.includes(place))) {
        event.preventDefault();
        go(`/ui/${place}`);
      }
      return;
    }
    if (event.key === "g") {
      waits = true;
      setTimeout(() => (waits = false), 1500);
    } else if (event.key === "?") help();
    else if (event.key === "/") {
      const field = document.querySelector("main input[type=search]");
      if (!field) return;
      event.preventDefault();
      field.focus();
    } else if (own.has(event.key) && !(event.key === "Enter" && event.target.closest?.("a, button, summary"))) {
      event.preventDefault();
      own.get(event.key)(event);
    }
  });
}

export function help() {
  const rows = WORDS.map(([key, what]) => [
    h("span", what),
    h(
      "span.row.end",
      key.split(" ").map((one) => (one === "then" ? h("span.muted.small", "then") : h("kbd", one))),
    ),
  ]);
  const toggle = h("input", {
    type: "checkbox",
    checked: stored(),
    onchange: (event) => {
      try {
        localStorage.setItem("toolrelay.keys", event.target.checked ? "on" : "off");
      } catch {
        // The choice lasts until the page is loaded again.
      }
    },
  });
  dialog("Keyboard shortcuts", h("div.shortcuts", rows), h("label.check", toggle, "Use single-key shortcuts"));
}
