// The address is the state: each page reads it, and Back works.
import { set, say, h } from "./dom.js";
import { failure } from "../parts/page.js";

const ROUTES = [
  [/^\/ui\/?$/, "runs"],
  [/^\/ui\/runs$/, "runs"],
  [/^\/ui\/runs\/(?<id>[A-Za-z0-9_-]+)$/, "run"],
  [/^\/ui\/runs\/(?<id>[A-Za-z0-9_-]+)\/wire$/, "wire"],
  [/^\/ui\/compare$/, "compare"],
  [/^\/ui\/play$/, "play"],
  [/^\/ui\/approvals$/, "approvals"],
  [/^\/ui\/tools$/, "tools"],
  [/^\/ui\/mcp$/, "mcp"],
  [/^\/ui\/keys$/, "keys"],
  [/^\/ui\/usage$/, "usage"],
  [/^\/ui\/upstreams$/, "upstreams"],
  [/^\/ui\/settings$/, "settings"],
];

/** The pages that a session may open; null for all.  The server refuses the data of the others. */
export function pagesOf(session) {
  if (session.role === "admin") return null;
  return [session.own_runs && "runs", session.role === "approver" && "approvals"].filter(Boolean);
}

const PART_OF = { run: "runs" };
let main = null;
let session = null;
let bar = null;
let onShown = () => {};
let current = null;

/** Start to show pages in `main`; `shown(name)` is called for each. */
export function begin(parts) {
  ({ main, session, bar, shown: onShown } = parts);
  return show();
}

/** Go to an address of ours. */
export function go(href, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  return show();
}

/** Write what a page shows into the address, without drawing it again. */
export function remember(query) {
  history.replaceState(null, "", location.pathname + query);
}

/** The current page again, from its data. */
export const reload = () => show({ same: true });

async function show({ same = false } = {}) {
  current?.abort();
  const own = (current = new AbortController());
  const found = ROUTES.map(([pattern, name]) => [pattern.exec(location.pathname), name]).find(([match]) => match);
  const pages = pagesOf(session);
  const allowed = !pages || pages.includes(PART_OF[found?.[1]] ?? found?.[1]);
  const name = allowed ? found?.[1] : pages[0];
  onShown(name ?? "");
  const slow = setTimeout(() => bar.classList.add("on"), 150);
  let view;
  try {
    if (!name) throw new Error("There is no page at this address.");
    const page = await import(`../pages/${name}.js`);
    view = await page.show({
      params: found?.[0].groups ?? {},
      query: new URLSearchParams(location.search),
      session,
      signal: own.signal,
    });
  } catch (error) {
    if (own.signal.aborted || error.name === "AbortError" || !main.isConnected) return;
    view = { title: "Something went wrong", node: failure(error, reload) };
  } finally {
    clearTimeout(slow);
    if (!own.signal.aborted) bar.classList.remove("on");
  }
  if (own.signal.aborted) return;
  document.title = `${view.title} · toolrelay`;
  set(main, h("div.page", { class: view.class ?? "" }, view.node));
  main.scrollTop = 0;
  view.shown?.();
  if (same) return;
  const head = main.querySelector("h1");
  if (head && document.activeElement?.closest?.("dialog") === null) {
    head.tabIndex = -1;
    head.focus({ preventScroll: true });
  }
  say(view.title);
}

addEventListener("popstate", () => main && show());
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (
    !link ||
    !main ||
    event.defaultPrevented ||
    event.button !== 0 ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (!link.pathname.startsWith("/ui") || link.pathname.startsWith("/ui/api/")) return;
  if (link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
