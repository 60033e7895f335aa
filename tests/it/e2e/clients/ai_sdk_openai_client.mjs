// The AI SDK with its provider for OpenAI: ai_sdk_openai_client.mjs NODE_MODULES AI PROVIDER URL MODEL...
// Plays the tasks of client_tasks.py, and prints the same findings.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, aiPackage, providerPackage, url, ...models] = process.argv.slice(2);
const require = createRequire(`${modules}/`);

async function load(name) {
  const { exports } = require(`${modules}/${name}/package.json`);
  const entry = exports['.'].import;
  return import(pathToFileURL(`${modules}/${name}/${entry?.default ?? entry ?? exports['.'].default}`));
}

const { generateText, generateObject, streamText, stepCountIs, isStepCount, jsonSchema, tool } = await load(aiPackage);
const { createOpenAI } = await load(providerPackage);
const showsServers = (model, api) => model === 'default' && (api === 'chat' || aiPackage !== 'ai5');
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'any' });

const DOOR = { color: 'red', height: 2 };
const LOOP = '[[id:loop]][[call:look {"at":"x"}]][[call:look {"at":"y"}]][[next]][[call:look {"at":"z"}]][[next]][[say:three doors]]';
const AGAIN = '[[id:again]][[say:again]]';
const place = { type: 'object', properties: { at: { type: 'string' } }, required: ['at'], additionalProperties: false };
const look = tool({ description: 'Looks at a place.', inputSchema: jsonSchema(place), execute: ({ at }) => `a door at ${at}` });
const door = jsonSchema({
  type: 'object',
  properties: { color: { type: 'string' }, height: { type: 'integer' } },
  required: ['color', 'height'],
  additionalProperties: false,
});

// Returns the steps, the messages and the usage of a complete answer.
async function complete(options, isStream) {
  const settings = { maxRetries: 0, stopWhen: (isStepCount ?? stepCountIs)(9), ...options };
  if (!isStream) {
    const { steps, totalUsage, usage, response } = await generateText(settings);
    return { steps, usage: totalUsage ?? usage, messages: response.messages };
  }
  let failed;
  const streamed = streamText({ ...settings, onError: ({ error }) => { failed ??= error; } });
  await streamed.consumeStream();
  if (failed) throw failed;
  const [steps, usage, response] = await Promise.all([streamed.steps, streamed.totalUsage ?? streamed.usage, streamed.response]);
  return { steps, usage, messages: response.messages };
}

const all = (steps, type) => steps.flatMap(step => step.content).filter(part => part.type === type);
const text = steps => all(steps, 'text').map(part => part.text);

async function play(model, api) {
  const chosen = name => provider[api](name);
  const ask = (prompt, isStream) => complete({ model: chosen(model), prompt }, isStream);
  const found = {};
  for (const way of ['plain', 'stream']) {
    const isStream = way === 'stream';
    const answer = await ask('[[id:ask]][[reason:2,0]][[text:2,0]]', isStream);
    const name = `${api}-${way}`;
    let server = null;
    if (showsServers(model, api)) {
      const content = `[[id:${name}]][[say:before]][[call:ledger__append {"text":"${name}"}]][[next]][[say:after]]`;
      const { steps, messages } = await ask(content, isStream);
      const history = [{ role: 'user', content }, ...messages, { role: 'user', content: AGAIN }];
      const followed = text((await complete({ model: chosen(model), messages: history }, isStream)).steps).join('');
      if (followed !== 'again') throw new Error(`${name}: ${followed}`);
      const calls = all(steps, 'tool-result').map(({ output }) => [output.name, JSON.parse(output.arguments), output.output]);
      server = [text(steps).join(' ').split(/\s+/), calls];
    }
    const messages = [{ role: 'user', content: LOOP }];
    const options = { model: chosen(model), tools: { look } };
    const looked = await complete({ ...options, messages }, isStream);
    const calls = all(looked.steps, 'tool-call').map(call => [call.toolName, call.input]);
    messages.push(...looked.messages, { role: 'user', content: AGAIN });
    const again = await complete({ ...options, messages }, isStream);
    found[way] = {
      words: text(answer.steps).join('').trim().split(/\s+/).length,
      usage: [answer.usage.inputTokens, answer.usage.outputTokens],
      loop: [calls, text(looked.steps).at(-1), text(again.steps).join('')],
      server,
    };
  }
  const object = await generateObject({ model: chosen(model), schema: door, prompt: `[[id:door]][[say:${JSON.stringify(DOOR)}]]`, maxRetries: 0 });
  found.doors = [object.object];
  found.refused = await complete({ model: chosen('nobody'), prompt: 'hi' }, false).then(
    () => null,
    error => [error.statusCode, error.message.includes('nobody')],
  );
  return found;
}

const findings = {};
for (const model of models) findings[model] = { chat: await play(model, 'chat'), responses: await play(model, 'responses') };
console.log(JSON.stringify(findings));
