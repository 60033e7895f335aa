// Shows the request of a model step: what the model was sent.

import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";

import * as api from "../api/client";
import { print } from "../api/json";
import type { Message, ModelOptions, Part, RequestBudget, SentTool, StepRequest, TextLimit } from "../api/types";
import { brief, cut, number, spelled } from "../text/words";
import { contentText, isShort, optionFacts, roleName, sentOf, size } from "./sent-text";

/** So many of the newest messages are shown at first. */
const NEWEST = 20;
/** The limit of a shown text, in characters. */
const MOST_TEXT = 200_000;

export function Sent({ run, step, isFinished }: { run: string; step: number; isFinished: boolean }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className="sent" onToggle={(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
      <summary>What the model was sent</summary>
      {isOpen && <Request run={run} step={step} isFinished={isFinished} />}
    </details>
  );
}

function Request({ run, step, isFinished }: { run: string; step: number; isFinished: boolean }) {
  const { data, error } = useQuery({
    queryKey: ["sent", run, step, isFinished],
    queryFn: () => api.get<StepRequest>(`/runs/${run}/steps/${step}/request`),
    // The request of a step under way changes when the step is tried again.
    staleTime: isFinished ? Infinity : 0,
  });
  if (error instanceof api.Problem && error.status === 404) return <p className="faint">{`This request is not recorded: ${api.words(error)}.`}</p>;
  if (error !== null) return <p className="trouble">{api.words(error)}</p>;
  if (data === undefined) return <p className="faint">Reading the request…</p>;
  const { model, system, tools, options, messages, budget, text_limits: limits = {}, missing } = data;
  return (
    <div className="sent-body">
      {missing.map((words) => (
        <p key={words} className="warning">{`Not complete: ${brief(words, 300)}.`}</p>
      ))}
      <p className="faint">{facts(model, messages.length, tools.length, budget)}</p>
      {system === "" && <p className="faint">There was no system prompt.</p>}
      {system !== undefined && system !== "" && (
        <Fold label="System prompt" note={`${number(system.length)} characters`} isOpen={isShort(system)}>
          <pre tabIndex={0}>{cut(spelled(system), MOST_TEXT)}</pre>
        </Fold>
      )}
      <Options options={options} />
      {(tools.length > 0 || missing.length === 0) && <Tools tools={tools} />}
      <Messages messages={messages} limits={limits} />
    </div>
  );
}

function facts(model: string, messages: number, tools: number, budget: RequestBudget | undefined): string {
  const size = budget === undefined ? null : `about ${number(budget.used)} of ${number(budget.window)} ${budget.unit === "chars" ? "characters" : "tokens"}`;
  return [brief(model, 80), `${number(messages)} ${messages === 1 ? "message" : "messages"}`, `${number(tools)} ${tools === 1 ? "tool" : "tools"}`, size].filter(Boolean).join(" · ");
}

/** A block that opens. The content of a closed one is not built. */
function Fold({ label, note, isOpen: isOpenAtFirst = false, children }: { label: ReactNode; note: string; isOpen?: boolean; children: ReactNode }) {
  const [isOpen, setOpen] = useState(isOpenAtFirst);
  return (
    <details className="sent-fold" open={isOpen} onToggle={(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
      <summary>
        {label} <span className="faint">{note}</span>
      </summary>
      {isOpen && children}
    </details>
  );
}

function Options({ options }: { options: ModelOptions }) {
  const found = optionFacts(options);
  if (found.length === 0) return null;
  return (
    <Fold label="Options" note={found.map(([name]) => name).join(", ")} isOpen={found.every(([, value]) => isShort(value))}>
      <dl className="facts">
        {found.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <code>{cut(value, MOST_TEXT)}</code>
            </dd>
          </div>
        ))}
      </dl>
    </Fold>
  );
}

function Tools({ tools }: { tools: SentTool[] }) {
  if (tools.length === 0) return <p className="faint">No tools were offered.</p>;
  return (
    <Fold label="Tools" note={number(tools.length)}>
      <ul className="sent-tools">
        {tools.map((tool) => (
          <li key={tool.name}>
            <Fold label={<code>{brief(spelled(tool.name), 80)}</code>} note={brief(tool.description, 100)}>
              <p className="sent-words">{spelled(tool.description)}</p>
              <pre tabIndex={0}>{cut(print(tool.input_schema, 2), MOST_TEXT)}</pre>
            </Fold>
          </li>
        ))}
      </ul>
    </Fold>
  );
}

function Messages({ messages, limits }: { messages: Message[]; limits: Record<string, TextLimit> }) {
  const [most, setMost] = useState(NEWEST);
  const hidden = Math.max(0, messages.length - most);
  return (
    <>
      {hidden > 0 && (
        <button type="button" className="small" onClick={() => setMost(most + 100)}>
          {`Show ${number(Math.min(100, hidden))} of ${number(hidden)} earlier messages`}
        </button>
      )}
      <ol className="sent-messages" start={hidden + 1}>
        {messages.slice(hidden).map((message, at) => (
          <li key={hidden + at} data-role={message.role}>
            <div className="label">{roleName(message)}</div>
            {message.parts.map((part, place) => (
              <SentPart key={place} part={part} limit={limits[part.id]} />
            ))}
          </li>
        ))}
      </ol>
    </>
  );
}

function SentPart({ part, limit }: { part: Part; limit: TextLimit | undefined }) {
  switch (part.type) {
    case "text":
      return <Words text={part.text} />;
    case "reasoning":
      return (
        <Fold label="Thought" note={`${number(part.text.length)} characters`}>
          <p className="sent-words">{cut(spelled(part.text), MOST_TEXT)}</p>
        </Fold>
      );
    case "tool_call":
      return <Block label="Calls" name={part.name} text={print(part.arguments, 2)} />;
    case "tool_result":
      return <Block label={part.is_error ? "Error of" : "Result of"} name={part.name} text={contentText(part.content)} />;
    case "image":
    case "file":
      return (
        <p className="faint">
          {`${part.type === "image" ? "Picture" : "File"}: ${brief(part.name ?? part.media_type, 100)}${limit === undefined ? "" : `, ${sentOf(limit)}`}`}
        </p>
      );
    case "source":
      return <p className="faint">{`Source: ${brief(part.title ?? part.url ?? "", 200)}`}</p>;
  }
}

/** A call or its result: with its text if that is short, else folded. */
function Block({ label, name, text }: { label: string; name: string; text: string }) {
  return (
    <>
      <p className="sent-call">
        <span className="faint">{label}</span> <code>{brief(spelled(name), 80)}</code>
      </p>
      <Words text={text} isCode />
    </>
  );
}

/** A text of a message. A long one is folded. */
function Words({ text, isCode = false }: { text: string; isCode?: boolean }) {
  const words = isCode ? <pre tabIndex={0}>{cut(spelled(text), MOST_TEXT)}</pre> : <p className="sent-words" dir="auto">{cut(spelled(text), MOST_TEXT)}</p>;
  if (isShort(text)) return words;
  return (
    <Fold label={brief(text, 90)} note={size(text)}>
      {words}
    </Fold>
  );
}
