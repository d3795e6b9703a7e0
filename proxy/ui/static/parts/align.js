// Bytes of two sides beside each other: rows of what happened to them, and when each arrived.

/** The legs, decoded: `Map(id → {…leg, bytes: Uint8Array, at(offset) → ms})`. */
export function legsOf(wire) {
  const legs = new Map(wire.legs.map((leg) => [leg.id, { ...leg, parts: [] }]));
  for (const chunk of wire.chunks) legs.get(chunk.leg)?.parts.push(chunk);
  for (const leg of legs.values()) {
    leg.parts.sort((a, b) => a.start - b.start);
    const all = leg.parts.map((part) => decode(part.data));
    const bytes = new Uint8Array(all.reduce((sum, one) => sum + one.length, 0));
    let at = 0;
    for (const one of all) {
      bytes.set(one, at);
      at += one.length;
    }
    leg.data = bytes;
    leg.at = (offset) => {
      // The last part that begins at or before the offset.
      let from = 0;
      let to = leg.parts.length;
      while (from < to) {
        const half = (from + to) >> 1;
        if (leg.parts[half].start > offset) to = half;
        else from = half + 1;
      }
      return leg.parts[Math.max(0, from - 1)]?.at_ms ?? 0;
    };
  }
  return legs;
}

const decode = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

/** Bytes as text; bytes that are not UTF-8 become replacement characters. */
export const textOf = (leg, [from, to]) => utf8.decode(leg.data.subarray(from, to));

/** Bytes as hex and ASCII, sixteen a line. */
export function hexOf(leg, [from, to]) {
  const lines = [];
  for (let at = from; at < to; at += 16) {
    const row = [...leg.data.subarray(at, Math.min(to, at + 16))];
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${row.map(drawn).join("")}`);
  }
  return lines.join("\n");
}

/** Rows in the order of time: `{kind, a, b, left, right, at, why}`. */
export function rowsOf(pair, legs) {
  const [left, right] = pair.between.map((id) => legs.get(id));
  return pair.spans.map((span) => {
    const moments = [];
    if (left && span.a[1] > span.a[0]) moments.push(left.at(span.a[1] - 1));
    if (right && span.b[1] > span.b[0]) moments.push(right.at(span.b[1] - 1));
    return {
      ...span,
      left,
      right,
      at: moments.length ? Math.max(...moments) : 0,
      arrives: Math.min(...(moments.length ? moments : [0])),
    };
  });
}

/** What two texts have in common at both ends, so that only the middle is marked. */
export function middle(a, b) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  return [
    [a.slice(0, head), a.slice(head, a.length - tail), a.slice(a.length - tail)],
    [b.slice(0, head), b.slice(head, b.length - tail), b.slice(b.length - tail)],
  ];
}

/** A byte as its letter, or as a dot. */
const drawn = (one) => (one > 31 && one < 127 ? String.fromCharCode(one) : "·");
