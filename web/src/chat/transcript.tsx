// The shown conversation, which follows its end until the reader scrolls up.

import { useCallback, useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore, type RefObject } from "react";

import { active, newest, openQuestions, showsEnd, type State } from "../conversation/state";
import type { ConversationStore } from "../conversation/store";
import { RunView } from "./run";

/** So near to the end, in pixels, a reader who scrolls down follows it again. */
const NEAR = 24;
/** So near to the beginning, earlier messages are read. */
const EARLY = 300;

interface Follow {
  isAway: boolean;
  toEnd: () => void;
  /** Stops to follow the end. */
  leave: () => void;
}

/** Keeps the end in view until the reader scrolls up by wheel, touch, key or bar. */
function useFollow(scroller: RefObject<HTMLDivElement | null>, content: RefObject<HTMLDivElement | null>): Follow {
  const [isAway, setAway] = useState(false);
  const follows = useRef(true);
  const toEnd = useCallback(() => {
    const node = scroller.current;
    if (node === null) return;
    follows.current = true;
    setAway(false);
    node.scrollTop = node.scrollHeight;
  }, [scroller]);
  useLayoutEffect(() => {
    const [node, inside] = [scroller.current, content.current];
    if (node === null || inside === null) return;
    let last = node.scrollTop;
    const isAtEnd = () => node.scrollHeight - node.scrollTop - node.clientHeight <= NEAR;
    const leave = () => {
      if (node.scrollHeight <= node.clientHeight + 1) return;
      follows.current = false;
      setAway(true);
    };
    const wheel = (event: WheelEvent) => event.deltaY < 0 && leave();
    let touch: number | null = null;
    const touchStart = (event: TouchEvent) => (touch = event.touches[0]?.clientY ?? null);
    const touchMove = (event: TouchEvent) => {
      const at = event.touches[0]?.clientY ?? null;
      if (touch !== null && at !== null && at > touch + 2) leave();
    };
    const key = (event: KeyboardEvent) => ["ArrowUp", "PageUp", "Home"].includes(event.key) && !(event.target as Element).closest("input, textarea, select") && leave();
    const scroll = () => {
      const at = node.scrollTop;
      // A scroll bar that is dragged up shows itself only here.
      if (at < last - 1 && !isAtEnd() && node.scrollHeight === height) leave();
      else if (at > last && isAtEnd()) {
        follows.current = true;
        setAway(false);
      }
      last = at;
      height = node.scrollHeight;
    };
    let height = node.scrollHeight;
    const grown = new ResizeObserver(() => {
      if (follows.current) node.scrollTop = node.scrollHeight;
      else setAway(!isAtEnd());
    });
    grown.observe(inside);
    grown.observe(node);
    node.addEventListener("wheel", wheel, { passive: true });
    node.addEventListener("touchstart", touchStart, { passive: true });
    node.addEventListener("touchmove", touchMove, { passive: true });
    node.addEventListener("keydown", key);
    node.addEventListener("scroll", scroll, { passive: true });
    return () => {
      grown.disconnect();
      node.removeEventListener("wheel", wheel);
      node.removeEventListener("touchstart", touchStart);
      node.removeEventListener("touchmove", touchMove);
      node.removeEventListener("keydown", key);
      node.removeEventListener("scroll", scroll);
    };
  }, [scroller, content]);
  const leave = useCallback(() => {
    follows.current = false;
    setAway(true);
  }, []);
  return { isAway, toEnd, leave };
}

/** Pages of earlier messages that are read to find a message. */
const MOST_PAGES = 40;

/** Shows one message, and reads earlier ones until it is found. */
function useTarget(store: ConversationStore, target: string | null, leave: () => void): void {
  const sought = useRef({ target, pages: 0 });
  useEffect(() => {
    if (sought.current.target !== target) sought.current = { target, pages: 0 };
    if (target === null || !store.state.loaded || sought.current.pages > MOST_PAGES) return;
    const node = document.getElementById(target);
    if (node !== null) {
      sought.current.pages = MOST_PAGES + 1;
      leave();
      node.scrollIntoView({ block: "center" });
      node.classList.add("sought");
    } else if (store.state.before !== null) {
      sought.current.pages += 1;
      void store.earlier();
    }
  });
}

interface Props {
  store: ConversationStore;
  toEndOf: RefObject<(() => void) | null>;
  /** The message to show first, of a search. */
  target: string | null;
}

export function Transcript({ store, toEndOf, target }: Props) {
  useSyncExternalStore(store.subscribe, () => store.version);
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const { isAway, toEnd, leave } = useFollow(scroller, content);
  const { state } = store;
  useEffect(() => {
    toEndOf.current = toEnd;
    return () => {
      toEndOf.current = null;
    };
  }, [toEnd, toEndOf]);
  useTarget(store, target, leave);
  const earlier = useCallback(() => {
    const node = scroller.current;
    // At 0, a browser does not keep what is shown in its place.
    if (node !== null && node.scrollTop === 0) node.scrollTop = 1;
    void store.earlier();
  }, [store]);
  const runs = [...state.runs.values()];
  const [version, showVersion] = useVersion(state);
  // An earlier version includes everything that followed it. The later runs belong to the current one.
  const end = version === null ? -1 : runs.findIndex(({ id }) => id === version.run);
  const shown = end < 0 ? runs : runs.slice(0, end + 1);
  const hasEarlier = state.before !== null || state.trimmed;
  // A reader who is at the top already, when scrolling begins to count or a page arrives, causes no further scroll event.
  useEffect(() => {
    if (isAway && hasEarlier && (scroller.current?.scrollTop ?? EARLY) < EARLY) earlier();
  }, [earlier, isAway, hasEarlier, state.before]);
  return (
    <>
      <div
        id="scroll"
        ref={scroller}
        tabIndex={0}
        role="region"
        aria-label="Conversation"
        onScroll={(event) => {
          if (hasEarlier && isAway && event.currentTarget.scrollTop < EARLY) earlier();
        }}
      >
        <div id="transcript" ref={content} role="log" aria-live="off" aria-label="Messages" aria-busy={active(state) !== null}>
          {state.truncated && (
            <p className="note">
              There are earlier messages than these.{" "}
              {hasEarlier && (
                <button type="button" className="small earlier" onClick={earlier}>
                  Show earlier messages
                </button>
              )}
            </p>
          )}
          {!state.loaded && <Skeleton />}
          {shown.map((run, at) => {
            const next = runs[at + 1];
            return <RunView key={run.id} run={run} rev={run.rev} state={state} isNewest={next === undefined} isEnd={showsEnd(run, next)} earlier={version?.run === run.id ? version.earlier : null} showVersion={showVersion} />;
          })}
          {[...state.sent].map(([id, text]) => (
            <article key={id} className="message user pending">
              <div className="parts">
                <div className="said" dir="auto">{text}</div>
              </div>
            </article>
          ))}
          {end < 0 && <Thinking state={state} />}
        </div>
      </div>
      {version !== null && end >= 0 && (
        <p id="older" role="status">
          <span>An earlier version is shown. A new message follows the newest version.</span>
          <button type="button" className="small" onClick={() => showVersion(version.run, null)}>
            Show the newest
          </button>
        </p>
      )}
      <button type="button" id="down" className="small" hidden={!isAway} onClick={toEnd}>
        Newest
      </button>
      <Announcer state={state} />
    </>
  );
}

/** The earlier version that is shown, if any, and the function that changes it. A new run or message leads back to the current one. */
function useVersion(state: State): [{ run: string; earlier: number } | null, (run: string, earlier: number | null) => void] {
  const [version, setVersion] = useState<{ run: string; earlier: number } | null>(null);
  const showVersion = useCallback((run: string, earlier: number | null) => setVersion(earlier === null ? null : { run, earlier }), []);
  const last = newest(state)?.id;
  const sent = state.sent.size;
  useEffect(() => setVersion(null), [last, sent]);
  return [version, showVersion];
}

/** Three dots where the answer will begin. */
function Thinking({ state }: { state: State }) {
  const run = active(state);
  if (run === null || run.status === "queued" || run.status === "waiting" || openQuestions(state).length > 0) return null;
  const isShown = run.items.some((item) => item.kind === "message" && item.streaming && item.parts.length > 0);
  const isCalling = [...state.calls.values()].some((call) => call.state === "started" && call.item?.run === run.id);
  if (isShown || isCalling) return null;
  return (
    <div className="dots" aria-hidden="true">
      <span />
      <span />
      <span />
    </div>
  );
}

function Skeleton() {
  return (
    <div className="skeleton" aria-hidden="true">
      <span />
      <span />
      <span />
      <span />
    </div>
  );
}

const ENDS: Record<string, string> = { completed: "The answer is complete.", failed: "The run has failed.", cancelled: "Stopped." };

/** Tells people who cannot see the page what has changed. */
function Announcer({ state }: { state: State }) {
  const [words, setWords] = useState("");
  const before = useRef<{ questions: number; run: string | null; status: string }>({ questions: 0, run: null, status: "" });
  const questions = openQuestions(state).length;
  const run = newest(state);
  const [id, status] = [run?.id ?? null, run?.status ?? ""];
  useEffect(() => {
    const known = before.current;
    if (questions > known.questions) setWords("A question waits for you.");
    else if (id !== null && id === known.run && status !== known.status && ENDS[status] !== undefined) setWords(ENDS[status]);
    before.current = { questions, run: id, status };
  }, [questions, id, status]);
  return (
    <div id="announcer" className="unseen" aria-live="polite">
      {words}
    </div>
  );
}
