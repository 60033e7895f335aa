// Files that are attached to a message before it is sent.

import { Icon } from "../shell/icons";
import { brief } from "../text/words";
import { isUploading, type Attached } from "./drafts";
import { PICTURES, Picture } from "./files";

/** A file of a message that is being written, with the button that leaves it out. */
export function AttachedChip({ file, drop }: { file: Attached; drop: () => void }) {
  const name = brief(file.name || file.media_type || "file", 60);
  const isPicture = file.id !== null && PICTURES.has(file.media_type);
  return (
    <span className={`chip${isPicture ? " with-picture" : ""}`}>
      {isUploading(file) ? <span className="spin" /> : isPicture ? <Picture part={{ file_id: file.id ?? "", media_type: file.media_type, name: file.name }} /> : <Icon name="file" />}
      <span>{name}</span>
      <button type="button" className="quiet icon" aria-label={`Leave out ${name}`} onClick={drop}>
        <Icon name="close" />
      </button>
    </span>
  );
}
