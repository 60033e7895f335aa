// Runs the client module of an example page: example_page.mjs MODULE URL SCRIPT
import { pathToFileURL } from 'node:url';

const [module, url, script] = process.argv.slice(2);
const page = await import(pathToFileURL(module));

async function useChat() {
  const options = page.chatOptions('example', url);
  const messages = [{ id: 'm1', role: 'user', parts: [{ type: 'text', text: script }] }];
  const stream = await options.transport.sendMessages({ chatId: 'example', messages, trigger: 'submit-message' });
  let said = '';
  for await (const chunk of stream) said += chunk.type === 'text-delta' ? chunk.delta : '';
  return { said, stored: (await page.storedMessages('example', url)).map(message => message.role) };
}

async function agUi() {
  const thread = page.openThread('example', url);
  const asked = [];
  let shown = [];
  const decide = async interrupt => {
    asked.push(interrupt.reason);
    return { approved: true };
  };
  await page.ask(thread, script, messages => { shown = messages; }, decide);
  return { asked, said: shown.at(-1).content };
}

console.log(JSON.stringify(await (page.ask ? agUi() : useChat())));
process.exit(0);
