// A chat that survives a reload: its id is in the address, and everything else on the server.
import { useChat } from '@ai-sdk/react';
import { createRoot } from 'react-dom/client';
import { cancel, chatOptions, storedMessages } from './client.js';

const id = location.hash.slice(1) || crypto.randomUUID();
location.hash = id;

function Part({ part, decide }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  // Tools that the server runs. Their state shows how far a call is.
  if (part.type !== 'dynamic-tool') return null;
  return (
    <p>
      <code>{part.toolName} {JSON.stringify(part.input)}</code> {part.state}
      {part.state === 'approval-requested' && [true, false].map(approved => (
        <button key={approved} onClick={() => decide({ id: part.approval.id, approved })}>{approved ? 'Allow' : 'Deny'}</button>
      ))}
    </p>
  );
}

function Chat({ earlier }) {
  const chat = useChat({ ...chatOptions(id), messages: earlier });
  const send = event => {
    event.preventDefault();
    const form = event.currentTarget;
    void chat.sendMessage({ text: form.elements.text.value });
    form.reset();
  };
  return (
    <main>
      {chat.messages.map(message => (
        <section key={message.id}>
          <b>{message.role}</b>
          {message.parts.map((part, at) => <Part key={at} part={part} decide={chat.addToolApprovalResponse} />)}
        </section>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <form onSubmit={send}>
        <input name="text" aria-label="Message" required />
        <button>Send</button>
        {chat.status === 'streaming' && <button type="button" onClick={() => cancel(id)}>Stop</button>}
      </form>
    </main>
  );
}

const root = createRoot(document.getElementById('page'));
storedMessages(id).then(earlier => root.render(<Chat earlier={earlier} />));
