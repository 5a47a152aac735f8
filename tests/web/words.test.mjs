import assert from "node:assert/strict";
import { test } from "node:test";

import { newRun, tell } from "../../serve_app/web/run.mjs";
import { eventWords, percent, seconds, sentences, spoken, usd } from "../../serve_app/web/words.mjs";

test("figures have the digits that count", () => {
  assert.equal(seconds(1.2345), "1.23 s");
  assert.equal(seconds(null), "–");
  assert.equal(percent(0.4), "40 %");
  assert.equal(percent(0.0123), "1.2 %");
  assert.equal(usd(0), "0");
  assert.equal(usd(0.000330123), "0.000330");
  assert.equal(usd(12.3456), "12.35");
  assert.equal(usd(undefined), "–");
});

test("a text is said in whole sentences, and what has none is said at last", () => {
  const text = "Sunlight is made of many colours. Air scatters blue light more than red light. So the";
  const [now, later] = sentences(text);
  assert.equal(now, "Sunlight is made of many colours. Air scatters blue light more than red light.");
  assert.equal(later, " So the");
  assert.deepEqual(sentences("Short. Very"), ["", "Short. Very"]);
  assert.deepEqual(sentences("3.14 is no end of a sentence, nor is v2.0 one, nor any other 1.5 here"), [
    "",
    "3.14 is no end of a sentence, nor is v2.0 one, nor any other 1.5 here",
  ]);
  const endless = "word ".repeat(100);
  const [said, kept] = sentences(endless);
  assert.equal(said + kept, endless.trimEnd() + " ");
  assert.ok(said.length > 300);
});

test("every event that matters has words, samples have none, and a listener hears the turns alone", () => {
  const run = newRun();
  const events = [
    { type: "plan", at_s: 0, policy: "disco-d", reason: "race", eligible: [], launches: [] },
    { type: "leg", at_s: 0, attempt: "a", endpoint: "phone", reason: "dispatch", from_token: 0 },
    { type: "admitted", at_s: 0.1, attempt: "a", queued_s: 0 },
    { type: "first_token", at_s: 1, attempt: "a", won: true },
    { type: "progress", at_s: 1, accepted: 1, lead: 0 },
    { type: "verdict", at_s: 1, target: "cloud", verdict: "buffer", lead: 2, buffer_needed: 6.96 },
    { type: "verdict", at_s: 1.25, target: "cloud", verdict: "buffer", lead: 3, buffer_needed: 6.96 },
    { type: "leg_over", at_s: 3, attempt: "a", outcome: "failed", tokens: 9, error: "endpoint_timeout" },
  ];
  const words = [];
  const heard = [];
  for (const event of events) {
    words.push(eventWords(event, run));
    heard.push(spoken(event, run));
    tell(run, event);
  }
  assert.deepEqual(words, [
    "Plan of disco-d: race",
    "phone is called: the plan starts it at once",
    null,
    "phone: first token, and it wins",
    null,
    "Move to cloud? too few unread tokens to hide the move (lead 2, B 7.0)",
    null,
    "phone: failed (endpoint_timeout)",
  ]);
  assert.deepEqual(heard.filter(Boolean), ["phone: first token, and it wins"]);
});
