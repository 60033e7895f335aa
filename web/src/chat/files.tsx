// Stored files: pictures are shown, other files are saved by a click. Their bytes are read with the key of the page, and nothing is
// loaded from elsewhere.

import { useEffect, useState } from "react";

import { bytes, words } from "../api/client";
import { Icon } from "../shell/icons";
import { brief } from "../text/words";

/** A part or tool content that names a stored file, or holds its bytes. */
export interface FileLike {
  media_type?: string;
  file_id?: string;
  name?: string;
  data?: string;
}

export const PICTURES: ReadonlySet<string> = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const blobOf = (part: FileLike): Promise<Blob> => bytes(`/files/${encodeURIComponent(part.file_id ?? "")}/content`);
const nameOf = (part: FileLike): string => brief(part.name ?? part.media_type ?? "file", 80);

/** Saves bytes as a file of the user. */
export function save(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A file that can be saved. */
export function FileChip({ part }: { part: FileLike }) {
  const [trouble, setTrouble] = useState<string>();
  const name = nameOf(part);
  const content = (
    <>
      <Icon name="file" />
      <span>{name}</span>
    </>
  );
  if (part.file_id === undefined) return <span className="chip">{content}</span>;
  const load = () => void blobOf(part).then((blob) => save(blob, name), (error: unknown) => setTrouble(words(error)));
  return (
    <button type="button" className="chip" title={trouble} onClick={load}>
      {content}
    </button>
  );
}

/** A shown picture; results of older servers hold its bytes themselves. */
export function Picture({ part }: { part: FileLike }) {
  const [address, setAddress] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  const isPicture = PICTURES.has(part.media_type ?? "");
  const id = isPicture && part.data === undefined ? part.file_id : undefined;
  useEffect(() => {
    if (id === undefined) return;
    let made: string | null = null;
    let isGone = false;
    blobOf({ file_id: id }).then(
      (blob) => {
        if (isGone) return;
        made = URL.createObjectURL(blob);
        setAddress(made);
      },
      (error: unknown) => setTrouble(words(error)),
    );
    return () => {
      isGone = true;
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [id]);
  if (!isPicture) return <FileChip part={part} />;
  const alt = part.name === undefined ? "A picture" : nameOf(part);
  if (part.data !== undefined && /^[A-Za-z0-9+/=]+$/.test(part.data)) return <img alt={alt} src={`data:${part.media_type ?? ""};base64,${part.data}`} />;
  if (trouble !== null) return <p className="faint">{`${nameOf(part)}: ${trouble}`}</p>;
  if (part.file_id === undefined) return <FileChip part={part} />;
  return address === null ? <span className="picture-place" /> : <img alt={alt} src={address} />;
}
