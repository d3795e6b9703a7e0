// The question and the answer of each run that is seen, read from the record in batches.
import { api } from "../../core/api.js";

const WAIT_MS = 40;
const MOST = 100;

/** `of(run)` is what is known of a run's texts; `changed(ids)` is called when more is known. */
export function runTexts({ signal, changed }) {
  const known = new Map();
  const wanted = new Map();
  let timer = 0;

  async function read() {
    timer = 0;
    const batch = [...wanted.values()].slice(0, MOST);
    batch.forEach((run) => wanted.delete(run.id));
    if (wanted.size) timer = setTimeout(read, WAIT_MS);
    const runs = Object.fromEntries(batch.map((run) => [run.id, run.wire]));
    const answer = await api("runs/texts", { method: "POST", body: { runs }, signal }).catch(() => null);
    const found = new Map((answer?.data ?? []).map((one) => [one.id, one]));
    for (const run of batch) known.set(run.id, { ...found.get(run.id), status: run.status });
    if (!signal.aborted) changed(new Set(batch.map((run) => run.id)));
  }

  return {
    of(run) {
      const text = known.get(run.id);
      if ((!text || text.status !== run.status) && !wanted.has(run.id)) {
        wanted.set(run.id, run);
        timer ||= setTimeout(read, WAIT_MS);
      }
      return text;
    },
    stop: () => clearTimeout(timer),
  };
}
