// One EventSource for the page.  Without it, every page still works after a reload.
const EVENTS = ["hello", "run", "reset", "approval", "capture", "stats", "end"];
const listeners = new Map();
let source = null;
let state = "off";
let retry = 0;

/** Call `act(data)` for each event of a name until `signal` fires.  The event `state` has "on", "waiting" or "off". */
export function on(name, act, signal) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(act);
  signal?.addEventListener("abort", () => listeners.get(name).delete(act));
}

const tell = (name, data) => listeners.get(name)?.forEach((act) => act(data));

function become(next) {
  if (next === state) return;
  state = next;
  tell("state", next);
}

export const liveState = () => state;

export function start() {
  stop();
  source = new EventSource("/ui/api/events");
  source.onopen = () => become("on");
  source.onerror = () => {
    become("waiting");
    // The browser reconnects by itself unless the server refused; then try again every ten seconds.
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(retry);
      retry = setTimeout(start, 10_000);
    }
  };
  for (const name of EVENTS)
    source.addEventListener(name, (event) => {
      let data = null;
      try {
        data = JSON.parse(event.data);
      } catch {
        return; // Not JSON.
      }
      tell(name, data);
    });
}

export function stop() {
  clearTimeout(retry);
  source?.close();
  source = null;
  become("off");
}

addEventListener("pagehide", stop);
addEventListener("pageshow", (event) => event.persisted && start());
