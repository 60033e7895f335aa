// The inbox: everything in all conversations that waits for the user.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import * as api from "../api/client";
import type { ApprovalData, McpServer, QuestionData, Run } from "../api/types";
import { QuestionView } from "../chat/questions";
import type { QuestionState } from "../conversation/state";
import { ServerLogin } from "../setup/login";
import { ReviewCard } from "../setup/review";
import { When } from "../text/when";
import { brief } from "../text/words";
import { useMe } from "./me";
import { canNotify, setNotifying, useNotifying } from "./notify";
import { mayAccept, useClientWaits, useLogins, useOpenQuestions, useReviews } from "./queries";

const questionState = (kind: QuestionState["kind"], data: ApprovalData | QuestionData): QuestionState => ({ kind, id: data.id, status: "pending", data, answer: null, item: null });

export default function Inbox() {
  const { data } = useOpenQuestions();
  const { data: me } = useMe();
  const { data: changed = [] } = useReviews();
  const reviews = changed.filter((review) => mayAccept(review, me));
  const logins = useLogins(me) ?? [];
  const { data: waits = [] } = useClientWaits();
  const entries = [
    ...(data?.approvals ?? []).map((approval) => ({ at: approval.created_at, conversation: approval.conversation_id, question: questionState("approval", approval) })),
    ...(data?.inputs ?? []).map((input) => ({ at: input.created_at, conversation: input.conversation_id, question: questionState("question", input) })),
  ].sort((one, other) => other.at.localeCompare(one.at));
  return (
    <div className="scroll-page">
      <div className="inbox">
        {data !== undefined && entries.length + reviews.length + logins.length + waits.length === 0 && (
          <p className="faint inbox-empty">Nothing waits for you.</p>
        )}
        {entries.map((entry) => (
          <article key={entry.question.id} className="inbox-entry">
            <div className="inbox-head">
              <ConversationLink id={entry.conversation} />
              <When at={entry.at} className="faint" />
            </div>
            <QuestionView question={entry.question} rev={0} />
          </article>
        ))}
        {logins.map((server) => <LoginCard key={server.id} server={server} />)}
        {reviews.map((review) => <ReviewCard key={review.id} review={review} />)}
        {waits.map((run) => <ClientWait key={run.id} run={run} />)}
        <Notify />
      </div>
    </div>
  );
}

/** An MCP server that can do nothing before a login. */
function LoginCard({ server }: { server: McpServer }) {
  return (
    <article className="card" data-login={server.name} aria-label={`Login at ${brief(server.name, 60)}`}>
      <div className="card-head">
        <strong>{brief(server.name, 60)}</strong>
        <span className="faint">needs a login. Its tools are not offered until then.</span>
        <span className="fill" />
        <ServerLogin server={server} />
      </div>
    </article>
  );
}

/** A run that only the program that started it can continue. */
function ClientWait({ run }: { run: Run }) {
  return (
    <article className="inbox-entry" data-client-wait={run.id}>
      <div className="inbox-head">
        <ConversationLink id={run.conversation_id} />
        <When at={run.started_at ?? run.created_at} className="faint" />
      </div>
      <p className="faint">The program that started this run has to execute a tool call. It is answered there, not here.</p>
    </article>
  );
}

/** A link to a conversation, with its title. */
function ConversationLink({ id }: { id: string }) {
  const { data } = useQuery({ queryKey: ["title", id], queryFn: async () => (await api.conversation(id)).title });
  return (
    <a href={`#/${id}`} dir="auto">
      {data === undefined ? "Open the conversation" : brief(data || "Untitled", 80)}
    </a>
  );
}

/** The switch of notifications. */
function Notify() {
  const isOn = useNotifying();
  const [isRefused, setRefused] = useState(false);
  if (!canNotify()) return null;
  return (
    <p className="notify">
      <label>
        <input type="checkbox" role="switch" id="notify" checked={isOn} onChange={({ target }) => void setNotifying(target.checked).then((isDone) => setRefused(!isDone))} />
        Notify me when something waits and this tab is hidden
      </label>
      {isRefused && (
        <span className="trouble" role="alert">
          The browser refuses. Allow notifications in its settings of this site.
        </span>
      )}
    </p>
  );
}
