// A chat of useChat. The query has the chat's `id`, and may have `agent`, `look` (offers that client tool) and `socket`.
import { useChat } from '@ai-sdk/react';
import * as ai from 'ai';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const query = new URLSearchParams(location.search);
const id = query.get('id');
const api = new URL('/api/chat', document.baseURI).href;
const look = { name: 'look', description: 'Looks', parameters: { type: 'object' } };
const body = { agent: query.get('agent') ?? undefined, tools: query.has('look') ? [look] : undefined };
const Transport = query.has('socket') ? ai.WebSocketChatTransport : ai.DefaultChatTransport;
const transport = new Transport(query.has('socket') ? { url: api, body } : { api, body });

// Continues a run as soon as it has all answers of this page. Release 5 has no approvals.
const rules = [ai.lastAssistantMessageIsCompleteWithToolCalls, ai.lastAssistantMessageIsCompleteWithApprovalResponses];
const sendAutomaticallyWhen = state => rules.some(rule => rule?.(state));

window.calls = [];
function onToolCall({ toolCall }) {
  if (toolCall.dynamic || !query.has('look')) return;
  window.calls.push(toolCall.toolName);
  const output = { tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { seen: 'a door' } };
  void (window.chat.addToolOutput ?? window.chat.addToolResult)(output);
}

function Part({ part, decide }) {
  if (part.type === 'text' || part.type === 'reasoning') return <p className={part.type}>{part.text}</p>;
  if (part.type !== 'dynamic-tool' && !part.type.startsWith('tool-')) return null;
  return (
    <p className="tool" data-name={part.toolName ?? part.type.slice(5)} data-state={part.state}>
      {JSON.stringify(part.input)} {JSON.stringify(part.output)}
      {part.state === 'approval-requested' && [true, false].map(approved => (
        <button key={approved} className={approved ? 'allow' : 'deny'} onClick={() => decide({ id: part.approval.id, approved })}>?</button>
      ))}
    </p>
  );
}

function Chat({ messages }) {
  const chat = useChat({ id, messages, transport, sendAutomaticallyWhen, onToolCall });
  window.chat = chat;
  // As by the option `resume`. A message that is sent meanwhile would have two streams.
  const [isResumed, setResumed] = useState(false);
  useEffect(() => void chat.resumeStream().finally(() => setResumed(true)), []);
  const input = () => document.querySelector('input');
  const acts = {
    send: () => chat.sendMessage({ text: input().value }),
    edit: () => chat.sendMessage({ text: input().value, messageId: chat.messages[0].id }),
    regenerate: () => chat.regenerate(),
    resume: () => chat.resumeStream(),
    stop: () => chat.stop(),
    cancel: () => fetch(`${api}/${id}/stop`, { method: 'POST' }),
  };
  return (
    <main id={id} data-status={chat.status}>
      {chat.messages.map(message => (
        <section key={message.id} className={message.role}>
          {message.parts.map((part, at) => <Part key={at} part={part} decide={chat.addToolApprovalResponse} />)}
        </section>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <input disabled={!isResumed} />
      {Object.entries(acts).map(([name, act]) => <button key={name} id={name} onClick={act}>{name}</button>)}
    </main>
  );
}

const stored = await (await fetch(`${api}/${id}/messages`)).json();
createRoot(document.getElementById('page')).render(<Chat messages={stored} />);
