// One message: text of a user, or an answer with its reasoning, calls and files.

import { memo, useRef, useState, type ReactNode } from "react";

import type { Call, MessageItem, ShownPart, State } from "../conversation/state";
import { Icon, type IconName } from "../shell/icons";
import { webUrl } from "../text/link-urls";
import { Link, Markdown } from "../text/markdown";
import { When } from "../text/when";
import { brief, copy, tokens } from "../text/words";
import { useActions } from "./actions";
import { AttachedChip } from "./attached";
import { CallGroup, CallView } from "./calls";
import { contentOf, filesOf, textOf } from "./drafts";
import { FileChip, Picture, type FileLike } from "./files";

interface Props {
  item: MessageItem;
  state: State;
  rev: number;
  isOver: boolean;
}

export const MessageView = memo(
  function MessageView({ item, state, rev, isOver }: Props) {
    const [isEditing, setEditing] = useState(false);
    const isUser = item.role === "user";
    const name = `message ${isUser ? "user" : "assistant"}${item.streaming ? " streaming" : ""}`;
    if (isEditing) return <Editor item={item} done={() => setEditing(false)} />;
    return (
      <article id={item.id ?? undefined} className={name} aria-label={isUser ? "You" : "Answer"}>
        <div className="parts">{parts(item, state, rev)}</div>
        {!item.streaming && <Foot item={item} isOver={isOver} edit={() => setEditing(true)} />}
      </article>
    );
  },
  (one, other) => one.item === other.item && one.rev === other.rev && one.isOver === other.isOver && one.state === other.state,
);

/** Shows the parts in their order; several calls in a row are folded. */
function parts(item: MessageItem, state: State, rev: number): ReactNode[] {
  const shown: ReactNode[] = [];
  const last = item.parts.at(-1);
  for (let at = 0; at < item.parts.length; at += 1) {
    const part = item.parts[at];
    if (part === undefined) continue;
    if (part.type !== "tool_call") {
      shown.push(<PartView key={part.id} part={part} role={item.role} isLive={item.streaming && part === last} />);
      continue;
    }
    const calls: Call[] = [];
    for (; item.parts[at]?.type === "tool_call"; at += 1) {
      const call = state.calls.get((item.parts[at] as { call_id?: string }).call_id ?? "");
      if (call !== undefined) calls.push(call);
    }
    at -= 1;
    const [first] = calls;
    if (first === undefined) continue;
    shown.push(calls.length === 1 ? <CallView key={part.id} call={first} rev={rev} /> : <CallGroup key={part.id} calls={calls} rev={rev} />);
  }
  return shown;
}

function PartView({ part, role, isLive }: { part: ShownPart; role: string; isLive: boolean }): ReactNode {
  switch (part.type) {
    case "text":
      if (!part.text) return null;
      return role === "user" ? <div className="said" dir="auto">{part.text}</div> : <Markdown text={part.text} isLive={isLive} />;
    case "reasoning":
      if (!part.text) return null;
      return (
        <details className="thinking">
          <summary>{isLive ? "Thinking…" : "Thought"}</summary>
          <div className="thought" dir="auto">{part.text}</div>
        </details>
      );
    case "image": {
      const file = part as FileLike;
      // A picture that has only begun is not known yet.
      if (file.media_type === undefined) return null;
      return file.file_id === undefined ? <FileChip part={file} /> : <p><Picture part={file} /></p>;
    }
    case "file":
      return <FileChip part={part as FileLike} />;
    case "source": {
      const { url, title } = part as { url?: string; title?: string };
      if (url === undefined && title === undefined) return null;
      const name = brief(title ?? url ?? "", 200);
      const address = url === undefined ? null : webUrl(url);
      return <p className="faint">Source: {address === null ? <span>{name}</span> : <Link url={address}>{name}</Link>}</p>;
    }
    default:
      return null;
  }
}

function Act({ icon, label, act, isOn }: { icon: IconName; label: string; act: () => unknown; isOn?: boolean }) {
  return (
    <button type="button" className="quiet icon" aria-label={label} title={label} aria-pressed={isOn} onClick={() => void act()}>
      <Icon name={icon} />
    </button>
  );
}

/** The row of icons under a message, with its time. */
function Foot({ item, isOver, edit }: { item: MessageItem; isOver: boolean; edit: () => void }) {
  const actions = useActions();
  const [isCopied, setCopied] = useState(false);
  const text = textOf(item);
  const remark = item.partial ? "stopped here" : item.finish === "length" ? "cut: the model reached its limit" : item.finish === "refused" ? "the model refused" : "";
  const isAnswer = item.role === "assistant";
  // An answer that calls tools is not the last one.
  const isStep = isAnswer && item.parts.some((part) => part.type === "tool_call");
  if (isAnswer && remark === "" && (text === "" || isStep)) return null;
  const copied = () =>
    copy(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    });
  return (
    <div className="after">
      {remark !== "" && <span className="faint">{remark}</span>}
      {text !== "" && <Act icon={isCopied ? "done" : "copy"} label={isCopied ? "Copied" : "Copy"} act={copied} />}
      {isAnswer && item.id !== null && isOver && (
        <>
          <Act icon="good" label="Good answer" isOn={item.rating === "up"} act={() => actions.rate(item, "up")} />
          <Act icon="bad" label="Bad answer" isOn={item.rating === "down"} act={() => actions.rate(item, "down")} />
          <Act icon="fork" label="Continue in a copy from here" act={() => actions.fork(item)} />
        </>
      )}
      {!isAnswer && (text !== "" || filesOf(item).length > 0) && isOver && <Act icon="rename" label="Edit and send again" act={edit} />}
      {item.at !== undefined && (
        <When at={item.at} className="faint">
          {item.usage !== undefined && ` · ${tokens(item.usage.output_tokens)} tokens`}
        </When>
      )}
    </div>
  );
}

function Editor({ item, done }: { item: MessageItem; done: () => void }) {
  const actions = useActions();
  const field = useRef<HTMLTextAreaElement>(null);
  const [isSending, setSending] = useState(false);
  const [files, setFiles] = useState(() => filesOf(item));
  const send = () => {
    const text = field.current?.value.trim() ?? "";
    if ((text === "" && files.length === 0) || isSending) return;
    setSending(true);
    void actions.edit(item, contentOf(text, files)).then(done, () => setSending(false));
  };
  return (
    <article className="message user editing" aria-label="Edit the message">
      <textarea
        ref={field}
        defaultValue={textOf(item)}
        aria-label="Message"
        rows={Math.min(12, textOf(item).split("\n").length + 1)}
        autoFocus
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            done();
          } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            send();
          }
        }}
      />
      {files.length > 0 && (
        <div className="attached">
          {files.map((file) => (
            <AttachedChip key={file.key} file={file} drop={() => setFiles(files.filter((other) => other !== file))} />
          ))}
        </div>
      )}
      <div className="buttons">
        <button type="button" onClick={done}>Cancel</button>
        <button type="button" className="primary" disabled={isSending} onClick={send}>Send</button>
      </div>
    </article>
  );
}
