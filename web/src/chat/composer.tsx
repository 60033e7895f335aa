// The box at the bottom: text, attachments and options of a message.

import { useCallback, useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore, type ReactNode, type RefObject } from "react";

import * as api from "../api/client";
import { active, openQuestions } from "../conversation/state";
import type { ConversationStore } from "../conversation/store";
import { Icon } from "../shell/icons";
import { storeChoice, storedChoice, type Choice } from "../shell/default-model";
import { useMe } from "../shell/me";
import { modelOption, useAgents, useDefaultAgentName, useModels, useMostSteps } from "../shell/queries";
import { number } from "../text/words";
import { AttachedChip } from "./attached";
import { attach, contentOf, draftOf, dropFile, isUploading, onDraft, putBack, sent, setText, type Attached } from "./drafts";
import { Picker } from "./picker";
import { progressText } from "./progress";

/** The default limit of the server, in characters. The server enforces its own limit. */
const DEFAULT_MAX_CHARS = 100_000;
/** From this length on, the count of characters is shown. */
const SHOW_COUNT_FROM = 2_000;

/** The actions of the page for a message. */
export interface ComposerHost {
  /** Starts a conversation. */
  start(content: unknown, choice: object, once: string): Promise<void>;
  /** Shows a notice about a message of a conversation that is no longer shown. */
  tell(words: string): void;
  sent(): void;
}

interface Props {
  store: ConversationStore | null;
  host: ComposerHost;
  trouble: string;
  say: (words: string) => void;
  /** Lets other components insert a text, or set the focus. */
  handle: RefObject<ComposerHandle | null>;
}

export interface ComposerHandle {
  focus(): void;
  /** Sends the text. If there is a draft, the text is appended to it instead. */
  put(text: string): void;
  /** Puts the text and the files of a message into the draft. */
  restore(text: string, files: Attached[]): void;
  stop(): void;
  isEmpty(): boolean;
}

const isCoarse = (): boolean => matchMedia("(pointer: coarse)").matches;
const noSubscription = () => () => undefined;

export function Composer({ store, host, trouble, say, handle }: Props) {
  useSyncExternalStore(store?.subscribe ?? noSubscription, () => store?.version ?? 0);
  const id = store?.id ?? "new";
  const [, redraw] = useState(0);
  const [isSending, setSending] = useState(false);
  const [stoppingRun, setStoppingRun] = useState<string | null>(null);
  const [busy, setBusy] = useState("queue");
  const [newChoice, setNewChoice] = useState(storedChoice);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  /** The idempotency key of the message that is being sent, so that a second attempt creates no second message. */
  const once = useRef<{ what: string; key: string } | null>(null);
  const isHere = useRef(true);
  const draft = draftOf(id);
  const run = store === null ? null : active(store.state);
  const record = store?.record ?? null;
  const ofRun = store === null ? null : ([...store.state.runs.values()].findLast((known) => known.agent !== null)?.agent ?? null);
  const defaultAgent = useDefaultAgentName();
  const agent = store === null ? newChoice.agent : (record?.agent ?? ofRun ?? defaultAgent).replace(/@\d+$/, "");
  const model = store === null ? newChoice.model : (record?.model ?? "");

  const measure = useCallback(() => {
    const node = field.current;
    if (node === null) return;
    node.style.height = "auto";
    node.style.height = `${Math.min(node.scrollHeight, window.innerHeight * 0.4)}px`;
  }, []);

  useEffect(() => {
    isHere.current = true;
    const off = onDraft((changed, words) => {
      if (changed !== id) return;
      if (words !== undefined) say(words);
      redraw((count) => count + 1);
    });
    return () => {
      isHere.current = false;
      off();
    };
  }, [id, say]);

  useLayoutEffect(() => {
    const node = field.current;
    if (node !== null && node.value !== draft.text) node.value = draft.text;
    measure();
  });

  useEffect(() => {
    if (!isCoarse()) field.current?.focus({ preventScroll: true });
  }, []);

  const change = async (changes: Partial<Choice>) => {
    say("");
    if (store === null) {
      const chosen = { ...newChoice, ...changes };
      setNewChoice(chosen);
      storeChoice(chosen);
      return;
    }
    try {
      await store.change(changes);
    } catch (error) {
      say(api.words(error));
    }
  };

  const send = async () => {
    const text = draft.text.trim();
    const files = [...draft.files];
    if (isSending || (text === "" && files.length === 0)) return;
    if (files.some(isUploading)) return say("A file is still being sent.");
    const content = contentOf(text, files);
    const choice: Record<string, string> = {};
    if (store === null) {
      if (newChoice.agent !== "") choice.agent = newChoice.agent;
      if (newChoice.model !== "") choice.model = newChoice.model;
    } else if (run !== null) {
      choice.on_busy = busy;
    }
    const what = JSON.stringify([content, choice]);
    if (once.current?.what !== what) once.current = { what, key: api.newKey() };
    const { key } = once.current;
    setSending(true);
    say("");
    try {
      if (store === null) await host.start(content, choice, key);
      else await store.send(content, text, choice, key);
      once.current = null;
      sent(id, text, files);
      host.sent();
    } catch (error) {
      // The server refused the message: the next attempt is another message. Without a response, the message may have arrived.
      if (error instanceof api.Problem && error.status < 500) once.current = null;
      if (!(error instanceof api.Problem && error.status === 401)) {
        if (isHere.current) say(api.words(error));
        else host.tell(`Your message to another conversation: ${api.words(error)}`);
      }
    }
    setSending(false);
    if (isHere.current && !isCoarse()) field.current?.focus({ preventScroll: true });
  };

  const stop = async () => {
    if (run === null) return;
    setStoppingRun(run.id);
    try {
      await api.post(`/runs/${run.id}/cancel`);
    } catch (error) {
      say(api.words(error));
      setStoppingRun(null);
    }
  };

  useEffect(() => {
    handle.current = {
      focus: () => field.current?.focus({ preventScroll: true }),
      put: (text) => {
        const before = draftOf(id).text.trimEnd();
        setText(id, before === "" ? text : `${before}\n${text}`);
        if (before === "") void send();
        else field.current?.focus({ preventScroll: true });
      },
      restore: (text, files) => {
        putBack(id, text, files);
        field.current?.focus({ preventScroll: true });
      },
      stop: () => void stop(),
      isEmpty: () => draftOf(id).text.trim() === "" && draftOf(id).files.length === 0,
    };
    return () => {
      handle.current = null;
    };
  });

  const isEmpty = draft.text.trim() === "" && draft.files.length === 0;
  const length = draft.text.length;
  return (
    <form
      id="composer"
      className={run === null ? undefined : "busy"}
      autoComplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <Progress store={store} />
      {trouble !== "" && (
        <div id="trouble" role="alert">
          <span>{trouble}</span>
          <button type="button" className="quiet icon" aria-label="Close" onClick={() => say("")}>
            <Icon name="close" />
          </button>
        </div>
      )}
      <div className="box">
        {draft.files.length > 0 && (
          <div id="files">
            {draft.files.map((file) => (
              <AttachedChip key={file.key} file={file} drop={() => dropFile(id, file.key)} />
            ))}
          </div>
        )}
        <textarea
          id="message"
          ref={field}
          rows={1}
          dir="auto"
          placeholder={run !== null ? "Write the next message" : "Write a message"}
          aria-label="Message"
          aria-describedby="hint"
          enterKeyHint={isCoarse() ? "enter" : "send"}
          defaultValue={draft.text}
          onInput={(event) => setText(id, event.currentTarget.value)}
          onKeyDown={(event) => {
            // An Enter that confirms a word of an input method does not send; Safari marks it only by key code 229. On phones, Enter begins a line.
            // eslint-disable-next-line @typescript-eslint/no-deprecated
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing || event.nativeEvent.keyCode === 229) return;
            if (isCoarse() && !event.ctrlKey && !event.metaKey) return;
            event.preventDefault();
            void send();
          }}
          onPaste={(event) => {
            const files = [...event.clipboardData.files];
            if (files.length === 0) return;
            event.preventDefault();
            void attach(id, files);
          }}
        />
        <div className="row">
          <button type="button" id="attach" className="quiet icon" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()}>
            <Icon name="attach" />
          </button>
          <input
            type="file"
            id="file"
            ref={picker}
            multiple
            hidden
            tabIndex={-1}
            aria-label="Files to attach"
            onChange={(event) => {
              const files = [...(event.target.files ?? [])];
              event.target.value = "";
              void attach(id, files);
            }}
          />
          <span className="choices">
            <AgentPicker value={agent} choose={(chosen) => void change({ agent: chosen })} />
            <ModelPicker value={model} choose={(chosen) => void change({ model: chosen })} />
          </span>
          {run !== null && (
            <label className="field" id="busy-field">
              <span className="unseen">While it works</span>
              <select id="busy" value={busy} onChange={(event) => setBusy(event.target.value)}>
                <option value="queue">send after this answer</option>
                <option value="steer">say it in this answer</option>
                <option value="interrupt">stop it and send</option>
              </select>
            </label>
          )}
          <span className="fill" />
          {length > SHOW_COUNT_FROM && (
            <span id="count" className={length > DEFAULT_MAX_CHARS ? "over" : ""} aria-label="Characters">
              {number(length)}
            </span>
          )}
          <ContextMeter store={store} />
          {run !== null && (
            <button type="button" id="stop" className={`icon round${isEmpty ? " primary" : ""}`} aria-label="Stop" title="Stop (Escape)" disabled={stoppingRun === run.id} onClick={() => void stop()}>
              <Icon name="stop" />
            </button>
          )}
          {(run === null || !isEmpty) && (
            <button type="submit" id="send" className="primary icon round" aria-label="Send" title="Send" disabled={isSending || isEmpty}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
      <p id="hint" className="unseen">
        Enter sends, Shift and Enter begins a new line, Escape stops the answer.
      </p>
    </form>
  );
}

function Progress({ store }: { store: ConversationStore | null }): ReactNode {
  const run = store === null ? null : active(store.state);
  const most = useMostSteps(run?.agent ?? null);
  const waits = store !== null && run !== null && (run.status === "waiting" || openQuestions(store.state).some((question) => question.item?.run === run.id));
  return (
    <div id="progress" hidden={run === null} className={waits ? "waits" : ""}>
      <span className="spin" aria-hidden="true" />
      <span id="step">{store !== null && run !== null ? progressText(run, store.state, most) : ""}</span>
    </div>
  );
}

function ContextMeter({ store }: { store: ConversationStore | null }) {
  const budget = store?.state.budget ?? null;
  if (budget === null) return null;
  const percent = Math.min(100, Math.round((100 * budget.used) / Math.max(1, budget.window)));
  const title = `Context: ${budget.tokenizer === undefined ? "about " : ""}${number(budget.used)} of ${number(budget.window)} ${budget.unit}; ${number(budget.remaining)} left`;
  return (
    <span id="context" title={title}>
      <span id="context-words">{percent} %</span>
      <span className={`meter${percent >= 80 ? " high" : ""}`} role="meter" aria-label="Context used" aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
        <span style={{ width: `${percent}%` }} />
      </span>
    </span>
  );
}

function AgentPicker({ value, choose }: { value: string; choose: (agent: string) => void }) {
  const { data = [] } = useAgents();
  const own = useDefaultAgentName();
  const options = data
    .filter((agent) => agent.name !== own)
    .map((agent) => ({ value: agent.name, label: agent.name, ...(agent.description === "" ? {} : { detail: agent.description }) }));
  return <Picker id="agent" icon="agent" label="Agent" value={value === own ? "" : value} own={own} options={options} choose={(chosen) => choose(chosen || own)} />;
}

function ModelPicker({ value, choose }: { value: string; choose: (model: string) => void }) {
  const { data = [], isLoading, error } = useModels();
  const { data: me } = useMe();
  return (
    <Picker
      id="model"
      icon="model"
      label="Model"
      value={value}
      own={me?.model === undefined ? "Default model" : `Default: ${me.model}`}
      options={data.map(modelOption)}
      isLoading={isLoading}
      trouble={error === null ? undefined : api.words(error)}
      isOpen
      choose={choose}
    />
  );
}

