// Opened files inside a link: deflated, in letters that addresses may have.

/** Characters of files that a link may have; chats and mail programs cut much longer ones. */
export const MOST = 30000;
const UNPACKED = 8 << 20;

async function through(bytes, stream) {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader(), parts = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > UNPACKED) { await reader.cancel(); throw new Error(`more than ${UNPACKED >> 20} MiB when unpacked`); }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** The bytes of a gzip file. */
export const gunzip = (bytes) => through(bytes, new DecompressionStream("gzip"));

/** A value as text for a link; null when it is too long for one. */
export async function pack(value) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(value)), new CompressionStream("deflate-raw"));
  if (bytes.length > MOST) return null;
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  const text = btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  return text.length > MOST ? null : text;
}

const isFile = (file) => typeof file?.name === "string" && typeof file?.text === "string";

/** The files of a link, null when it is damaged: links are what anybody may write. */
export async function unpack(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = await through(Uint8Array.from(binary, (sign) => sign.charCodeAt(0)), new DecompressionStream("deflate-raw"));
    const { files, costs } = JSON.parse(new TextDecoder().decode(bytes));
    if (!Array.isArray(files) || !files.every((item) => isFile(item?.file)) || (costs !== null && !isFile(costs))) return null;
    const plain = ({ name, text: content }) => ({ name, text: content });
    return { files: files.map(({ file }) => ({ file: plain(file) })), costs: costs && plain(costs) };
  } catch { return null; }
}
