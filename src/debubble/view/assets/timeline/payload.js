// Decoding of the data of debubble.view.timeline_data: text to typed arrays.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };

/** Decode a payload to {runs, kinds, causes, limit, unit, memory}; the component knows no other kinds than `kinds`. */
async function decode(payload) {
  if (payload.format !== 2) throw new Error(`this is format ${payload.format} of a timeline, not 2`);
  const runs = [];
  for (const meta of payload.timelines) {
    const columns = unpack(meta, await inflate(bytesOf(meta.data)));
    const run = new Run(meta, columns, payload);
    await decodeMarks(run, meta, payload);
    runs.push(run);
  }
  const { kinds, causes, limit, time_unit: unit } = payload;
  const memory = { unit: payload.memory_unit, size: payload.memory_size };
  for (const run of runs) run.first = payload.numbers_from ?? 0;
  return { runs, kinds, causes, limit, unit, memory };
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Columns by name; those that were left out are null. */
function unpack(meta, raw) {
  const count = meta.counts.reduce((a, b) => a + b, 0);
  const columns = { held: null, wait: null, queued: null, delayed: null, level: null, place: null, count };
  let at = 0;
  for (const [name, type] of meta.columns) {
    const size = Number(type[1]);
    let bytes = raw.subarray(at, at + count * size);
    if (size > 1) {
      const whole = new Uint8Array(count * size);
      for (let plane = 0; plane < size; plane++) {
        for (let i = 0, from = plane * count, to = plane; i < count; i++, to += size) whole[to] = bytes[from + i];
      }
      bytes = whole;
    }
    columns[name] = new ARRAYS[type](bytes.buffer, bytes.byteOffset, count);
    at += count * size;
  }
  for (const name of ["style", "unit", "start", "slack", "critical"]) columns[name] ??= new Uint8Array(count);
  return columns;
}
