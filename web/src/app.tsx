// Connects the parts of the page: the address chooses what is shown, and one conversation is open at a time.

import { QueryClientProvider } from "@tanstack/react-query";
import { Suspense, lazy, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import * as api from "./api/client";
import type { AcceptedBody, Conversation } from "./api/types";
import { ActionsContext, type Actions } from "./chat/actions";
import { Composer, type ComposerHandle } from "./chat/composer";
import { attach, filesOf, textOf } from "./chat/drafts";
import { Start } from "./chat/start";
import { Transcript } from "./chat/transcript";
import { messagesOf, rate } from "./conversation/state";
import { ConversationStore } from "./conversation/store";
import { refresh, showChange } from "./shell/conversations";
import { followList } from "./shell/feed";
import { Icon } from "./shell/icons";
import { KeyDialog } from "./shell/key-dialog";
import { useMe } from "./shell/me";
import { useNotices } from "./shell/notify";
import { mayAccept, queries, useLogins, useOpenQuestions, useReviews } from "./shell/queries";
import { Sidebar } from "./shell/sidebar";
import { Toasts, toast } from "./shell/toasts";
import { sharedToken } from "./share/shares";
import { tabSocket } from "./stream/socket";
import { brief } from "./text/words";

const Palette = lazy(() => import("./shell/palette"));
const ServerList = lazy(() => import("./shell/server-list"));
const Inbox = lazy(() => import("./shell/inbox"));
const Setup = lazy(() => import("./setup/setup"));
const Usage = lazy(() => import("./usage/usage"));
const Versions = lazy(() => import("./versions/page"));
const Inspector = lazy(() => import("./run/inspector"));
const ShareDialog = lazy(() => import("./share/dialog"));
const AllShares = lazy(() => import("./share/all-shares"));
const Reader = lazy(() => import("./share/reader"));
const FirstRun = lazy(() => import("./chat/first-run"));

const TITLES = { inbox: "Inbox", setup: "Set up", usage: "Usage", run: "Run", versions: "Earlier versions" };

interface Route {
  place: "chat" | keyof typeof TITLES;
  id: string | null;
  /** A message of the conversation, or a page of the set up. */
  more: string | null;
  /** A record on a page of the set up. */
  part: string | null;
}

function routeOf(hash: string): Route {
  const chat = /^#\/(conv_[0-9a-f]{32})(?:\/(msg_[0-9a-f]{32}))?$/.exec(hash);
  if (chat !== null) return { place: "chat", id: chat[1] ?? null, more: chat[2] ?? null, part: null };
  const other = /^#\/(inbox|setup|usage|run|versions)(?:\/([\w-]+))?(?:\/([\w-]+))?$/.exec(hash);
  if (other !== null) return { place: other[1] as Route["place"], id: null, more: other[2] ?? null, part: other[3] ?? null };
  return { place: "chat", id: null, more: null, part: null };
}

function followHash(changed: () => void): () => void {
  window.addEventListener("hashchange", changed);
  window.addEventListener("popstate", changed);
  return () => {
    window.removeEventListener("hashchange", changed);
    window.removeEventListener("popstate", changed);
  };
}

/** The page of a user, or a share: its reader may have no key, so nothing of the page is there beside it. */
export function App() {
  const token = useSyncExternalStore(followHash, () => sharedToken(location.hash));
  return (
    <QueryClientProvider client={queries}>
      {token === null ? (
        <Page />
      ) : (
        <Suspense>
          <Reader key={token} token={token} />
        </Suspense>
      )}
    </QueryClientProvider>
  );
}

function Page() {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  /** Grows with each key, so that everything is read again. */
  const [session, setSession] = useState(0);
  const [isMenu, setMenu] = useState(false);
  const [isPalette, setPalette] = useState(false);
  const [isServerList, setServerList] = useState(false);
  const [isShareList, setShareList] = useState(false);
  /** The conversation whose links are shown. */
  const [sharing, setSharing] = useState<string | null>(null);
  const composer = useRef<ComposerHandle | null>(null);
  const main = useRef<HTMLElement>(null);
  const { data: me } = useMe();
  const { data: questions } = useOpenQuestions();
  const { data: changed } = useReviews();
  const openQuestions = useMemo(() => questions && [...questions.approvals, ...questions.inputs], [questions]);
  const reviews = useMemo(() => me && changed?.filter((review) => mayAccept(review, me)), [changed, me]);
  const logins = useLogins(me);
  const waiting = new Set(openQuestions?.map((question) => question.conversation_id));

  const go = useCallback((to: string) => {
    history.pushState(null, "", `#/${to}`);
    setRoute(routeOf(location.hash));
  }, []);
  useNotices(openQuestions, go);
  useNotices(reviews, go);
  useNotices(logins, go);
  useEffect(followList, []);
  /** Leaves a conversation that is gone, so that the way back does not lead to it. */
  const leave = useCallback(() => {
    history.replaceState(null, "", "#/");
    setRoute(routeOf(location.hash));
  }, []);
  useEffect(() => followHash(() => setRoute(routeOf(location.hash))), []);

  const closeMenu = useCallback(() => setMenu(false), []);
  useEffect(() => {
    const wide = matchMedia("(min-width: 800px)");
    wide.addEventListener("change", closeMenu);
    return () => wide.removeEventListener("change", closeMenu);
  }, [closeMenu]);

  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.isComposing) return;
      const command = event.ctrlKey || event.metaKey;
      if (command && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPalette(true);
      } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        go("");
        composer.current?.focus();
      } else if (event.key === "Escape") {
        if (document.querySelector("dialog[open], .popover") !== null) return;
        if (isMenu) return closeMenu();
        const field = (event.target as Element).closest("input, textarea, select, [contenteditable]");
        // Escape leaves a field, and never takes a draft along.
        if (field === null ? (event.target as Element).closest(".ask, #sidebar") === null : field.id === "message" && composer.current?.isEmpty() === true) composer.current?.stop();
      }
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, [go, closeMenu, isMenu]);

  // A file that is dropped beside the composer must not open in this tab.
  const [isDropping, setDropping] = useState(false);
  const open = route.place === "chat" ? (route.id ?? "new") : null;
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") === true;
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setDropping(open !== null);
    };
    const left = (event: DragEvent) => event.relatedTarget === null && setDropping(false);
    const drop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setDropping(false);
      if (open !== null) void attach(open, [...(event.dataTransfer?.files ?? [])]);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("dragleave", left);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("dragleave", left);
      window.removeEventListener("drop", drop);
    };
  }, [open]);

  const inboxCount = (openQuestions?.length ?? 0) + (reviews?.length ?? 0) + (logins?.length ?? 0);
  useEffect(() => {
    const base = document.title.replace(/^\(\d+\) /, "");
    document.title = inboxCount > 0 ? `(${inboxCount}) ${base}` : base;
  }, [inboxCount, route]);

  const startSession = () => {
    queries.clear();
    tabSocket.renew();
    setSession(session + 1);
  };
  const signOut = async () => {
    try {
      await api.signOut();
      // The page drops everything that was loaded in the session.
      location.replace(location.pathname);
    } catch (error) {
      toast({ words: api.words(error) });
    }
  };

  return (
    <div className={`page${isMenu ? " menu" : ""}`} key={session}>
      <a
        className="skip"
        href={route.place === "chat" ? "#message" : "#main"}
        onClick={(event) => {
          // The address holds the place, so the link does not change it.
          event.preventDefault();
          if (route.place === "chat") composer.current?.focus();
          else main.current?.focus();
        }}
      >
        {route.place === "chat" ? "Skip to the message" : "Skip to the content"}
      </a>
      <Sidebar
        open={route.id}
        place={route.place}
        waiting={waiting}
        inboxCount={inboxCount}
        go={go}
        share={setSharing}
        openPalette={() => setPalette(true)}
        openServers={() => setServerList(true)}
        openShares={() => setShareList(true)}
        close={closeMenu}
        onDeleted={leave}
        user={
          me === undefined ? null : (
            <div className="user-line">
              <span id="user" title={me.role}>
                {brief(me.name, 40)}
                {me.role === "admin" && <span className="faint"> · administrator</span>}
              </span>
              {me.keys && (
                <button type="button" id="forget" className="quiet small" onClick={() => void signOut()}>
                  Sign out
                </button>
              )}
            </div>
          )
        }
      />
      <button type="button" id="shade" aria-label="Close the list of conversations" hidden={!isMenu} onClick={closeMenu} />
      <main id="main" ref={main} tabIndex={-1} inert={isMenu}>
        {route.place === "chat" ? (
          <Chat id={route.id} message={route.more} go={go} leave={leave} composer={composer} menu={() => setMenu(true)} isMenu={isMenu} />
        ) : (
          <>
            <Head store={null} title={TITLES[route.place]} menu={() => setMenu(true)} isMenu={isMenu} />
            <Suspense>{route.place === "inbox" ? <Inbox /> : route.place === "usage" ? <Usage /> : route.place === "versions" ? <Versions key={route.more} id={route.more ?? ""} go={go} /> : route.place === "run" ? <Inspector id={route.more ?? ""} /> : <Setup page={route.more} part={route.part} go={go} />}</Suspense>
          </>
        )}
      </main>
      {isDropping && <div className="drop-place">Drop files to attach them</div>}
      <KeyDialog used={startSession} />
      {isPalette && (
        <Suspense>
          <Palette close={() => setPalette(false)} go={go} openShares={() => setShareList(true)} share={route.place === "chat" && route.id !== null ? () => setSharing(route.id) : null} />
        </Suspense>
      )}
      {isServerList && (
        <Suspense>
          <ServerList close={() => setServerList(false)} />
        </Suspense>
      )}
      {isShareList && (
        <Suspense>
          <AllShares close={() => setShareList(false)} />
        </Suspense>
      )}
      {sharing !== null && (
        <Suspense>
          <ShareDialog id={sharing} close={() => setSharing(null)} />
        </Suspense>
      )}
      <Toasts />
    </div>
  );
}

interface ChatProps {
  id: string | null;
  message: string | null;
  go: (to: string) => void;
  leave: () => void;
  composer: React.RefObject<ComposerHandle | null>;
  menu: () => void;
  isMenu: boolean;
}

function Chat({ id, message, go, leave, composer, menu, isMenu }: ChatProps) {
  const [opened, setOpened] = useState<ConversationStore | null>(null);
  const [trouble, setTrouble] = useState("");
  const toEnd = useRef<(() => void) | null>(null);
  /** The open conversation, for what ends after another one was opened. */
  const current = useRef(id);
  useLayoutEffect(() => {
    current.current = id;
    setTrouble("");
    if (id === null) return setOpened(null);
    const store = new ConversationStore(id, {
      changed: (changed, change) => showChange(changed, change as Partial<Conversation>),
      gone: () => {
        leave();
        refresh();
        toast({ words: "This conversation does not exist any more." });
      },
      inboxChanged: () => {
        void queries.invalidateQueries({ queryKey: ["questions"] });
        void queries.invalidateQueries({ queryKey: ["reviews"] });
      },
      failed: setTrouble,
    });
    setOpened(store);
    return () => store.close();
  }, [id, leave]);
  const store = opened?.id === id ? opened : null;

  const actions = useMemo<Actions>(() => {
    const quietly = async (act: () => Promise<unknown>) => {
      try {
        await act();
        setTrouble("");
      } catch (error) {
        setTrouble(api.words(error));
        throw error;
      }
    };
    return {
      act: (what, run) => quietly(() => api.post(`/runs/${run}/${what}`)).catch(() => undefined),
      takeBack: (run) =>
        quietly(async () => {
          await api.post(`/runs/${run.id}/cancel`);
          const said = messagesOf(run).filter((item) => item.role === "user");
          composer.current?.restore(said.map(textOf).filter(Boolean).join("\n"), said.flatMap(filesOf));
        }).catch(() => undefined),
      edit: (item, content) => quietly(() => api.post(`/conversations/${store?.id ?? ""}/messages/${item.id ?? ""}/edit`, { content }, api.newKey())),
      fork: (item) => quietly(async () => go((await api.post<Conversation>(`/conversations/${store?.id ?? ""}/fork`, { to_message_id: item.id }, api.newKey())).id)).catch(() => undefined),
      forkEarlier: (run) =>
        quietly(async () => {
          // The log is read on demand only.
          const { copyBefore } = await import("./versions/log");
          go(await copyBefore(store?.id ?? "", run));
        }).catch(() => undefined),
      rate: (item, rating) =>
        quietly(async () => {
          if (store === null || item.id === null) return;
          const path = `/conversations/${store.id}/messages/${item.id}/feedback`;
          const isOff = item.rating === rating;
          if (isOff) await api.remove(path);
          else await api.post(path, { rating });
          rate(store.state, item.id, isOff ? undefined : rating);
          store.draw();
        }).catch(() => undefined),
      inspect: (run) => go(`run/${run}`),
    };
  }, [store, composer, go]);

  const host = useMemo(
    () => ({
      start: async (content: unknown, choice: object, once: string) => {
        const { run } = await api.post<AcceptedBody>("/runs", { input: content, ...choice }, once);
        refresh();
        // If the user has opened another conversation meanwhile, the page stays there.
        if (current.current === null) go(run.conversation_id);
      },
      tell: (words: string) => toast({ words, ms: 12_000 }),
      sent: () => {
        refresh();
        toEnd.current?.();
      },
    }),
    [go],
  );

  return (
    <ActionsContext value={actions}>
      <Head store={store} title={id === null ? "New conversation" : null} menu={menu} isMenu={isMenu} />
      <Notice store={store} />
      {id === null ? <Start put={(words) => composer.current?.put(words)} card={<Suspense><FirstRun /></Suspense>} /> : store === null ? <div id="scroll" /> : <Transcript key={`transcript ${id}`} store={store} toEndOf={toEnd} target={message} />}
      {(id === null || store !== null) && <Composer key={`composer ${id ?? "new"}`} store={store} host={host} trouble={trouble} say={setTrouble} handle={composer} />}
    </ActionsContext>
  );
}

const nothing = () => () => undefined;

/** The line at the top. `title` is that of a page without a conversation. */
function Head({ store, title: fixed, menu, isMenu }: { store: ConversationStore | null; title: string | null; menu: () => void; isMenu: boolean }) {
  useSyncExternalStore(store?.subscribe ?? nothing, () => store?.version ?? 0);
  const title = fixed ?? brief(store?.state.title || (store?.state.loaded === true ? "Untitled" : "…"), 255);
  useEffect(() => {
    const mark = /^\(\d+\) /.exec(document.title)?.[0] ?? "";
    document.title = mark + (title === "New conversation" ? "Capstan" : `${title} · Capstan`);
  }, [title]);
  return (
    <header>
      <button type="button" id="menu" className="quiet icon" aria-label="Conversations" aria-expanded={isMenu} aria-controls="sidebar" onClick={menu}>
        <Icon name="menu" />
      </button>
      <h1 id="title" dir="auto">{title}</h1>
    </header>
  );
}

/** The connection, while it is lost. */
function Notice({ store }: { store: ConversationStore | null }) {
  useSyncExternalStore(store?.subscribe ?? nothing, () => store?.version ?? 0);
  const link = store?.link ?? null;
  return (
    <div id="notice" role="alert" hidden={link === null}>
      {link !== null && (
        <>
          <span>The connection is lost.</span>
          {/* Screen readers announce only the first text, not each second. */}
          <span id="seconds" aria-live="off" aria-hidden="true">
            {link.lost > 0 ? ` Next try in ${link.lost} s.` : " Trying…"}
          </span>
          <button type="button" className="small" onClick={() => store?.hurry()}>
            Try now
          </button>
        </>
      )}
    </div>
  );
}

