import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** Writes a compressed copy beside each file, which the server sends to browsers. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    // Other plugins change files until they are written.
    writeBundle({ dir }, bundle) {
      for (const name of Object.keys(bundle)) {
        const path = join(dir ?? "dist", name);
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  // Addresses are relative, for servers under a path of their host.
  base: "./",
  plugins: [react(), compressed()],
  build: {
    assetsDir: "ui",
    // The security policy refuses addresses that hold their data, and the helper of the preload polyfill.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: ["chrome114", "firefox121", "safari17"],
  },
  // A test compares the fields of agents with the reference.
  server: { fs: { allow: [".", "../docs/reference"] } },
  test: { environment: "happy-dom", include: ["src/**/*.test.ts", "src/**/*.test.tsx"] },
});
