// The side of the bridge that runs in V8, beside a hostile program.
//
// What it uses of the language is taken before the program runs, and only texts go out, made of pieces that
// the program cannot replace. Nothing of the host is here: whatever a program breaks is its own.
(given) => {
  "use strict";
  let [names, now, seed, mostCalls] = given;
  const { parse, stringify } = JSON;
  const { apply, construct, ownKeys, defineProperty } = Reflect;
  const { create, freeze } = Object;
  const { then } = Promise.prototype;
  const { slice, startsWith } = String.prototype;
  const [Failure, TypeFailure, RangeFailure, Pending, asText] = [Error, TypeError, RangeError, Promise, String];
  const AsyncFunction = (async () => {}).constructor;
  const mostText = 1 << 18;
  const mostImage = 4 << 20;
  const mostImages = 4;

  // No clock, no chance, no threads, nothing that depends on when memory is freed.
  const RealDate = Date;
  function FixedDate(...given) {
    if (new.target === undefined) return new RealDate(now).toString();
    return construct(RealDate, given.length === 0 ? [now] : given, new.target);
  }
  FixedDate.prototype = RealDate.prototype;
  FixedDate.parse = RealDate.parse;
  FixedDate.UTC = RealDate.UTC;
  FixedDate.now = () => now;
  defineProperty(RealDate.prototype, "constructor", { value: FixedDate });
  const replaced = { Date: FixedDate };
  Math.random = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  delete Intl.DateTimeFormat;
  for (const name of ["console", "setTimeout", "clearTimeout", "__timer_manager", "__TimerManager", "Atomics",
    "SharedArrayBuffer", "WebAssembly", "WeakRef", "FinalizationRegistry", "Temporal", "ShadowRealm"]) {
    // Some were declared with var, so they cannot be deleted.
    if (!Reflect.deleteProperty(globalThis, name)) globalThis[name] = undefined;
  }
  for (const name of ownKeys(replaced)) defineProperty(globalThis, name, { value: replaced[name], writable: true });

  const open = create(null);
  let [count, unanswered, fresh, text, texts, images, imageCount] = [0, 0, "", "", 0, "", 0];
  let done = false;
  let failure;

  const written = (value) => (typeof value === "string" ? value : stringify(value) ?? asText(value));

  const call = (name, given) => {
    const argument = given === undefined ? "{}" : stringify(given);
    if (argument === undefined || !apply(startsWith, argument, ["{"])) {
      throw new TypeFailure("tools." + name + " takes one object with the arguments by their names");
    }
    if (unanswered >= mostCalls) throw new RangeFailure("at most " + mostCalls + " calls can wait at once");
    const id = ++count;
    unanswered += 1;
    fresh += (fresh && ",") + "[" + id + "," + stringify(name) + "," + stringify(argument) + "]";
    return new Pending((resolve, reject) => {
      open[id] = { __proto__: null, resolve, reject };
    });
  };
  const tools = create(null);
  for (const name of names) tools[name] = freeze(async (given) => call(name, given));
  freeze(tools);

  const put = (value) => {
    const said = written(value);
    if (text.length + said.length > mostText) throw new RangeFailure("a program can put out " + mostText + " characters");
    text += (texts++ ? "\n" : "") + said;
  };
  const picture = (value) => {
    const url = typeof value === "object" && value !== null ? value.image_url : value;
    if (typeof url !== "string" || !apply(startsWith, url, ["data:image/"])) {
      throw new TypeFailure("image(...) takes an image as a data: URL");
    }
    if (imageCount >= mostImages || url.length > mostImage) {
      throw new RangeFailure("a program can put out " + mostImages + " images of " + mostImage + " characters each");
    }
    imageCount += 1;
    images += (images && ",") + stringify(url);
  };
  const described = (error) => {
    try {
      const stack = typeof error === "object" && error !== null ? error.stack : undefined;
      return apply(slice, typeof stack === "string" && stack ? stack : asText(error), [0, 4000]);
    } catch {
      return "the program threw something that cannot be shown";
    }
  };
  const fail = (error) => {
    failure = described(error);
  };

  const start = (code) => {
    try {
      const program = new AsyncFunction("tools", "text", "image", code)(tools, put, picture);
      apply(then, program, [(value) => {
        if (value !== undefined) put(value);
        done = true;
      }, fail]);
    } catch (error) {
      fail(error);
    }
  };
  const resume = (results) => {
    const given = parse(results);
    for (const id of ownKeys(given)) {
      const waits = open[id];
      delete open[id];
      unanswered -= 1;
      const answer = parse(given[id]);
      if (answer.ok) waits.resolve(answer.value);
      else waits.reject(new Failure(answer.message));
    }
  };
  const take = () => {
    const said = ',"text":' + stringify(text);
    if (failure !== undefined) return '{"error":' + stringify(failure) + said + "}";
    if (fresh) {
      const calls = fresh;
      fresh = "";
      return '{"calls":[' + calls + "]" + said + "}";
    }
    if (done) return '{"images":[' + images + "]" + said + "}";
    return '{"error":"the program waits for something that never comes"' + said + "}";
  };
  return (message, value) => {
    if (message === "take") return take();
    if (message === "start") start(value);
    else resume(value);
  };
}
