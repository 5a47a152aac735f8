import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, eventsOf } from "../../serve_app/web/sse.mjs";

const STREAM = ': hello\r\nid: 1\r\ndata: {"a":1}\r\n\r\nid: 2\ndata: one\ndata:two\n\nevent: odd\ndata: [DONE]\n\n';
const EVENTS = [
  { id: "1", data: '{"a":1}' },
  { id: "2", data: "one\ntwo" },
  { id: "2", data: "[DONE]" },
];

test("events are the same however the stream is cut", () => {
  assert.deepEqual(new EventParser().feed(STREAM), EVENTS);
  for (let size = 1; size < STREAM.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < STREAM.length; at += size) found.push(...parser.feed(STREAM.slice(at, at + size)));
    assert.deepEqual(found, EVENTS, `cut every ${size}`);
  }
});

test("an event that is not whole is none", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.feed("data: a\n"), []);
  assert.deepEqual(parser.feed("\n"), [{ id: "", data: "a" }]);
});

test("characters that are cut between two packets arrive whole", async () => {
  const bytes = new TextEncoder().encode("data: 字🌍\n\n");
  const body = new ReadableStream({
    start(controller) {
      for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
      controller.close();
    },
  });
  const found = [];
  for await (const event of eventsOf(new Response(body))) found.push(event.data);
  assert.deepEqual(found, ["字🌍"]);
});
