// The plugin's own tests, run by test_openclaw_plugin.py: `node --test`, real requests to a real server on loopback.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, afterEach, before, beforeEach, test } from "node:test";

const STATE = Symbol.for("openclaw-rl.turn-headers");
const SUMMARY = "You are a context summarization assistant. Summarise what follows.";
const realFetch = globalThis.fetch;
const realConsole = { ...console };
let server, baseUrl, seen, printed, loads = 0;

before(async () => {
  server = createServer((request, response) => {
    seen.push({ session: request.headers["x-session-id"], type: request.headers["x-turn-type"], headers: request.headers });
    const status = Number(request.headers["x-answer"] ?? 200);
    request.resume().on("end", () => response.writeHead(status, { "content-type": "application/json" }).end("{}"));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  baseUrl = `http://127.0.0.1:${server.address().port}/v1`;
});
after(() => server.close());

beforeEach(() => {
  seen = [];
  printed = [];
  for (const name of ["log", "info", "warn", "error", "debug"]) console[name] = (...words) => printed.push(words);
});
afterEach(() => {
  Object.assign(console, realConsole);
  globalThis.fetch = realFetch;
  delete globalThis[STATE];
});

// As the host does it: the module is evaluated anew each time, and given an API to register with.
async function load(config = { baseUrl }) {
  const plugin = (await import(`${process.env.PLUGIN_URL}?load=${++loads}`)).default;
  const hooks = [];
  plugin.register({ pluginConfig: config, on: (name, hook) => hooks.push([name, hook]) });
  return (context) => hooks.filter(([name]) => name === "before_prompt_build").map(([, hook]) => hook({ prompt: "secret words" }, context))[0];
}

const chat = (messages) => ({ method: "POST", body: JSON.stringify({ model: "m", messages }) });
const ask = (url = `${baseUrl}/chat/completions`, init = chat([{ role: "user", content: "hello" }])) => fetch(url, init);
const tags = () => seen.map(({ session, type }) => [session, type]);

test("a turn's requests bear its session and main", async () => {
  (await load())({ sessionId: "s1", trigger: "user", sessionKey: "agent:main:main" });
  await ask();
  await ask(new URL(`${baseUrl}/chat/completions`));
  await ask(new Request(`${baseUrl}/chat/completions`, { headers: { "x-own": "1" } }), undefined);
  assert.deepEqual(tags(), [["s1", "main"], ["s1", "main"], ["s1", "main"]]);
  assert.equal(seen[2].headers["x-own"], "1");
});

test("the client's own headers stay, and go before ours", async () => {
  (await load())({ sessionId: "s1" });
  const init = chat([]);
  await ask(undefined, { ...init, headers: { authorization: "Bearer k", "x-session-id": "own" } });
  await ask(undefined, { ...init, headers: new Headers({ "X-Turn-Type": "side" }) });
  await ask(undefined, { ...init, headers: [["authorization", "Bearer k"]] });
  assert.deepEqual(tags(), [["own", "main"], ["s1", "side"], ["s1", "main"]]);
  assert.deepEqual(seen.map(({ headers }) => headers.authorization), ["Bearer k", undefined, "Bearer k"]);
});

test("requests to other places are left alone", async () => {
  (await load())({ sessionId: "s1" });
  const other = createServer((request, response) => {
    seen.push({ session: request.headers["x-session-id"], type: request.headers["x-turn-type"] });
    response.end();
  });
  await new Promise((listening) => other.listen(0, "127.0.0.1", listening));
  await ask(`http://127.0.0.1:${other.address().port}/v1/chat/completions`);
  other.close();
  await ask(`${baseUrl}0/chat/completions`);
  await ask(baseUrl.replace("/v1", "/other"));
  assert.deepEqual(tags(), [[undefined, undefined], [undefined, undefined], [undefined, undefined]]);
});

test("nothing is added without a base URL, nor before a turn has begun", async () => {
  const none = await load({});
  none({ sessionId: "s1" });
  await ask();
  delete globalThis[STATE];
  globalThis.fetch = realFetch;
  const later = await load();
  await ask();
  later({ sessionId: "s2" });
  await ask();
  assert.deepEqual(tags(), [[undefined, undefined], [undefined, undefined], ["s2", "main"]]);
});

test("a slash at the end of the base URL makes no difference", async () => {
  (await load({ baseUrl: `${baseUrl}/` }))({ sessionId: "s1" });
  await ask();
  assert.deepEqual(tags(), [["s1", "main"]]);
});

for (const [name, context] of [
  ["heartbeat", { trigger: "heartbeat" }],
  ["memory", { trigger: "memory" }],
  ["cron", { trigger: "cron" }],
  ["a cron session", { sessionKey: "cron:nightly" }],
  ["a sub-agent", { sessionKey: "agent:main:subagent:7" }],
]) {
  test(`${name} is a side turn, and the user's next one is main again`, async () => {
    const begin = await load();
    begin({ sessionId: "s1", ...context });
    await ask();
    begin({ sessionId: "s1", trigger: "user", sessionKey: "agent:main:main" });
    await ask();
    assert.deepEqual(tags(), [["s1", "side"], ["s1", "main"]]);
  });
}

test("the summariser's request is a side turn within a main one", async () => {
  (await load())({ sessionId: "s1", trigger: "user" });
  const task = { role: "user", content: "the history" };
  await ask(undefined, chat([{ role: "system", content: SUMMARY }, task]));
  await ask(undefined, chat([{ role: "developer", content: [{ type: "text", text: SUMMARY }] }, task]));
  await ask(undefined, chat([task]));
  assert.deepEqual(tags(), [["s1", "side"], ["s1", "side"], ["s1", "main"]]);
});

test("a person who speaks of the summariser is not taken for it", async () => {
  (await load())({ sessionId: "s1", trigger: "user" });
  await ask(undefined, chat([{ role: "system", content: "Be brief." }, { role: "user", content: SUMMARY }]));
  await ask(undefined, chat([{ role: "user", content: SUMMARY }]));
  await ask(undefined, { method: "POST", body: `not JSON: ${SUMMARY}` });
  assert.deepEqual(tags(), [["s1", "main"], ["s1", "main"], ["s1", "main"]]);
});

test("retries bear the headers too, also after the run's end was announced", async () => {
  const begin = await load();
  begin({ sessionId: "s1", trigger: "user" });
  const refused = { ...chat([]), headers: { "x-answer": "503" } };
  assert.equal((await ask(undefined, refused)).status, 503);
  assert.equal((await ask(undefined, refused)).status, 503);
  assert.equal((await ask()).status, 200);
  begin(undefined); // a hook without a session leaves things as they are
  await ask();
  assert.deepEqual(tags(), Array(4).fill(["s1", "main"]));
});

test("loaded twice, it wraps fetch once and the sessions are shared", async () => {
  const first = await load();
  const wrapped = globalThis.fetch;
  const second = await load();
  assert.equal(globalThis.fetch, wrapped);
  first({ sessionId: "s1" });
  await ask();
  second({ sessionId: "s2", trigger: "cron" });
  await ask();
  assert.deepEqual(tags(), [["s1", "main"], ["s2", "side"]]);
});

test("the system prompt is replaced where one is configured", async () => {
  assert.deepEqual((await load({ baseUrl, systemPrompt: "Be brief." }))({ sessionId: "s1" }), { systemPrompt: "Be brief." });
  assert.equal((await load())({ sessionId: "s1" }), undefined);
});

test("nothing is printed", async () => {
  const begin = await load();
  begin({ sessionId: "s1", trigger: "user" });
  await ask();
  assert.deepEqual(printed, []);
});
