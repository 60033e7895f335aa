// Follows a Capstan server at the default limits of the package `ws`.
//
// Usage: follow.mjs PACKAGES URL run INPUT | conversation ID. Prints one line of JSON: what came, and the largest frame in bytes. A
// connection that is closed ends the program with an error: it never connects again.

import { strict as assert } from "node:assert";
import { createRequire } from "node:module";

const [packages, base, task, subject] = process.argv.slice(2);
const WebSocket = createRequire(`${packages}/`)("ws");

const get = async (path) => (await fetch(base + path)).json();

let largest = 0;
const queue = [];
let wake = () => {};
const socket = new WebSocket(`${base.replace("http", "ws")}/api/v1/ws`, ["capstan.v1"]);
socket.on("message", (data) => {
  largest = Math.max(largest, data.length);
  queue.push(JSON.parse(data.toString()));
  wake();
});
socket.on("close", (code) => {
  console.error(`closed with ${code}`);
  process.exit(1);
});
await new Promise((resolve) => socket.on("open", resolve));

async function* frames() {
  for (;;) {
    while (queue.length > 0) yield queue.shift();
    await new Promise((resolve) => (wake = resolve));
  }
}

const send = (method, params) => socket.send(JSON.stringify({ id: 1, method, params }));
const said = (message) => [message.id, [...message.parts[0].text].length];

async function followRun(input) {
  send("run.start", { input });
  const [kinds, images] = [[], []];
  for await (const { type, data } of frames()) {
    kinds.push(type);
    if (type === "tool.completed") images.push(...data.content.filter((part) => part.type === "image"));
    if (type === "stream.end") return { kinds, images };
  }
}

async function followConversation(id) {
  send("subscribe", { conversation_id: id });
  let snapshot;
  for await (const { type, data } of frames()) {
    if (type === "stream.snapshot") {
      snapshot = data;
      break;
    }
  }
  let [messages, before, pages] = [snapshot.messages, snapshot.before, 0];
  while (before !== null) {
    const page = await get(`/api/v1/conversations/${id}/messages?limit=100&before=${before}`);
    [messages, before, pages] = [[...page.data, ...messages], page.next_cursor, pages + 1];
  }
  send("subscribe", { conversation_id: id, after: 0 });
  const logged = [];
  let shortened = 0;
  for await (let event of frames()) {
    if (event.seq === undefined) continue;
    if (event.shortened !== undefined) {
      shortened += 1;
      const [whole] = (await get(event.shortened.url)).data;
      assert.deepEqual([whole.seq, whole.type], [event.seq, event.type]);
      event = whole;
    }
    if (event.type === "message.created") logged.push(said(event.data.message));
    if (event.seq === snapshot.head) break;
  }
  return { shown: snapshot.messages.length, pages, shortened, paged: messages.map(said), logged };
}

const found = await { run: followRun, conversation: followConversation }[task](subject);
console.log(JSON.stringify({ ...found, largest }));
process.exit(0);
