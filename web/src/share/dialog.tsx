// Makes links to a copy of a conversation, lists them, and revokes them.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import * as api from "../api/client";
import type { Share } from "../api/types";
import { Failure, Form, textOf } from "../setup/parts";
import { Dialog } from "../shell/dialog";
import { Icon, type IconName } from "../shell/icons";
import { useMe } from "../shell/me";
import { queries } from "../shell/queries";
import { CopyButton } from "../text/markdown";
import { brief } from "../text/words";
import { SHARES, ShareRows, useRevoking } from "./list";
import { lifetimes, shareLink, usualLifetime } from "./shares";

const SEEN = ["The text of all messages", "The names of used tools", "The title and the dates"];
const UNSEEN = ["Tool arguments and results", "Files, pictures and thinking", "Messages that come later"];

export default function ShareDialog({ id, close }: { id: string; close: () => void }) {
  const { data: conversation } = useQuery({ queryKey: ["conversation", id], queryFn: () => api.conversation(id), staleTime: 0 });
  const { data: me } = useMe();
  const [made, setMade] = useState<Share | null>(null);
  const path = `/conversations/${id}/shares`;
  const create = async (values: FormData) => {
    try {
      setMade(await api.post<Share>(path, { expires_in_days: Number(textOf(values, "days")) }));
    } finally {
      // A link whose answer got lost exists, too.
      await queries.invalidateQueries({ queryKey: [SHARES] });
    }
  };
  const title = conversation === undefined ? "the conversation" : `“${brief(conversation.title || "Untitled", 80)}”`;
  return (
    <Dialog label="Share the conversation" isOpen close={close} className="share">
      <div className="dialog-head">
        <h2 dir="auto">{`Share ${title}`}</h2>
        <button type="button" className="quiet icon" aria-label="Close" title="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </div>
      <p>Anyone who has the link can read a copy of the conversation, as it is now, without a key.</p>
      <div className="share-scope">
        <Scope label="Readers see" icon="done" facts={SEEN} />
        <Scope label="Readers do not see" icon="close" facts={UNSEEN} />
      </div>
      {me?.max_share_days !== undefined && <NewShare limit={me.max_share_days} create={create} />}
      {me !== undefined && me.max_share_days === undefined && <p className="trouble">This server does not share conversations.</p>}
      {made?.token !== undefined && <NewLink key={made.id} link={shareLink(made.token, document.baseURI)} />}
      <Links id={id} path={path} revoked={(share) => share === made?.id && setMade(null)} />
    </Dialog>
  );
}

/** A form for a new link. `limit`: the most days that the server allows. */
function NewShare({ limit, create }: { limit: number; create: (values: FormData) => Promise<void> }) {
  const usual = usualLifetime(limit);
  return (
    <Form label="Create link" submit={create}>
      <fieldset className="days">
        <legend className="field-label">The link works for</legend>
        {lifetimes(limit).map((days) => (
          <label key={days} className="chip">
            <input type="radio" name="days" value={days} defaultChecked={days === usual} ref={days === usual ? focusAtOpening : undefined} />
            {days === 1 ? "1 day" : `${days} days`}
          </label>
        ))}
      </fieldset>
    </Form>
  );
}

/** Makes the dialog focus this field when it opens. React would focus it before, when it cannot be focused yet. */
const focusAtOpening = (field: HTMLInputElement | null): void => field?.setAttribute("autofocus", "");

function Scope({ label, icon, facts }: { label: string; icon: IconName; facts: readonly string[] }) {
  return (
    <div>
      <h3>{label}</h3>
      <ul>
        {facts.map((fact) => (
          <li key={fact}>
            <Icon name={icon} />
            {fact}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The new link. The server stores only a hash of its token, so no later answer has it. */
function NewLink({ link }: { link: string }) {
  const node = useRef<HTMLDivElement>(null);
  useEffect(() => node.current?.querySelector("button")?.focus(), []);
  return (
    <div className="card share-made" role="status" ref={node}>
      <p>Copy the link now: it is not shown again.</p>
      <div className="share-link">
        <input type="text" readOnly aria-label="Link" value={link} onFocus={(event) => event.target.select()} />
        <CopyButton text={() => link} label="Copy link" className="primary" />
      </div>
    </div>
  );
}

/** The links of the conversation, newest first. */
function Links({ id, path, revoked }: { id: string; path: string; revoked: (share: string) => void }) {
  const { data, error } = useQuery({ queryKey: [SHARES, id], queryFn: () => api.get<{ data: Share[] }>(path), staleTime: 0 });
  const { revoke, news, heading } = useRevoking(revoked);
  return (
    <section className="share-links" aria-labelledby="share-links">
      <h3 id="share-links" tabIndex={-1} ref={heading}>
        Links of this conversation
      </h3>
      <span className="unseen" role="status">
        {news}
      </span>
      <Failure error={error} />
      {data?.data.length === 0 && <p className="faint">There are no links.</p>}
      {data !== undefined && <ShareRows shares={data.data} revoke={revoke} />}
    </section>
  );
}
