// Links and pictures in texts of others: only http and https leave the page, and the host is always seen.
import { h } from "../../core/dom.js";
import { bytes } from "../../core/format.js";
import { icon } from "../../core/icons.js";

const MAGIC = {
  "image/png": "iVBORw0KGgo",
  "image/jpeg": "/9j/",
  "image/webp": "UklGR",
  "image/gif": "R0lGOD",
};
const LONGEST = 2048;

/** The address as a URL if a browser may open it: http or https, without a name and a password. */
export function webAddress(text) {
  if (typeof text !== "string" || text.length > LONGEST) return null;
  try {
    const url = new URL(text);
    return (url.protocol === "https:" || url.protocol === "http:") && !url.username && !url.password ? url : null;
  } catch {
    return null;
  }
}

/** A link that leaves the page; text without a link if the address is of another kind. */
export function outside(address, ...label) {
  const url = webAddress(address);
  if (!url) return h("span.isolate", label.length ? label : address, label.length > 0 && ` (${address})`);
  const link = h(
    "a.outside",
    { target: "_blank", rel: "noopener noreferrer nofollow" },
    label.length ? label : address,
  );
  link.href = url.href;
  // A label may name another host than the one that the link opens.
  return label.length ? h("span", link, h("span.host", { dir: "ltr" }, url.host)) : link;
}

/** Whether base64 data begins as the named kind of picture does. */
export const isPicture = (data, kind) =>
  Boolean(MAGIC[kind] && data.startsWith(MAGIC[kind]) && /^[A-Za-z0-9+/]+=*$/.test(data));

/** A picture: its kind and size, and itself once somebody asks to see it. */
export function picture({ media_type: kind = "image", data, bytes: size, url }) {
  if (url) return h("span.badge", icon("image"), outside(url, "Image at"));
  const name = [kind, size ? bytes(size) : ""].filter(Boolean).join(", ");
  if (typeof data !== "string" || !isPicture(data, kind)) return h("span.badge", icon("image"), name);
  const show = () => button.replaceWith(h("img.shot", { src: `data:${kind};base64,${data}`, alt: `Image, ${name}` }));
  const button = h("button.btn.small", { type: "button", onclick: show }, icon("image"), `Show image (${name})`);
  return button;
}

/** `data:image/png;base64,…` as a picture's parts; null for any other address. */
export function inlinePicture(address) {
  const found = /^data:(image\/[a-z]+);base64,/.exec(address.slice(0, 40));
  if (!found) return null;
  const data = address.slice(found[0].length);
  return { media_type: found[1], data, bytes: Math.floor((data.length * 3) / 4) };
}
