// The playground: a client like any other, which knows about tools only from the stream.
import { api } from "../core/api.js";
import { add, h, say, set, toast } from "../core/dom.js";
import { duration, number, shortId } from "../core/format.js";
import { icon } from "../core/icons.js";
import { on } from "../core/live.js";
import { toolView } from "../client/views.js";
import { askCard } from "../parts/approvals/ask.js";
import { DIALECTS, streamPlay } from "../client/dialects.js";
import { empty, head, note } from "../parts/page.js";
import { intro } from "../parts/play/intro.js";
import { asked, requestPanel } from "../parts/play/panel.js";

const MOST_IMAGE = 4_000_000;
const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const STORE = "toolrelay.play";

export async function show({ query, session, signal }) {
  if (session.playground && !session.playground.allowed) {
    return {
      title: "Playground",
      node: [head("Playground"), h("div.card", empty("play", "The playground is off", session.playground.reason))],
    };
  }
  const models = await api("play/v1/models", { signal }).then(
    (list) => list.data.map((one) => one.id),
    () => [],
  );
  const options = {
    dialect: query.get("dialect") in DIALECTS ? query.get("dialect") : "chat",
    model: query.get("model") ?? session.demo?.model ?? models.find((one) => !one.includes("*")) ?? "",
    system: "",
    max_tokens: "",
    temperature: "",
    tools: "",
    further: "",
  };
  let talk = stored();
  let images = [];
  let running = null;

  const log = h("div.scroll", { tabindex: 0, "aria-label": "Conversation", role: "log", "aria-live": "off" });
  const field = h("textarea.input", {
    rows: 1,
    placeholder: "Ask something",
    "aria-label": "Your message",
    onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    },
    onpaste: (event) => [...(event.clipboardData?.files ?? [])].forEach(attach),
  });
  const thumbs = h("div.thumbs");
  const file = h("input", {
    type: "file",
    accept: KINDS.join(),
    multiple: true,
    hidden: true,
    "aria-label": "Images",
    onchange: () => {
      [...file.files].forEach(attach);
      file.value = "";
    },
  });
  const button = h("button.btn.main.icon-only", { type: "submit", "aria-label": "Send" }, icon("send"));
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        running ? running.abort() : send();
      },
    },
    thumbs,
    h(
      "div.box",
      h(
        "button.btn.ghost.icon-only",
        { type: "button", "aria-label": "Add an image", title: "Add an image", onclick: () => file.click() },
        icon("image"),
      ),
      file,
      field,
      button,
    ),
  );

  function attach(one) {
    if (!KINDS.includes(one.type)) return toast("Only PNG, JPEG, WebP and GIF images can be sent.");
    if (one.size > MOST_IMAGE) return toast("An image may be at most 4 MB large.");
    const reader = new FileReader();
    reader.onload = () => {
      images.push(reader.result);
      drawThumbs();
    };
    reader.readAsDataURL(one);
  }

  function drawThumbs() {
    set(
      thumbs,
      images.map((url, at) =>
        h(
          "button",
          {
            type: "button",
            "aria-label": `Remove image ${at + 1}`,
            style: { border: 0, padding: 0, background: "none" },
            onclick: () => {
              images.splice(at, 1);
              drawThumbs();
            },
          },
          h("img", { src: url, alt: "" }),
        ),
      ),
    );
  }

  function start() {
    set(log, talk.length ? talk.map((one) => (one.role === "user" ? mine(one) : drawn(one))) : intro(session, ask));
    bottom();
  }

  const ask = (question) => {
    const dialect = Object.keys(DIALECTS).find((id) => DIALECTS[id].path === question.path);
    if (dialect) panel.put("dialect", dialect);
    panel.put("further", question.further ? JSON.stringify(question.further) : "");
    field.value = question.text;
    send();
  };
  // What an empty playground offers begins at its top.
  const bottom = () => (log.scrollTop = talk.length ? log.scrollHeight : 0);

  async function send(again = false) {
    const words = field.value.trim();
    if (running || (!again && !words && !images.length)) return;
    if (!talk.length) set(log);
    if (!again) {
      const message = { role: "user", content: words, ...(images.length && { images }) };
      talk.push(message);
      add(log, mine(message));
      field.value = "";
      images = [];
      drawThumbs();
    }
    let body;
    try {
      body = asked(
        options,
        talk.map(({ role, content, images: sent }) => ({ role, content, images: sent })),
      );
    } catch {
      return add(log, h("div.turn", note("bad", "Further fields must be a JSON object.")));
    }
    running = new AbortController();
    signal.addEventListener("abort", () => running?.abort());
    set(button, icon("stop"));
    button.setAttribute("aria-label", "Stop");
    const view = answer();
    add(log, view.element);
    bottom();
    const began = performance.now();
    let first = null;
    let run = null;
    try {
      run = await streamPlay(
        options.dialect,
        body,
        options.tools ? { "x-toolrelay-tools": options.tools } : {},
        (kind, value) => {
          first ??= performance.now() - began;
          const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
          view.tell(kind, value);
          if (near) bottom();
        },
        running.signal,
      );
    } catch (error) {
      view.tell("error", error.name === "AbortError" ? "You stopped the answer." : error.message);
    }
    const took = performance.now() - began;
    if (run) await waiting(run, view);
    running = null;
    set(button, icon("send"));
    button.setAttribute("aria-label", "Send");
    if (signal.aborted) return;
    view.done({ first, took, run });
    const said = view.said();
    talk.push({
      role: "assistant",
      content: said.text || "",
      calls: said.calls,
      after: { first, took, run, usage: said.usage, end: said.end },
    });
    save();
    say(said.text ? `The answer: ${said.text.slice(0, 300)}` : "The answer has ended.");
    bottom();
  }

  /** Shows the calls that wait for a decision: the answer names them, and they are of its own run or its agents'. */
  async function waiting(run, view) {
    const ids = [...new Set(view.said().text.match(/appr_[0-9a-f]{32}/g) ?? [])].slice(0, 16);
    const rows = await Promise.all(ids.map((id) => api(`approvals/${id}`, { signal }).catch(() => null)));
    const waits = rows.filter((row) => row?.status === "pending");
    const detail = waits.some((row) => row.run_id !== run) && (await api(`runs/${run}`, { signal }).catch(() => null));
    const own = [run, ...(detail?.agent_runs ?? []).map((one) => one.id)];
    waits.filter((row) => own.includes(row.run_id)).forEach((row) => view.tell("approval", row));
  }

  function mine(message) {
    return h(
      "div.turn.me",
      message.images?.length > 0 &&
        h(
          "div.thumbs",
          message.images.map((url) => h("img", { src: url, alt: "An image that you sent" })),
        ),
      message.content && h("div.says.stranger", message.content),
    );
  }

  /** One answer as it arrives: text as text nodes, a badge for each call. */
  function answer() {
    const calls = h("div.col");
    const thinking = h("details", { hidden: true }, h("summary.muted.small", "Thinking"), h("div.thinking.stranger"));
    const text = h("div.says.stranger.writing");
    const approvals = h("div.col");
    const further = h(
      "div.row",
      { hidden: true },
      h(
        "button.btn",
        {
          type: "button",
          onclick: () => {
            further.hidden = true;
            field.value = "Go on.";
            send();
          },
        },
        icon("play"),
        "Continue",
      ),
    );
    const goOn = () => (further.hidden = [...approvals.children].some((one) => one.querySelector("[data-act]")));
    const trouble = h("div.col");
    const after = h("div.after", h("span", h("i.spin"), " waiting"));
    const element = h(
      "article.turn",
      { "aria-label": "Answer" },
      thinking,
      calls,
      text,
      approvals,
      further,
      trouble,
      after,
    );
    const seen = new Map();
    const state = { text: "", usage: {}, end: null, calls: [] };
    const call = (value) => {
      let one = seen.get(value.call_id);
      if (!one) {
        one = toolView(value);
        seen.set(value.call_id, one);
        add(calls, one.element);
      }
      return one;
    };
    return {
      element,
      tell(kind, value) {
        if (kind === "text") {
          state.text += value;
          add(text, value);
        } else if (kind === "thinking") {
          thinking.hidden = false;
          add(thinking.lastChild, value);
        } else if (kind === "call") call(value).update(value);
        else if (kind === "progress") call(value).progress(value);
        else if (kind === "result") {
          call(value).update(value);
          state.calls.push(value);
        } else if (kind === "approval") add(approvals, askCard(value, { inline: true, decided: goOn }));
        else if (kind === "client-call")
          add(
            calls,
            note(
              "info",
              "The model called ",
              h("code", value),
              ", a function that this client did not declare or cannot run.",
            ),
          );
        else if (kind === "usage") Object.assign(state.usage, value);
        else if (kind === "end") state.end = value;
        else if (kind === "error") add(trouble, note("bad", value));
      },
      said: () => state,
      done: (facts) => {
        text.classList.remove("writing");
        if (!state.text) text.hidden = true;
        set(
          after,
          footer({ ...facts, usage: state.usage, end: state.end }),
          h("button.btn.ghost.small", { type: "button", onclick: () => again(element) }, icon("replay"), "Again"),
        );
      },
    };
  }

  function again(element) {
    if (running || talk.at(-1)?.role !== "assistant") return;
    talk.pop();
    element.remove();
    send(true);
  }

  /** A kept answer, drawn again. */
  function drawn(message) {
    const view = answer();
    message.calls?.forEach((call) => view.tell("result", call));
    if (message.content) view.tell("text", message.content);
    view.tell("usage", message.after?.usage ?? {});
    view.done(message.after ?? {});
    return view.element;
  }

  function footer({ first, took, run, usage, end }) {
    return [
      run && h("a", { href: `/ui/runs/${run}` }, `Run ${shortId(run)}`),
      took !== undefined && h("span", duration(took / 1000)),
      first !== null && first !== undefined && h("span", `first event ${duration(first / 1000)}`),
      usage?.output !== undefined && h("span", `${number(usage.input)} → ${number(usage.output)} tokens`),
      end && !["stop", "completed", "end_turn"].includes(end) && h("span", end),
    ];
  }

  function save() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(talk.map(({ images: sent, ...rest }) => rest).slice(-40)));
    } catch {
      // Too much to keep, or storage is off: the conversation lasts as long as the page.
    }
  }

  function stored() {
    try {
      return JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
    } catch {
      return [];
    }
  }

  function clear() {
    running?.abort();
    talk = [];
    save();
    start();
    field.focus();
  }

  const panel = requestPanel(options, models, () => [
    ...talk.map(({ role, content }) => ({ role, content })),
    ...(field.value.trim() ? [{ role: "user", content: field.value.trim() }] : []),
  ]);

  on("approval", (row) => document.dispatchEvent(new CustomEvent("toolrelay:approval", { detail: row })), signal);
  start();
  return {
    title: "Playground",
    class: "full play-page",
    node: [
      head("Playground", null, h("button.btn", { type: "button", onclick: clear }, icon("plus"), "New conversation")),
      h("div.play", h("section.card.talk", { "aria-label": "Conversation" }, log, h("div.composer", form)), panel.node),
    ],
    shown: bottom,
  };
}
