// Stored files: pictures are shown, other files are saved by a click. Their bytes are read with the key of the page, and nothing is loaded
// from elsewhere.

import { bytes, words } from "./api.js";
import { brief, button, h, icon } from "./dom.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const blobOf = (part) => bytes(`/files/${encodeURIComponent(part.file_id)}/content`);
const nameOf = (part) => brief(part.name ?? part.media_type ?? "file", 80);

/** A file that can be saved. */
export function fileChip(part) {
  const name = nameOf(part);
  if (!part.file_id) return h("span", { class: "chip" }, icon("file"), name);
  const chip = button(name, async () => {
    try {
      const address = URL.createObjectURL(await blobOf(part));
      h("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    } catch (error) {
      chip.title = words(error);
    }
  }, "chip");
  chip.prepend(icon("file"));
  return chip;
}

/** A picture that is shown; results of older servers hold its bytes themselves. */
export function picture(part) {
  if (!PICTURES.has(part.media_type)) return fileChip(part);
  const image = h("img", { alt: part.name ? nameOf(part) : "A picture" });
  if (typeof part.data === "string" && /^[A-Za-z0-9+/=]+$/.test(part.data)) {
    image.src = `data:${part.media_type};base64,${part.data}`;
    return image;
  }
  if (!part.file_id) return fileChip(part);
  blobOf(part).then((blob) => {
    const address = URL.createObjectURL(blob);
    image.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
    image.src = address;
  }).catch((error) => image.replaceWith(h("p", { class: "faint" }, `${nameOf(part)}: ${words(error)}`)));
  return image;
}
