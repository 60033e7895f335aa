// The options of useChat for a Capstan server.
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';

/** `server` is the URL of another server; empty for the one that serves the page. */
export function chatOptions(id, server = '') {
  return {
    id,
    transport: new DefaultChatTransport({ api: `${server}/api/chat` }),
    // Shows the rest of an answer that was under way when the page was left.
    resume: true,
    // Continues the run as soon as the user has decided about each tool call.
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  };
}

/** The server keeps the messages. */
export async function storedMessages(id, server = '') {
  const response = await fetch(`${server}/api/chat/${id}/messages`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** `stop` of useChat only leaves the stream; this ends the run. */
export async function cancel(id, server = '') {
  await fetch(`${server}/api/chat/${id}/stop`, { method: 'POST' });
}
