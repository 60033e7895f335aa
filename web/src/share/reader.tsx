// A shared conversation, for readers without a key. It reads nothing but the share, and sends nothing of a session.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { SharedConversation, SharedMessage } from "../api/types";
import { Action } from "../setup/parts";
import { Icon, Mark } from "../shell/icons";
import { Markdown } from "../text/markdown";
import { When } from "../text/when";
import { brief, date } from "../text/words";
import { counted, isToken, nextEnd, shownMessages, type Piece, type ShownMessage } from "./shares";

export default function Reader({ token }: { token: string }) {
  return isToken(token) ? <Share token={token} /> : <DeadLink />;
}

function Share({ token }: { token: string }) {
  const { data, error, refetch } = useQuery({
    queryKey: ["shared", token],
    queryFn: () => api.getShared<SharedConversation>(token),
    // Nothing of a share outlives its view, and a lost network is told at once.
    gcTime: 0,
    staleTime: Infinity,
    retry: false,
    networkMode: "always",
  });
  if (data !== undefined) return <Conversation {...data} />;
  if (error === null) return <Loading />;
  if (error instanceof api.Problem && error.status === 404) return <DeadLink />;
  return (
    <Page title="Shared conversation">
      <div className="shared-note" role="alert">
        <p>{api.words(error)}</p>
        <Action act={refetch} className="">
          Try again
        </Action>
      </div>
    </Page>
  );
}

function Loading() {
  return (
    <Page title="Shared conversation">
      <div className="skeleton" aria-hidden="true">
        <span />
        <span />
        <span />
      </div>
    </Page>
  );
}

function DeadLink() {
  return (
    <Page title="Shared conversation">
      <p className="shared-note" role="alert">
        This link does not work: it has ended, was revoked, or was not copied whole.
      </p>
    </Page>
  );
}

function Conversation({ title, created_at, expires_at, messages }: SharedConversation) {
  return (
    <Page title={brief(title || "Untitled", 255)} dates={[`Shared on ${date(created_at)}`, `The link ends on ${date(expires_at)}`]}>
      <Messages messages={messages} />
      <footer className="shared-foot">A copy to read, without files, and without the arguments and results of tools.</footer>
    </Page>
  );
}

/** How far below the view messages are added, in pixels. */
const AHEAD = 2_000;

/** The messages, which are added as the reader comes near to them. */
function Messages({ messages }: { messages: SharedMessage[] }) {
  const all = useMemo(() => shownMessages(messages), [messages]);
  const [end, setEnd] = useState(() => nextEnd(all, 0));
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    const node = button.current;
    if (node === null) return;
    // A slow page gets several entries at a time. The last one is the present state.
    const near = (entries: IntersectionObserverEntry[]) => entries.at(-1)?.isIntersecting === true && setEnd(nextEnd(all, end));
    const observer = new IntersectionObserver(near, { root: node.closest("#scroll"), rootMargin: `0px 0px ${AHEAD}px` });
    observer.observe(node);
    return () => observer.disconnect();
  }, [all, end]);
  return (
    <>
      {all.slice(0, end).map((message, at) => (
        <section key={at} className="run">
          <Message {...message} />
        </section>
      ))}
      {end < all.length && (
        <button type="button" className="quiet small" ref={button} onClick={() => setEnd(nextEnd(all, end))}>
          More messages
        </button>
      )}
    </>
  );
}

function Page({ title, dates = [], children }: { title: string; dates?: string[]; children: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Capstan`;
  }, [title]);
  return (
    <div className="shared">
      <header>
        <a className="brand" href="#/">
          <Mark />
          Capstan
        </a>
      </header>
      <main id="scroll" tabIndex={0}>
        <div id="transcript">
          <div className="shared-head">
            <h1 dir="auto">{title}</h1>
            {dates.map((words) => (
              <span key={words} className="faint">
                {words}
              </span>
            ))}
          </div>
          {children}
        </div>
      </main>
    </div>
  );
}

function Message({ role, created_at, pieces }: ShownMessage) {
  const isUser = role === "user";
  return (
    <article className={`message ${role}`} aria-label={isUser ? "User" : "Answer"}>
      <div className="parts">
        {pieces.map((piece, at) => (
          <PieceView key={at} piece={piece} isUser={isUser} />
        ))}
      </div>
      <When at={created_at} />
    </article>
  );
}

function PieceView({ piece, isUser }: { piece: Piece; isUser: boolean }) {
  if (piece.type === "tools") {
    return (
      <ul className="shared-tools" aria-label="Tools">
        {counted(piece.names).map(([name, uses]) => (
          <li key={name} className="chip">
            <Icon name="tool" />
            <span>{uses > 1 ? `${brief(name, 80)} ×${uses}` : brief(name, 80)}</span>
          </li>
        ))}
      </ul>
    );
  }
  return isUser ? <div className="said" dir="auto">{piece.text}</div> : <Markdown text={piece.text} isLive={false} />;
}
