// A thread of AG-UI on a Capstan server.
import { HttpAgent } from '@ag-ui/client';

/** `server` is the URL of another server. */
export function openThread(threadId, server, agent = 'default') {
  return new HttpAgent({ threadId, url: `${server}/ag-ui/${agent}` });
}

/**
 * Asks the agent. `show` gets all messages after each change. `decide` gets an interrupt and returns its answer: a run that waits for
 * an approval or a question ends with interrupts, and the next run continues it.
 */
export async function ask(thread, content, show, decide) {
  thread.addMessage({ id: crypto.randomUUID(), role: 'user', content });
  let outcome;
  let parameters = {};
  do {
    outcome = undefined;
    await thread.runAgent(parameters, {
      onMessagesChanged: ({ messages }) => show(messages),
      onRunFinishedEvent: ({ event }) => { outcome = event.outcome; },
    });
    const interrupts = outcome?.type === 'interrupt' ? outcome.interrupts : [];
    const answers = interrupts.map(async interrupt => ({ interruptId: interrupt.id, status: 'resolved', payload: await decide(interrupt) }));
    parameters = { resume: await Promise.all(answers) };
  } while (parameters.resume.length > 0);
}
