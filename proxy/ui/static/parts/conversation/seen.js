// What the model was really sent: the requests to the upstream, if the bytes of the run were kept.
import { api } from "../../core/api.js";
import { h } from "../../core/dom.js";
import { bytes } from "../../core/format.js";
import { json } from "../json.js";
import { copyButton, empty } from "../page.js";

/** The bytes of one side of one request. */
export function bodyOf(wire, leg) {
  const parts = wire.chunks
    .filter((one) => one.leg === leg)
    .map((one) => Uint8Array.from(atob(one.data), (sign) => sign.charCodeAt(0)));
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return new TextDecoder().decode(whole);
}

export async function seen(path, signal) {
  const wire = await api(`${path}/wire`, { signal });
  const legs = wire.legs.filter((leg) => leg.side === "upstream" && leg.direction === "out");
  if (!wire.captured || !legs.length)
    return empty(
      "wire",
      "The requests to the model were not kept",
      wire.reason ?? "With store.content = “all” and an encrypted record, later runs keep them.",
    );
  return h(
    "div.body.col",
    h(
      "p.soft",
      "These are the requests as they went to the upstream, with the tools and the results that the proxy put in.",
    ),
    legs.map((leg, index) => sent(wire, leg, index === 0)),
  );
}

function sent(wire, leg, open) {
  const text = bodyOf(wire, leg.id);
  let value = text;
  try {
    value = JSON.parse(text);
  } catch {
    // It was cut, or is no JSON: it is shown as text.
  }
  const size = `${bytes(leg.bytes)}${leg.truncated ? ", cut" : ""}`;
  return h(
    "details.folded",
    { open },
    h("summary", h("span", `Request of turn ${leg.turn}`), h("span.muted", size)),
    h("div.body.col", h("div.row.end", copyButton(text, "request")), h("div.code", json(value, { open: 4 }))),
  );
}
