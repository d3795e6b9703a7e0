// How a tool's call looks in a conversation.  Some tools have their own view; all others have the general one.
import { h, set } from "../core/dom.js";
import { duration } from "../core/format.js";
import { icon } from "../core/icons.js";
import { toolName } from "../parts/badges.js";
import { json } from "../parts/json.js";

const VIEWS = {
  core__get_weather: weather,
  core__get_current_time: clock,
};

/** `{element, update(trace), progress(trace)}` for a call: a summary line, and the details below it. */
export function toolView(trace) {
  const sign = h("span", h("i.spin"));
  const words = h("span.muted.cut.grow");
  const took = h("span.muted.small.nowrap");
  const body = h("div.body");
  const element = h(
    "details.call",
    h("summary", sign, h("span.name", toolName(trace.name ?? "tool")), words, took),
    body,
  );
  const known = { ...trace };
  return {
    element,
    update(next) {
      Object.assign(known, next);
      const done = known.status === "completed" || known.status === "failed";
      set(
        sign,
        done
          ? icon(known.status === "completed" ? "check" : "cross", known.status === "completed" ? "ok" : "bad")
          : h("i.spin"),
        h("span.unseen", done ? known.status : "runs"),
      );
      set(took, done && known.ms !== undefined ? duration(known.ms / 1000) : "");
      set(words, brief(known));
      const own = known.status === "completed" && VIEWS[known.name]?.(known.result);
      set(
        body,
        own,
        known.arguments !== undefined && [h("h3.small.muted", "Arguments"), h("div.code", json(known.arguments))],
        known.result !== undefined &&
          known.result !== null && [h("h3.small.muted", "Result, redacted"), h("div.code", json(known.result))],
        known.error && [
          h("h3.small.muted", "Error"),
          h(
            "div.code.stranger",
            known.error.code ?? "",
            known.error.code && known.error.message ? ": " : "",
            known.error.message ?? "",
          ),
        ],
        images(known.result),
      );
    },
    progress(next) {
      set(words, next.total ? `${Math.round((next.progress / next.total) * 100)} %` : `step ${next.progress}`);
    },
  };
}

function brief(known) {
  if (known.error) return known.error.code ?? "failed";
  const values = known.arguments && typeof known.arguments === "object" ? Object.values(known.arguments) : [];
  return values
    .filter((one) => one !== null && typeof one !== "object")
    .join(", ")
    .slice(0, 120);
}

/** Images in a result: their kind and size, until somebody asks to see one. */
function images(result) {
  const found = (Array.isArray(result?.images) ? result.images : []).slice(0, 16);
  return found.map((image) => {
    const data = typeof image?.data === "string" ? image.data : null;
    const kind = image?.media_type ?? image?.mime_type ?? image?.type ?? "image";
    const name = `${kind}${image?.bytes ? `, ${image.bytes} bytes` : ""}`;
    if (!data || !signature(data, kind)) return h("span.badge", icon("image"), name);
    const button = h(
      "button.btn.small",
      {
        type: "button",
        onclick: () =>
          button.replaceWith(
            h("img.shot", { src: `data:${kind};base64,${data}`, alt: "An image of the tool’s result" }),
          ),
      },
      icon("image"),
      `Show ${name}`,
    );
    return button;
  });
}

const MAGIC = { "image/png": "iVBORw0KGgo", "image/jpeg": "/9j/", "image/webp": "UklGR", "image/gif": "R0lGOD" };
const signature = (data, kind) =>
  Boolean(MAGIC[kind] && data.startsWith(MAGIC[kind]) && /^[A-Za-z0-9+/]+=*$/.test(data));

function weather(result) {
  const degrees = result?.temperature_c ?? result?.temperature ?? result?.current?.temperature_c;
  if (typeof degrees !== "number") return null;
  const place = result.location ?? result.city ?? result.place;
  return h(
    "div.row",
    { style: { gap: "1rem" } },
    h("strong", { style: { "font-size": "1.9rem", "letter-spacing": "-.03em" } }, `${degrees.toFixed(1)} °C`),
    h(
      "div",
      h("div", typeof place === "string" ? place : ""),
      h("div.muted", typeof result.conditions === "string" ? result.conditions : ""),
    ),
  );
}

function clock(result) {
  const now = result?.time ?? result?.datetime ?? result?.iso ?? result?.now;
  if (typeof now !== "string") return null;
  return h("strong", { style: { "font-size": "1.3rem" } }, now);
}
