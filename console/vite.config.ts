import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** Writes the licenses of the libraries that are part of the built files. */
function notices(): Plugin {
  return {
    name: "notices",
    generateBundle() {
      const directories = new Set<string>();
      for (const id of this.getModuleIds()) {
        const found = /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1];
        if (found) directories.add(found);
      }
      const texts = [...directories].sort().map((directory) => {
        const { name, version, license } = JSON.parse(readFileSync(`${directory}/package.json`, "utf8"));
        const text = readdirSync(directory).find((one) => /^licen[cs]e/i.test(one));
        if (!text) this.error(`${name} has no text of its license`);
        return `${"=".repeat(80)}\n${name} ${version} (${license})\n\n${readFileSync(`${directory}/${text}`, "utf8").trim()}\n`;
      });
      this.emitFile({ type: "asset", fileName: "NOTICES.txt", source: texts.join("\n") });
    },
  };
}

const file = (name: string) => fileURLToPath(new URL(name, import.meta.url));

export default defineConfig({
  base: "/console/",
  plugins: [svelte(), notices()],
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    // Inlined files would need a wider policy.
    assetsInlineLimit: 0,
    rollupOptions: {
      input: { index: file("index.html"), terminal: file("terminal.html") },
      output: {
        // Libraries change less often than the console, and are separate in the repository's history.
        manualChunks(id) {
          if (id.includes("/@xterm/")) return "xterm";
          if (/\/(@codemirror|@lezer|style-mod|w3c-keyname|crelt|@marijn)\//.test(id)) return "codemirror";
          return undefined;
        },
      },
    },
  },
});
