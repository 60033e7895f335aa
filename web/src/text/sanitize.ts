// The only place where markup becomes nodes: the output of the highlighter and of the mathematics library, cleaned.

import createPurify from "dompurify";

const purify = createPurify(window);

/** Returns highlighted code as nodes: spans with classes, and text. */
export function cleanCode(markup: string): DocumentFragment {
  return purify.sanitize(markup, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
}

/** Returns mathematics as MathML nodes. The security policy allows no style attributes. */
export function cleanMath(markup: string): DocumentFragment {
  return purify.sanitize(markup, { USE_PROFILES: { mathMl: true }, FORBID_ATTR: ["style", "href"], RETURN_DOM_FRAGMENT: true });
}
