// Runs the client module of the AG-UI page: example_page.mjs MODULE URL SCRIPT
import { pathToFileURL } from 'node:url';

const [module, url, script] = process.argv.slice(2);
const page = await import(pathToFileURL(module));
const thread = page.openThread('example', url);
const asked = [];
let shown = [];
const decide = async interrupt => {
  asked.push(interrupt.reason);
  return { approved: true };
};
await page.ask(thread, script, messages => { shown = messages; }, decide);
console.log(JSON.stringify({ asked, said: shown.at(-1).content }));
process.exit(0);
