// A registry with one image of one small layer.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { gzipSync } from "node:zlib";

const digestOf = (bytes) => `sha256:${createHash("sha256").update(bytes).digest("hex")}`;

/** A tar with one file. */
function tarOf(name, content) {
  const head = Buffer.alloc(512);
  const put = (at, text) => head.write(text, at, "latin1");
  put(0, name);
  put(100, "0000644\0");
  put(108, "0000000\0");
  put(116, "0000000\0");
  put(124, `${content.length.toString(8).padStart(11, "0")}\0`);
  put(136, "00000000000\0");
  put(148, "        ");
  put(156, "0");
  put(257, "ustar\0" + "00");
  const sum = head.reduce((all, byte) => all + byte, 0);
  put(148, `${sum.toString(8).padStart(6, "0")}\0 `);
  const body = Buffer.alloc(Math.ceil(content.length / 512) * 512);
  body.write(content, "latin1");
  return Buffer.concat([head, body, Buffer.alloc(1024)]);
}

/** Serves the image at `team/tiny:1.0`. */
export async function registry() {
  const tar = tarOf("etc/hello", "hello from an image\n");
  const layer = gzipSync(tar);
  const config = Buffer.from(JSON.stringify({
    architecture: process.arch === "arm64" ? "arm64" : "amd64", os: "linux",
    config: { Env: ["GREETING=hello"] }, rootfs: { type: "layers", diff_ids: [digestOf(tar)] },
  }));
  const kinds = "application/vnd.oci.image";
  const manifest = Buffer.from(JSON.stringify({
    schemaVersion: 2, mediaType: `${kinds}.manifest.v1+json`,
    config: { mediaType: `${kinds}.config.v1+json`, digest: digestOf(config), size: config.length },
    layers: [{ mediaType: `${kinds}.layer.v1.tar+gzip`, digest: digestOf(layer), size: layer.length }],
  }));
  const blobs = new Map([config, layer].map((bytes) => [digestOf(bytes), bytes]));
  const server = createServer((request, response) => {
    const [, kind, name] = /^\/v2\/team\/tiny\/(manifests|blobs)\/(.+)$/.exec(request.url) ?? [];
    const found = kind === "manifests" && ["1.0", digestOf(manifest)].includes(name) ? manifest : blobs.get(name);
    if (request.url === "/v2/") return response.end("{}");
    if (!found) return response.writeHead(404).end();
    const type = found === manifest ? `${kinds}.manifest.v1+json` : "application/octet-stream";
    response.writeHead(200, { "content-type": type, "content-length": found.length, "docker-content-digest": digestOf(found) });
    response.end(request.method === "HEAD" ? undefined : found);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { host: `127.0.0.1:${server.address().port}`, close: () => server.close() };
}
