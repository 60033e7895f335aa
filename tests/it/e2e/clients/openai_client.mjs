// Plays the official `openai` package against a Capstan server.
//
// Usage: openai_client.mjs PACKAGES URL INPUT TOOL_INPUT. Prints one line of JSON: the findings.

import { createRequire } from "node:module";

const [packages, base, input, toolInput] = process.argv.slice(2);
const load = createRequire(`${packages}/`);
const OpenAI = load("openai");
const { ResponsesWS } = load("openai/resources/responses/ws");
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries: 0 });
const model = "openai/mock";
const messages = [{ role: "user", content: input }];

const plain = await client.chat.completions.create({ model, messages });
const runner = client.chat.completions.stream({ model, messages });
const streamed = await runner.finalContent();

const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
const asking = [{ role: "user", content: toolInput }];
const asked = await client.chat.completions.create({ model, messages: asking, tools });
const call = asked.choices[0].message.tool_calls[0];
const results = [{ role: "tool", tool_call_id: call.id, content: "a door" }];
const answered = await client.chat.completions.create({ model, messages: [...asking, asked.choices[0].message, ...results], tools });

const live = [];
let id;
for await (const event of await client.responses.create({ model, input, stream: true })) {
  live.push(event);
  id ??= event.response?.id;
}
const rest = [];
for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: live[4].sequence_number })) rest.push(event);
const helper = client.responses.stream({ response_id: id, starting_after: live[4].sequence_number });
const final = await helper.finalResponse();

const received = [];
const socket = new ResponsesWS(client);
socket.send({ type: "response.create", model, input });
for await (const event of socket) {
  if (event.type === "error") throw event.error;
  if (event.type === "message") received.push(event.message);
  if (received.at(-1)?.type === "response.completed") break;
}
socket.close();
const replayed = [];
for await (const event of await client.responses.retrieve(received[0].response.id, { stream: true })) replayed.push(event);
const stored = await client.responses.retrieve(received[0].response.id);

const refused = await client.chat.completions.create({ model: "nobody", messages }).catch((error) => error);

console.log(
  JSON.stringify({
    plain: plain.choices[0].message.content,
    streamed,
    call: call.function.name,
    answered: answered.choices[0].message.content,
    types: live.map((event) => event.type),
    same: JSON.stringify(rest) === JSON.stringify(live.slice(5)),
    final: final.output_text,
    socket: { same: JSON.stringify(replayed) === JSON.stringify(received), text: stored.output_text },
    refused: { status: refused.status, code: refused.code, id: refused.requestID },
  }),
);
