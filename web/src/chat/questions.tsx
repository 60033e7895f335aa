// The cards of questions: approvals of calls, and other questions.

import { useEffect, useRef, useState, type ReactNode, type SyntheticEvent } from "react";

import { Problem, newKey, postText, words } from "../api/client";
import { isExact, print } from "../api/json";
import type { ApprovalData, QuestionData } from "../api/types";
import type { QuestionState } from "../conversation/state";
import { queries, useServerName } from "../shell/queries";
import { webUrl } from "../text/link-urls";
import { Link } from "../text/markdown";
import { brief, cut, escaped, spelled } from "../text/words";
import { Effect } from "./effect";
import { SchemaFields, readForm, type FormSchema } from "./form";

const OUTCOMES: Record<string, string> = {
  allowed: "Allowed",
  denied: "Declined",
  expired: "Not answered in time",
  cancelled: "The run ended first",
  answered: "Answered",
  applied: "Answered",
};

const SCOPES: Record<string, string> = { once: "Allow once", conversation: "Allow in this conversation", always: "Always allow" };
const HELD: Record<string, string> = { once: "once", conversation: "in this conversation", always: "always" };

/** A new card ignores clicks so long: it may have come under a pointer that was about to do something else. */
const FRESH_MS = 500;

/** A card of a question, or the line that remains once it is settled. */
export function QuestionView({ question }: { question: QuestionState; rev: number }) {
  const node = useRef<HTMLElement>(null);
  const isPending = question.status === "pending";
  useEffect(() => {
    const card = node.current;
    if (card === null || !isPending) return;
    card.dataset.fresh = "";
    const timer = setTimeout(() => delete card.dataset.fresh, FRESH_MS);
    return () => {
      clearTimeout(timer);
      delete card.dataset.fresh;
    };
  }, [isPending]);
  const early = (event: SyntheticEvent) => {
    if (node.current?.dataset.fresh === undefined) return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <section className="ask" tabIndex={-1} ref={node} data-status={question.status} data-kind={question.kind} onClickCapture={early} onSubmitCapture={early}>
      {isPending ? <Pending question={question} /> : <Settled question={question} />}
    </section>
  );
}

/** Sends an answer. `given` are other arguments, as JSON, which are sent as they are written. */
type Send = (path: string, body: object, given?: string) => Promise<void>;

function Pending({ question }: { question: QuestionState }) {
  const [trouble, setTrouble] = useState("");
  const [isSent, setSent] = useState(false);
  /** The key of each answer that may have arrived: sent again, it is the same answer. */
  const keys = useRef(new Map<string, string>());
  const isUnderWay = useRef(false);
  const send: Send = async (path, body, given) => {
    if (isUnderWay.current) return;
    isUnderWay.current = true;
    setTrouble("");
    const sent = JSON.stringify(body);
    const answer = given === undefined ? sent : `${sent.slice(0, -1)},"arguments":${given}}`;
    const key = keys.current.get(answer) ?? newKey();
    keys.current.set(answer, key);
    try {
      await postText(path, answer, key);
      // The stream tells that it is settled; until then it is not answered twice.
      setSent(true);
      void queries.invalidateQueries({ queryKey: ["questions"] });
    } catch (error) {
      if (error instanceof Problem) keys.current.delete(answer);
      setTrouble(words(error));
      isUnderWay.current = false;
    }
  };
  return (
    <div className="ask-body" inert={isSent} data-sent={isSent ? "" : undefined}>
      {question.kind === "approval" ? (
        <ApprovalCard id={question.id} data={question.data as ApprovalData} send={send} say={setTrouble} />
      ) : (
        <QuestionCard id={question.id} data={question.data as QuestionData} send={send} say={setTrouble} />
      )}
      {trouble !== "" && (
        <p className="trouble" role="alert">
          {trouble}
        </p>
      )}
    </div>
  );
}

interface CardProps<T> {
  id: string;
  data: T;
  send: Send;
  say: (words: string) => void;
}

function ApprovalCard({ id, data, send, say }: CardProps<ApprovalData>) {
  const [isEditing, setEditing] = useState(false);
  const editor = useRef<HTMLTextAreaElement>(null);
  const reason = useRef<HTMLInputElement>(null);
  const path = `/approvals/${encodeURIComponent(id)}`;
  const server = useServerName(data.server);
  const shown = print(data.arguments, 2);
  const editable = escaped(shown);
  const allow = (scope: string) => {
    const body = { decision: "allow", scope, arguments_hash: data.arguments_hash };
    const text = isEditing ? (editor.current?.value ?? editable) : editable;
    if (text === editable) return void send(path, body);
    try {
      JSON.parse(text);
    } catch (error) {
      return say(`These arguments are no JSON: ${(error as Error).message}`);
    }
    return void send(path, body, text.trim());
  };
  const decline = () => {
    const why = reason.current?.value.trim() ?? "";
    void send(path, { decision: "deny", ...(why === "" ? {} : { reason: why }) });
  };
  const scopes = data.scopes.filter((scope) => Object.hasOwn(SCOPES, scope));
  const isWhole = isExact(data.arguments);
  return (
    <>
      <h3>May this call be made?</h3>
      {data.destructive && <p className="warning">Deletes or overwrites data, says its server. It can be allowed once only.</p>}
      <p className="what">
        <code>{brief(spelled(data.name), 120)}</code>
        {server !== "" && <span className="faint">{` of ${brief(spelled(server), 80)}`}</span>}
      </p>
      {isTelling(data) && <p className="preview">{brief(spelled(data.preview ?? ""), 500)}</p>}
      {data.rationale !== undefined && data.rationale !== "" && (
        <p className="rationale">
          <span className="faint">The model says: </span>
          {brief(spelled(data.rationale), 1000)}
        </p>
      )}
      <Effect arguments={data.arguments} />
      <div className="label">Arguments</div>
      {/* The user sees the complete call, because the approval covers all of it. */}
      <pre className="arguments" tabIndex={0} hidden={isEditing}>
        {spelled(shown)}
      </pre>
      {isEditing && (
        <textarea ref={editor} className="mono" rows={Math.min(shown.split("\n").length + 1, 14)} spellCheck={false} aria-label="Arguments as JSON" defaultValue={editable} autoFocus />
      )}
      {!isWhole && <p className="warning">This browser rounds large numbers: those above may differ from those of the call, and cannot be edited here.</p>}
      {data.description !== "" && (
        <details className="plain">
          <summary>Description of the tool, by its server</summary>
          <p>{cut(spelled(data.description), 2000)}</p>
        </details>
      )}
      <div className="buttons">
        {scopes.map((scope) => (
          <button key={scope} type="button" className={scope === "once" ? "primary allow" : `allow-${scope}`} onClick={() => allow(scope)}>
            {SCOPES[scope]}
          </button>
        ))}
        {isWhole && (
          <button type="button" className="quiet small" onClick={() => setEditing(!isEditing)}>
            {isEditing ? "Leave them as they are" : "Edit arguments"}
          </button>
        )}
      </div>
      <div className="buttons deny">
        <input ref={reason} type="text" placeholder="Reason (the model reads it)" aria-label="Reason for declining" maxLength={1000} />
        <button type="button" className="danger deny" onClick={decline}>
          Decline
        </button>
      </div>
    </>
  );
}

/** Returns whether a preview says more than the arguments below it do. */
const isTelling = ({ preview, arguments: shown }: ApprovalData): boolean =>
  preview !== undefined && preview !== "" && !print(shown).startsWith(preview.replace(/(…|\.\.\.)$/, ""));

function QuestionCard({ id, data, send, say }: CardProps<QuestionData>) {
  const form = useRef<HTMLFormElement>(null);
  const text = useRef<HTMLInputElement>(null);
  const path = `/input-requests/${encodeURIComponent(id)}`;
  const { question, kind } = data;
  const { elicitation } = question;
  const server = useServerName(elicitation?.server);
  const schema = (question.form ?? elicitation?.requested_schema) as FormSchema | undefined;
  const url = elicitation?.url;
  // An answer about a call may have an additional text. A model's question may be answered with text alone.
  const hasText = kind !== "elicitation" && schema === undefined;
  const said = () => {
    const typed = text.current?.value.trim() ?? "";
    return hasText && typed !== "" ? { text: typed } : {};
  };
  const choose = (value: string) => {
    try {
      const content = schema !== undefined && value === "accept" && form.current !== null ? { content: readForm(schema, id, form.current) } : {};
      void send(path, { choice: value, ...said(), ...content });
    } catch (error) {
      say((error as Error).message);
    }
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (schema !== undefined) choose("accept");
    else if (kind === "question" && "text" in said()) void send(path, said());
  };
  const offered = schema !== undefined && question.choices.length === 0 ? [{ value: "accept", label: "Send" }, { value: "decline", label: "Decline" }] : question.choices;
  const page = url === undefined ? null : webUrl(url);
  const heading: ReactNode = elicitation !== undefined ? `The server ${brief(spelled(server), 80)} asks` : kind === "unknown_outcome" ? "Did this call take effect?" : "A question for you";
  return (
    <>
      <h3>{heading}</h3>
      <p className="words">{cut(spelled(question.text), 4000)}</p>
      {url !== undefined && <p>{page === null ? <code>{brief(spelled(url), 2000)}</code> : <Link url={page}>{spelled(url)}</Link>}</p>}
      {question.tool !== undefined && elicitation === undefined && (
        <p className="what">
          <code>{brief(spelled(question.tool), 120)}</code>
        </p>
      )}
      {question.arguments !== undefined && (
        <pre className="arguments" tabIndex={0}>
          {spelled(print(question.arguments, 2))}
        </pre>
      )}
      {question.arguments !== undefined && !isExact(question.arguments) && <p className="warning">This browser rounds large numbers: those above may differ from those of the call.</p>}
      <form ref={form} onSubmit={submit}>
        {schema !== undefined && <SchemaFields schema={schema} prefix={id} />}
        <div className="buttons">
          {offered.map(({ value, label }) =>
            schema !== undefined && value === "accept" ? (
              <button key={value} type="submit" className="primary">
                Send
              </button>
            ) : (
              <button key={value} type="button" className="choice" onClick={() => choose(value)}>
                {brief(spelled(label || value), 200)}
              </button>
            ),
          )}
        </div>
        {hasText && (
          <div className="buttons">
            <input ref={text} type="text" className="answer" aria-label="Your answer" maxLength={10_000} placeholder={question.choices.length > 0 ? "Or in your own words" : "Your answer"} />
            {kind === "question" && (
              <button type="submit" className="primary">
                Answer
              </button>
            )}
          </div>
        )}
      </form>
    </>
  );
}

/** One line in place of a settled card. */
function Settled({ question: { kind, status, data, answer } }: { question: QuestionState }) {
  const name = kind === "approval" ? (data as ApprovalData).name : (data as QuestionData).question.text;
  const held = kind === "approval" && answer?.scope !== undefined && status === "allowed" ? ` ${HELD[answer.scope] ?? ""}` : "";
  const edited = answer?.edited_arguments !== undefined ? ", with other arguments" : "";
  const label = kind === "approval" ? undefined : (data as QuestionData).question.choices.find((one) => one.value === answer?.choice)?.label;
  const choice = kind === "approval" ? "" : [label || answer?.choice, answer?.text].filter(Boolean).join(" — ");
  const why = [answer?.reason, choice].filter(Boolean).map((text) => brief(spelled(text ?? ""), 300)).join(" ");
  return (
    <p>
      <strong>{`${OUTCOMES[status] ?? status}${held}${edited}`}</strong>
      {": "}
      <span>{brief(spelled(name), 160)}</span>
      {why !== "" && <span className="faint">{` — ${why}`}</span>}
    </p>
  );
}
