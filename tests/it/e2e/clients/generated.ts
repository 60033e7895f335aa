// Starts a run, follows its events until the model speaks, cancels it, and follows it to its end, through types of openapi-typescript.
// Prints what it has found as JSON.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type StreamEvent = components["schemas"]["StreamEvent"];

declare const process: { argv: [string, string, string, string] };
const [, , baseUrl, input] = process.argv;
const api = createClient<paths>({ baseUrl });

async function* lines(stream: ReadableStream<Uint8Array> | null): AsyncGenerator<string> {
  const reader = stream?.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const piece = await reader?.read();
    if (!piece?.value) return;
    const parts = (rest + decoder.decode(piece.value, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    yield* parts.filter((line) => line !== "");
  }
}

const started = await api.POST("/api/v1/runs", { body: { input } });
if (started.error) throw new Error(started.error.detail);
if (!("run" in started.data)) throw new Error("the run has ended already");
const path = { id: started.data.run.id };
const since: Date = new Date(started.data.run.created_at);

const types: StreamEvent["type"][] = [];
let [text, by, last] = ["", "", 0];
let cancelled: components["schemas"]["RunStatus"] | undefined;
const stream = await api.GET("/api/v1/runs/{id}/events", {
  params: { path },
  headers: { accept: "application/x-ndjson" },
  parseAs: "stream",
});
for await (const line of lines(stream.data ?? null)) {
  const event = JSON.parse(line) as StreamEvent;
  types.push(event.type);
  switch (event.type) {
    case "part.delta":
      // @ts-expect-error: a message is in other events.
      event.data.message;
      text += event.data.delta;
      last = event.seq;
      cancelled ??= (await api.POST("/api/v1/runs/{id}/cancel", { params: { path } })).data?.status;
      break;
    case "run.cancelled":
      by = event.data.by;
      break;
    case "run.failed":
      throw new Error(event.data.error.code);
    case "stream.end":
      if (event.data.last_seq <= last) throw new Error("the stream has ended too early");
  }
}

const page = await api.GET("/api/v1/runs/{id}/events", { params: { path, query: { limit: 2 } } });
const stored = page.data && "next_cursor" in page.data ? page.data.data : [];
const missing = await api.GET("/api/v1/runs/{id}", { params: { path: { id: `run_${"0".repeat(32)}` } } });
const code: components["schemas"]["ProblemCode"] | undefined = missing.error?.code;
const queued = stored.find((event) => event.type === "run.queued");
console.log(JSON.stringify({ position: queued?.data.position, types, text, by, cancelled, code, dated: since.getTime() > 0 }));
