// A page that shows a thread as its messages change.
import { ask, openThread } from './client.js';

const thread = openThread(crypto.randomUUID(), location.origin);
const list = document.getElementById('messages');
const form = document.getElementById('form');

function line(message) {
  const calls = (message.toolCalls ?? []).map(call => `${call.function.name} ${call.function.arguments}`);
  const shown = document.createElement('p');
  shown.textContent = `${message.role}: ${[message.content, ...calls].filter(Boolean).join('\n')}`;
  return shown;
}

const show = messages => list.replaceChildren(...messages.map(line));

// An approval takes `approved`, a question takes a text.
const decide = async ({ reason, message }) =>
  reason === 'tool_call' ? { approved: window.confirm(message) } : { text: window.prompt(message) ?? '' };

form.addEventListener('submit', async event => {
  event.preventDefault();
  const text = form.elements.text.value;
  form.reset();
  try {
    await ask(thread, text, show, decide);
  } catch (error) {
    list.append(`error: ${error.message}`);
  }
});
