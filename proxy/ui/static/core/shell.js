// The frame around every page: navigation, theme, live sign, sign-out.
import { api } from "./api.js";
import { h, set, toast } from "./dom.js";
import { setCurrency } from "./format.js";
import { icon, mark } from "./icons.js";
import { help, listen } from "./keys.js";
import { liveState, on, start, stop } from "./live.js";
import { begin, pagesOf } from "./router.js";
import { dialog } from "../parts/dialog.js";

const PAGES = [
  [
    "Observe",
    [
      ["runs", "Runs"],
      ["usage", "Usage"],
    ],
  ],
  [
    "Try and decide",
    [
      ["play", "Playground"],
      ["approvals", "Approvals"],
    ],
  ],
  [
    "Configuration",
    [
      ["tools", "Tools"],
      ["mcp", "MCP servers"],
      ["keys", "Keys"],
      ["upstreams", "Upstreams"],
      ["settings", "Settings"],
    ],
  ],
];
const SMALL = ["runs", "play", "approvals", "usage"];
const THEMES = [
  ["system", "system", "Theme: system"],
  ["light", "sun", "Theme: light"],
  ["dark", "moon", "Theme: dark"],
];
const PARENT = { run: "runs", wire: "runs", compare: "runs" };
const WORDS = { on: "Live", waiting: "Reconnecting", off: "Not live" };

/** Draw the frame for a session and show the page of the address. */
export function frame(app, session, signedOut) {
  setCurrency(session.currency);
  const pages = pagesOf(session);
  const groups = pages
    ? PAGES.map(([title, all]) => [title, all.filter(([name]) => pages.includes(name))]).filter(([, all]) => all.length)
    : PAGES;
  const badges = [];
  const badge = () => {
    const one = h("span.count", { hidden: true });
    badges.push(one);
    return one;
  };
  const link = (name, text, withBadge) =>
    h(
      "a.nav",
      { href: `/ui/${name}`, "data-page": name, title: text },
      icon(name),
      h("span", text),
      withBadge && badge(),
    );
  const live = h("div.live", h("i"), h("span"));
  const theme = h("button.btn.ghost.icon-only", { type: "button" });
  const leave = async () => {
    stop();
    const out = await api("session", { method: "DELETE", quiet: true }).catch(() => null);
    // Who logged in at an OpenID provider logs out there, too.
    if (out?.continue_at) location.assign(out.continue_at);
    else signedOut();
  };
  const rail = h(
    "nav.rail",
    { "aria-label": "Pages" },
    h("a.brand", { href: `/ui/${pages?.[0] ?? "runs"}` }, mark(), h("span", "toolrelay")),
    groups.map(([title, pages]) => [
      h("h2", title),
      pages.map(([name, text]) => link(name, text, name === "approvals")),
    ]),
    h(
      "div.rail-foot",
      live,
      h(
        "div.rail-tools",
        h("span.who.cut.grow", { title: `Signed in as ${session.name} (${session.role})` }, session.name),
        theme,
        h(
          "button.btn.ghost.icon-only",
          { type: "button", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)", onclick: help },
          icon("help"),
        ),
        h(
          "button.btn.ghost.icon-only",
          { type: "button", "aria-label": "Sign out", title: "Sign out", onclick: leave },
          icon("out"),
        ),
      ),
    ),
  );
  const more = () => {
    const close = dialog(
      "More",
      h(
        "div.sheet",
        groups
          .flatMap(([, pages]) => pages)
          .filter(([name]) => !SMALL.includes(name))
          .map(([name, text]) => h("a", { href: `/ui/${name}`, onclick: () => close() }, icon(name), text)),
      ),
      h(
        "div.row.wrap",
        THEMES.map(([name, sign, text]) =>
          h(
            "button.btn.small",
            { type: "button", onclick: () => choose(name) },
            icon(sign),
            text.replace("Theme: ", ""),
          ),
        ),
      ),
      h(
        "button.btn",
        {
          type: "button",
          onclick: () => {
            close();
            leave();
          },
        },
        icon("out"),
        "Sign out",
      ),
    );
  };
  const tabbar = h(
    "nav.tabbar",
    { "aria-label": "Pages, short" },
    groups
      .flatMap(([, pages]) => pages)
      .filter(([name]) => SMALL.includes(name))
      .map(([name, text]) =>
        h("a", { href: `/ui/${name}`, "data-page": name }, icon(name), text, name === "approvals" && badge()),
      ),
    h("button", { type: "button", onclick: more }, icon("more"), "More"),
  );
  const main = h("main", { id: "main", tabindex: -1 });
  const bar = h("div.progress", { "aria-hidden": "true" });
  set(app, h("div.app", rail, h("div.content", bar, main), tabbar));

  const choose = (name) => {
    try {
      localStorage.setItem("toolrelay.theme", name);
    } catch {
      // The choice lasts until the page is loaded again.
    }
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    drawTheme();
  };
  const drawTheme = () => {
    const now = document.documentElement.dataset.theme ?? "system";
    const at = THEMES.findIndex(([name]) => name === now);
    const [, sign, text] = THEMES[at];
    set(theme, icon(sign));
    theme.setAttribute("aria-label", text);
    theme.title = `${text}. Click to change it.`;
    theme.onclick = () => choose(THEMES[(at + 1) % THEMES.length][0]);
  };
  drawTheme();

  const drawLive = (state) => {
    live.className = `live ${state === "on" ? "on" : state === "waiting" ? "off" : ""}`;
    live.lastChild.textContent = WORDS[state];
    live.title = state === "on" ? "Changes appear automatically." : "This page shows the state when it was loaded.";
  };
  const pending = (number) =>
    badges.forEach((one) => {
      one.hidden = !number;
      one.textContent = number > 99 ? "99+" : number;
      one.setAttribute("aria-label", `${number} waiting`);
    });
  on("state", drawLive);
  on("stats", (stats) => pending(stats.approvals_pending ?? 0));
  on("approval", (row) => row.status === "pending" && toast("A call waits for your approval."));
  on("end", () => {
    stop();
    signedOut();
  });
  drawLive(liveState());
  start();
  listen(pages);
  return begin({
    main,
    session,
    bar,
    shown: (name) =>
      app.querySelectorAll("[data-page]").forEach((one) => {
        const here = one.dataset.page === (PARENT[name] ?? name);
        here ? one.setAttribute("aria-current", "page") : one.removeAttribute("aria-current");
      }),
  });
}
