// Builds the pages: `npm run build` writes them where the server finds them, `node build.mjs DIRECTORY` elsewhere.
// The same sources and lock file give the same bytes, which a test holds.
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/mainstem/workbench/console/page");

await mkdir(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: [
    { in: "src/app.tsx", out: "app" },
    { in: "src/app.css", out: "app" },
    { in: "src/map/layout_worker.ts", out: "layout_worker" },
  ],
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome120", "firefox121", "safari17"],
  charset: "utf8",
  legalComments: "inline",
  jsx: "automatic",
  jsxImportSource: "preact",
  external: ["inter.woff2"],
  logLevel: "warning",
});
for (const name of ["index.html", "font/inter.woff2", "font/inter_licence.txt", "icon.svg"]) {
  await copyFile(join(here, "src", name), join(target, name.split("/").at(-1)));
}
