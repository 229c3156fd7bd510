// Bundles src/ into ../explorer.js; its first line has the hash of what it was made from.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const hash = createHash("sha256");
const sources = ["build.mjs", "package-lock.json", "package.json",
  ...readdirSync("src").map(name => `src/${name}`)].sort();
for (const name of sources) hash.update(readFileSync(name));

const { outputFiles, metafile } = await build({
  entryPoints: ["src/main.js"], bundle: true, format: "esm", minify: true, write: false,
  metafile: true, loader: { ".css": "text" }, legalComments: "none", target: "es2022",
  outfile: "explorer.js",
});
const bundled = Object.keys(metafile.inputs).map(path => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/));
const packages = [...new Set(bundled.filter(Boolean).map(found => found[1]))].sort();
const licences = packages.map(name => {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  return `${name} ${version} (${license})\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`;
});
const head = `// Made by \`python3 dev.py web\` from sources with SHA-256 ${hash.digest("hex")}\n`;
const notes = `/* Contains these packages:\n\n${licences.join("\n\n")}\n*/\n`;
writeFileSync("../explorer.js", head + notes + outputFiles[0].text);
console.log(`explorer.js: ${Math.round((head + notes + outputFiles[0].text).length / 1000)} kB`);
