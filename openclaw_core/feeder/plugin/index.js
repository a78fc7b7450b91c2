// Tells an openclaw-rl gateway whose turn a model request is and whether it is trained on: X-Session-Id and X-Turn-Type.
//
// A hook notes the session whenever a prompt is built; a wrapper round fetch writes it on requests to the gateway. What was
// noted is never cleared: a run's end is announced late, when the retry after a context overflow has begun already. One
// conversation at a time in a process, as `openclaw agent --local` has it. Nothing is logged.

const STATE = Symbol.for("openclaw-rl.turn-headers"); // the module is loaded several times in one process
const SIDE_TRIGGERS = new Set(["heartbeat", "memory", "cron"]);
const SIDE_SESSIONS = /(^|:)(cron|subagent):/;
const SUMMARISER = "You are a context summarization assistant"; // how the agent's compaction prompt begins

function urlOf(input) {
  return typeof input === "string" ? input : (input?.url ?? String(input));
}

function isSummary(body) {
  if (typeof body !== "string" || !body.includes(SUMMARISER)) return false;
  try {
    const [first] = JSON.parse(body).messages;
    const text = typeof first.content === "string" ? first.content : first.content.map((part) => part.text).join("");
    return first.role !== "user" && text.startsWith(SUMMARISER);
  } catch {
    return false; // no chat request: nothing that is summarised
  }
}

function wrap(state) {
  const inner = globalThis.fetch;
  globalThis.fetch = function fetch(input, init) {
    if (!state.turn || !state.prefix || !urlOf(input).startsWith(state.prefix)) return inner.call(this, input, init);
    const headers = new Headers(init?.headers ?? input.headers);
    const own = { "X-Session-Id": state.turn.session, "X-Turn-Type": isSummary(init?.body) ? "side" : state.turn.type };
    for (const [name, value] of Object.entries(own)) if (!headers.has(name)) headers.set(name, value);
    return inner.call(this, input, { ...init, headers });
  };
}

export default {
  id: "openclaw-rl",
  register(api) {
    const { baseUrl, systemPrompt } = api.pluginConfig ?? {};
    let state = globalThis[STATE];
    if (!state) wrap((state = globalThis[STATE] = { turn: null, prefix: "" }));
    state.prefix = baseUrl ? `${baseUrl.replace(/\/+$/, "")}/` : "";
    api.on("before_prompt_build", (_event, context) => {
      const side = SIDE_TRIGGERS.has(context?.trigger) || SIDE_SESSIONS.test(context?.sessionKey ?? "");
      if (context?.sessionId) state.turn = { session: context.sessionId, type: side ? "side" : "main" };
      return systemPrompt ? { systemPrompt } : undefined;
    });
  },
};
