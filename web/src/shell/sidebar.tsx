// The list of conversations.

import { useQuery } from "@tanstack/react-query";
import { DropdownMenu } from "radix-ui";
import { useDeferredValue, useEffect, useRef, useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { Conversation, FoundMessage } from "../api/types";
import { save } from "../chat/files";
import { ago, brief, dayGroup, since } from "../text/words";
import { change, importFile, removeLater, tagsOf, showChange, usedTags, useConversations, useHidden } from "./conversations";
import { Icon, Mark, type IconName } from "./icons";
import { usePolling } from "./live";
import { useServers } from "./queries";
import { worstState } from "./server-state";
import { toast } from "./toasts";

const STATES: Record<string, string> = { queued: "queued", processing: "at work", tool_loop: "at work", waiting: "waits", failed: "failed" };
const REASONS: Record<string, string> = { approval: "waits for you", input: "waits for you", client_tool: "waits for its client", backoff: "waits to try again", budget: "waits for a budget" };

const isMac = navigator.userAgent.includes("Mac");

interface Props {
  open: string | null;
  place: string;
  /** The conversations with open questions. */
  waiting: ReadonlySet<string>;
  /** The number of things that wait for the user. */
  inboxCount: number;
  go: (route: string) => void;
  share: (conversation: string) => void;
  /** Opens the command palette. */
  openPalette: () => void;
  /** Opens the list of MCP servers. */
  openServers: () => void;
  /** Opens the list of shared links. */
  openShares: () => void;
  close: () => void;
  /** Called when the open conversation was deleted. */
  onDeleted: () => void;
  user: ReactNode;
}

export function Sidebar({ open, place, waiting, inboxCount, go, share, openPalette, openServers, openShares, close, onDeleted, user }: Props) {
  const [search, setSearch] = useState("");
  const [isArchived, setArchived] = useState(false);
  const [tag, setTag] = useState<string | null>(null);
  const wanted = useDeferredValue(search.trim());
  // The pinned ones are a list of their own: they stay on top although others are newer.
  const pinned = useConversations(wanted, isArchived, tag, true);
  const others = useConversations(wanted, isArchived, tag, false);
  const lists = [pinned, others];
  const error = pinned.error ?? others.error;
  const hidden = useHidden();
  const { data: messages } = useFound(wanted);
  // A conversation is in both lists for a moment after it was pinned.
  const found = new Map(lists.flatMap((list) => list.data?.pages ?? []).flatMap((page) => page.data.map((row) => [row.id, row] as const)));
  const rows = [...found.values()].filter((row) => !hidden.has(row.id));
  const now = useNow();
  const groups = new Map<string, Conversation[]>();
  for (const row of rows) {
    const name = row.pinned === true ? "Pinned" : isArchived ? "Archived" : dayGroup(row.updated_at, now);
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  const names = [...groups.keys()].sort((one, other) => Number(other === "Pinned") - Number(one === "Pinned"));
  return (
    <aside id="sidebar" aria-label="Conversations">
      <div className="head">
        <a className="brand" href="#/" onClick={close}>
          <Mark />
          Capstan
        </a>
        <span className="fill" />
        <ImportButton
          onImported={(id) => {
            close();
            go(id);
          }}
        />
        <button
          type="button"
          id="new"
          className="quiet icon"
          aria-label="New conversation"
          title="New conversation (Ctrl+Shift+O)"
          onClick={() => {
            close();
            go("");
          }}
        >
          <Icon name="plus" />
        </button>
      </div>
      <div className="search">
        <Icon name="search" />
        <input type="search" id="search" placeholder="Search" aria-label="Search conversations and messages" autoComplete="off" maxLength={200} value={search} onChange={(event) => setSearch(event.target.value)} />
      </div>
      <TagFilter rows={rows} chosen={tag} choose={setTag} />
      <nav id="conversations" aria-label="Conversations">
        {error !== null && !(error instanceof api.Problem && error.status === 401) && <p className="faint empty">{api.words(error)}</p>}
        {others.isPending && <ListSkeleton />}
        {lists.every((list) => list.data !== undefined) && rows.length === 0 && (wanted === "" || messages?.length === 0) && <p className="faint empty">{wanted !== "" ? "No matches" : tag !== null ? "No conversation has this tag." : isArchived ? "Nothing is archived." : "No conversations yet."}</p>}
        {names.map((name) => (
          <section key={name} aria-label={name}>
            <h2>{name}</h2>
            {groups.get(name)?.map((row) => (
              <Row key={row.id} row={row} now={now} isOpen={row.id === open} isWaiting={waiting.has(row.id)} close={close} onDeleted={onDeleted} go={go} share={share} />
            ))}
          </section>
        ))}
        {lists.some((list) => list.hasNextPage) && (
          <button type="button" className="quiet small more" disabled={lists.some((list) => list.isFetchingNextPage)} onClick={() => lists.filter((list) => list.hasNextPage).forEach((list) => void list.fetchNextPage())}>
            More
          </button>
        )}
        {wanted !== "" && messages !== undefined && messages.length > 0 && <Found messages={messages} close={close} />}
      </nav>
      <div className="foot">
        <button
          type="button"
          id="go-to"
          className="quiet foot-link"
          aria-keyshortcuts="Control+K Meta+K"
          onClick={() => {
            close();
            openPalette();
          }}
        >
          <Icon name="command" />
          Go to…
          <kbd>{isMac ? "⌘K" : "Ctrl+K"}</kbd>
        </button>
        <FootLink route="inbox" icon="inbox" label="Inbox" place={place} close={close} badge={inboxCount} />
        <ServersButton
          open={() => {
            close();
            openServers();
          }}
        />
        <button
          type="button"
          id="shares"
          className="quiet foot-link"
          aria-haspopup="dialog"
          onClick={() => {
            close();
            openShares();
          }}
        >
          <Icon name="share" />
          Shared links
        </button>
        <FootLink route="setup" icon="settings" label="Set up" place={place} close={close} />
        <FootLink route="usage" icon="usage" label="Usage" place={place} close={close} />
        <button type="button" className={`quiet foot-link${isArchived ? " on" : ""}`} aria-pressed={isArchived} onClick={() => setArchived(!isArchived)}>
          <Icon name="archive" />
          {isArchived ? "Back to all" : "Archive"}
        </button>
        {user}
      </div>
    </aside>
  );
}

/** Opens the list of MCP servers. Beside its name is their worst state. */
function ServersButton({ open }: { open: () => void }) {
  const { data } = useServers(true, usePolling(30_000));
  const worst = worstState(data ?? []);
  return (
    <button type="button" id="servers" className="quiet foot-link" aria-haspopup="dialog" onClick={open}>
      <Icon name="tool" />
      MCP servers
      {worst !== null && (
        <span className={`state ${worst.look}`}>
          <span className="state-dot" aria-hidden="true" />
          {worst.words}
        </span>
      )}
    </button>
  );
}

/** The time, which goes on each minute, for times relative to it. */
function useNow(): Date {
  const [now, setNow] = useState(() => new Date());
  useEffect(() => {
    const timer = setInterval(() => setNow(new Date()), 60_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Reads a conversation from a file that *Save as JSON* has written. */
function ImportButton({ onImported }: { onImported: (id: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={field}
        id="import"
        type="file"
        accept="application/json,.json"
        hidden
        onChange={({ target }) => {
          const file = target.files?.[0];
          target.value = "";
          if (file !== undefined) void importFile(file).then((id) => id !== null && onImported(id));
        }}
      />
      <button type="button" className="quiet icon" aria-label="Import a conversation" title="Import a conversation" onClick={() => field.current?.click()}>
        <Icon name="import" />
      </button>
    </>
  );
}

/** The most tags that the list offers. */
const MOST_TAGS = 12;

function TagFilter({ rows, chosen, choose }: { rows: Conversation[]; chosen: string | null; choose: (tag: string | null) => void }) {
  const tags = [...new Set([...(chosen === null ? [] : [chosen]), ...usedTags(rows)])].slice(0, MOST_TAGS);
  if (tags.length === 0) return null;
  return (
    <div className="tag-filter" role="group" aria-label="Tags">
      {tags.map((tag) => (
        <button key={tag} type="button" className={`chip${tag === chosen ? " on" : ""}`} aria-pressed={tag === chosen} dir="auto" onClick={() => choose(tag === chosen ? null : tag)}>
          <span>{brief(tag, 40)}</span>
        </button>
      ))}
    </div>
  );
}

function FootLink({ route, icon, label, place, close, badge = 0 }: { route: string; icon: IconName; label: string; place: string; close: () => void; badge?: number }) {
  return (
    <a className={`foot-link${place === route ? " on" : ""}`} href={`#/${route}`} aria-current={place === route ? "page" : undefined} onClick={close}>
      <Icon name={icon} />
      {label}
      {badge > 0 && <span className="badge">{badge}</span>}
    </a>
  );
}

function ListSkeleton() {
  return (
    <div className="skeleton list" aria-hidden="true">
      {[70, 52, 80, 45, 64, 58].map((width) => (
        <span key={width} style={{ width: `${width}%` }} />
      ))}
    </div>
  );
}

interface RowProps {
  row: Conversation;
  now: Date;
  isOpen: boolean;
  isWaiting: boolean;
  close: () => void;
  onDeleted: () => void;
  go: (route: string) => void;
  share: (conversation: string) => void;
}

function Row({ row, now, isOpen, isWaiting, close, onDeleted, go, share }: RowProps) {
  const [edited, setEdited] = useState<"title" | "tags" | null>(null);
  const isFocused = useRef(false);
  const done = (byKey: boolean) => {
    isFocused.current = byKey;
    setEdited(null);
  };
  const title = brief(row.title || "Untitled", 200);
  const isAsking = isWaiting || (row.status === "waiting" && (row.reason === "approval" || row.reason === "input"));
  const state = isAsking ? "waits for you" : ((row.status === "waiting" ? REASONS[row.reason ?? ""] : undefined) ?? STATES[row.status]);
  const look = isAsking ? "asking" : row.status;
  if (edited === "title") {
    const rename = async (title: string) => {
      if (title === "" || title === row.title) return;
      showChange(row.id, { title });
      await change(row.id, { title });
    };
    return <LineEditor label="Title" value={row.title} keep={rename} done={done} />;
  }
  if (edited === "tags") {
    return <LineEditor label="Tags, with commas between them" value={(row.tags ?? []).join(", ")} keep={(text) => change(row.id, { tags: tagsOf(text) })} done={done} />;
  }
  const remove = () => {
    removeLater(row.id, title, () => {
      if (isOpen) go(row.id);
    });
    if (isOpen) onDeleted();
  };
  return (
    <div className={`conversation${isOpen ? " open" : ""}`}>
      <a
        ref={(link) => {
          // The field is gone, and with it the focus.
          if (link === null || !isFocused.current) return;
          isFocused.current = false;
          link.focus();
        }}
        href={`#/${row.id}`}
        className="name" aria-current={isOpen ? "page" : undefined} title={[title, ago(row.updated_at, now.getTime()), ...(row.tags ?? []).map((tag) => brief(tag, 40))].join(" · ")} onClick={close}>
        <span className="words" dir="auto">{title}</span>
        <time className="when" dateTime={row.updated_at}>{since(row.updated_at, now)}</time>
        {state !== undefined && (
          <span className={`dot ${look}`} title={state}>
            <span className="unseen">{state}</span>
          </span>
        )}
      </a>
      <RowMenu row={row} title={title} edit={setEdited} remove={remove} go={go} share={() => share(row.id)} />
    </div>
  );
}

interface MenuProps {
  row: Conversation;
  title: string;
  edit: (what: "title" | "tags") => void;
  remove: () => void;
  go: (route: string) => void;
  share: () => void;
}

async function exported(row: Conversation, format: "markdown" | "json"): Promise<void> {
  try {
    const name = brief(row.title || "conversation", 80).replace(/[\\/:*?"<>|]/g, "-");
    save(await api.bytes(`/conversations/${row.id}/export?format=${format}`), `${name}.${format === "json" ? "json" : "md"}`);
  } catch (error) {
    toast({ words: api.words(error) });
  }
}

async function forked(row: Conversation, go: (route: string) => void): Promise<void> {
  try {
    go((await api.post<Conversation>(`/conversations/${row.id}/fork`, {}, api.newKey())).id);
  } catch (error) {
    toast({ words: api.words(error) });
  }
}

export function RowMenu({ row, title, edit, remove, go, share }: MenuProps) {
  const button = useRef<HTMLButtonElement>(null);
  const item = (icon: IconName, label: string, act: () => unknown, look = "") => (
    <DropdownMenu.Item className={`menu-item ${look}`} onSelect={() => void act()}>
      <Icon name={icon} />
      {label}
    </DropdownMenu.Item>
  );
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger asChild>
        <button type="button" ref={button} className="quiet icon row-menu" aria-label={`More about ${title}`}>
          <Icon name="more" />
        </button>
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="popover menu" align="start" sideOffset={4} collisionPadding={8}>
          {item("rename", "Rename", () => edit("title"))}
          {item("tag", "Tags", () => edit("tags"))}
          {item("pin", row.pinned === true ? "Unpin" : "Pin", () => change(row.id, { pinned: row.pinned !== true }))}
          {item("again", "Earlier versions", () => go(`versions/${row.id}`))}
          {item("share", "Share…", () => {
            // The dialog gives the focus back to where it was, and the menu is gone then.
            button.current?.focus();
            share();
          })}
          {item("fork", "Copy", () => forked(row, go))}
          {item("export", "Save as Markdown", () => exported(row, "markdown"))}
          {item("export", "Save as JSON", () => exported(row, "json"))}
          {item("archive", row.archived_at === undefined ? "Archive" : "Restore", () => change(row.id, { archived: row.archived_at === undefined }))}
          <DropdownMenu.Separator className="menu-line" />
          {item("remove", "Delete", remove, "danger")}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

interface EditorProps {
  label: string;
  value: string;
  keep: (text: string) => Promise<void>;
  /** Called at the end, with whether a key ended it. */
  done: (byKey: boolean) => void;
}

/** A field in the place of a row. Enter and leaving it keep the text; Escape does not. */
function LineEditor({ label, value, keep, done }: EditorProps) {
  const field = useRef<HTMLInputElement>(null);
  const isDone = useRef(false);
  useEffect(() => {
    // The menu gives the focus back to its button first.
    const timer = setTimeout(() => {
      field.current?.focus();
      field.current?.select();
    });
    return () => clearTimeout(timer);
  }, []);
  const end = async (isKept: boolean, byKey: boolean) => {
    if (isDone.current) return;
    isDone.current = true;
    const text = field.current?.value.trim() ?? "";
    done(byKey);
    if (isKept && text !== value) await keep(text);
  };
  return (
    <div className="conversation">
      <input
        ref={field}
        type="text"
        maxLength={label === "Title" ? 255 : 1_000}
        aria-label={label}
        placeholder={label}
        defaultValue={value}
        onBlur={() => void end(true, false)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" && event.key !== "Escape") return;
          event.preventDefault();
          event.stopPropagation();
          void end(event.key === "Enter", true);
        }}
      />
    </div>
  );
}

/** The messages that contain the searched words. */
const useFound = (wanted: string) =>
  useQuery({
    queryKey: ["search", wanted],
    queryFn: async () => (await api.get<api.Page<FoundMessage>>(`/search?q=${encodeURIComponent(wanted)}&limit=20`)).data,
    enabled: wanted !== "",
  });

function Found({ messages, close }: { messages: FoundMessage[]; close: () => void }) {
  return (
    <section aria-label="Messages">
      <h2>Messages</h2>
      {messages.map((found) => (
        <a key={found.message_id} className="found" href={`#/${found.conversation_id}/${found.message_id}`} onClick={close}>
          <span className="words">{brief(found.title || "Untitled", 100)}</span>
          <Snippet snippet={found.snippet} />
        </a>
      ))}
    </section>
  );
}

export function Snippet({ snippet }: { snippet: FoundMessage["snippet"] }) {
  return <span className="snippet">{snippet.map((part, at) => (part.hit === true ? <mark key={at}>{part.text}</mark> : part.text))}</span>;
}
