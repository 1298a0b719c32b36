// Requests, and searches that are polled until they are done.

const EVERY = 300; // milliseconds between looks at a search

/** Send a value or bytes, or ask for what is there; return the answer, or the response with a file; throw {message, field, nearest} for a refusal. */
export async function post(path, value, isFile = false) {
  let response;
  try {
    const raw = value instanceof Blob;
    response = value === undefined ? await fetch(path) : await fetch(path, { method: "POST", headers: { "content-type": raw ? "application/octet-stream" : "application/json" }, body: raw ? value : JSON.stringify(value) });
  } catch {
    throw { message: "The server does not answer; is debubble serve still running?" };
  }
  if (response.ok && isFile) return response;
  let data;
  try { data = await response.json(); } catch { data = { message: `The server answered ${response.status} ${response.statusText}, and no reason.` }; }
  if (!response.ok) throw data;
  return data;
}

/** A search: `answer` is a promise, `stop` ends it with the best so far, `told` hears how far it is. */
export function search(path, value, told) {
  let stop = false;
  async function run() {
    const { search: name } = await post(path, value);
    const leave = () => { fetch("/api/search", { method: "POST", keepalive: true, headers: { "content-type": "application/json" }, body: JSON.stringify({ search: name, stop: true }) }); };
    addEventListener("pagehide", leave);
    try {
      for (;;) {
        const { done, answer, ...now } = await post("/api/search", { search: name, stop });
        if (done) return answer;
        told(now);
        await new Promise((next) => { setTimeout(next, EVERY); });
      }
    } finally { removeEventListener("pagehide", leave); }
  }
  return { answer: run(), stop() { stop = true; } };
}
