// The inbox: everything in all conversations that waits for the user.

import { useState } from "react";

import type { ApprovalData, QuestionData } from "../api/types";
import { AskView } from "../chat/questions";
import type { Ask } from "../conversation/state";
import { ReviewCard, useReviews } from "../setup/permissions";
import { clock } from "../text/words";
import { canNotify, setNotifying, useNotifying } from "./notify";
import { useOpenQuestions } from "./queries";

const ask = (kind: Ask["kind"], data: ApprovalData | QuestionData): Ask => ({ kind, id: data.id, status: "pending", data, answer: null, item: null });

export default function Inbox() {
  const { data } = useOpenQuestions();
  const { data: reviews = [] } = useReviews();
  const entries = [
    ...(data?.approvals ?? []).map((approval) => ({ at: approval.created_at, conversation: approval.conversation_id, ask: ask("approval", approval) })),
    ...(data?.inputs ?? []).map((input) => ({ at: input.created_at, conversation: input.conversation_id, ask: ask("question", input) })),
  ].sort((one, other) => other.at.localeCompare(one.at));
  return (
    <div className="scroll-page">
      <div className="inbox">
        {data !== undefined && entries.length === 0 && reviews.length === 0 && (
          <p className="faint inbox-empty">Nothing waits for you.</p>
        )}
        {entries.map((entry) => (
          <article key={entry.ask.id} className="inbox-entry">
            <div className="inbox-head">
              <a href={`#/${entry.conversation}`}>Open the conversation</a>
              <time className="faint" dateTime={entry.at}>
                {clock(entry.at)}
              </time>
            </div>
            <AskView ask={entry.ask} rev={0} />
          </article>
        ))}
        {reviews.map((review) => <ReviewCard key={review.id} review={review} />)}
        <Notify />
      </div>
    </div>
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
