// Decides which addresses of messages, tools and servers become links that a user can click.

/** Returns the address if it may be a link: HTTP and HTTPS only. */
export function webUrl(text: string): string | null {
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
