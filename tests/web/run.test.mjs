import assert from "node:assert/strict";
import { test } from "node:test";

import { lanes, lastMoment, leadAt, leadLine, needLines, newRun, tell, ticks, timeScale } from "../../serve_app/web/run.mjs";

const PLACES = [
  { endpoint: "cloud", kind: "cloud", imitates: null },
  { endpoint: "phone", kind: "device", imitates: "s23" },
];
const plan = (launches, rate = 4) => ({ type: "plan", at_s: 0, eligible: PLACES, launches, consumption_rate: rate });
const verdict = (at_s, lead, buffer_needed) => ({ type: "verdict", at_s, target: "cloud", verdict: "buffer", lead, buffer_needed });

/** The phone wins at 1 s, moves to the cloud at 2 s, which delivers at 3 s and ends at 5 s. */
function moved() {
  const run = newRun();
  for (const event of [
    plan([{ endpoint: "phone", delay_s: 0 }, { endpoint: "cloud", delay_s: 2.5 }]),
    { type: "leg", at_s: 0, attempt: "p", endpoint: "phone", reason: "dispatch", from_token: 0 },
    { type: "admitted", at_s: 0.25, attempt: "p", queued_s: 0.1 },
    { type: "first_token", at_s: 1, attempt: "p", won: true },
    { type: "progress", at_s: 1, accepted: 1, lead: 0 },
    verdict(1.5, 4, 6),
    verdict(2, 8, 6),
    { type: "leg", at_s: 2, attempt: "c", endpoint: "cloud", reason: "migration", from_token: 9 },
    { type: "handoff", at_s: 2, source: "phone", target: "cloud", at_token: 9, mode: "overlap", reason: "migration" },
    { type: "something new", at_s: 2.5 },
    { type: "first_token", at_s: 3, attempt: "c", won: false },
    { type: "leg_over", at_s: 3, attempt: "p", outcome: "handed_over", tokens: 14, error: null },
    { type: "handoff_over", at_s: 3, target: "cloud", outcome: "completed", gap_s: 1 },
    { type: "leg_over", at_s: 5, attempt: "c", outcome: "completed", tokens: 20, error: null },
  ])
    tell(run, event);
  return run;
}

test("a run has a lane for each endpoint, with its legs", () => {
  const run = moved();
  assert.deepEqual(run.firstToken, { at: 1, endpoint: "phone" });
  const [cloud, phone] = lanes(run);
  assert.deepEqual([cloud.endpoint, cloud.due.length, cloud.legs.length], ["cloud", 0, 1]);
  const [leg] = phone.legs;
  assert.deepEqual([leg.start, leg.admitted, leg.first, leg.end, leg.outcome, leg.won], [0, 0.25, 1, 3, "handed_over", true]);
  assert.deepEqual(run.handoffs.map((one) => [one.start, one.end, one.outcome, one.gap]), [[2, 3, "completed", 1]]);
  assert.equal(lastMoment(run), 5);
});

test("a launch that has not begun is due", () => {
  const run = newRun();
  assert.deepEqual(lanes(run), []);
  tell(run, plan([{ endpoint: "cloud", delay_s: 0 }, { endpoint: "phone", delay_s: 0.8 }]));
  tell(run, { type: "leg", at_s: 0, attempt: "c", endpoint: "cloud", reason: "dispatch", from_token: 0 });
  assert.deepEqual(lanes(run).map((lane) => lane.due.map((launch) => launch.delay_s)), [[], [0.8]]);
});

test("the lead falls at the reader's speed and never below nothing", () => {
  const run = moved();
  assert.equal(leadAt(run, 0.5), 0);
  assert.equal(leadAt(run, 1.75), 3);
  assert.equal(leadAt(run, 2), 8);
  assert.equal(leadAt(run, 3), 4);
  assert.equal(leadAt(run, 9), 0);
  const line = leadLine(run, 9);
  assert.ok(line.every(([at], rank) => !rank || at >= line[rank - 1][0]), "time never runs back");
  assert.deepEqual(line.slice(-3), [[2, 8], [4, 0], [9, 0]]);
  assert.deepEqual(leadLine({ ...run, plan: { ...run.plan, consumption_rate: null } }, 9), []);
});

test("a long run is drawn with few corners", () => {
  const run = moved();
  for (let at = 3; at < 600; at += 0.25) tell(run, { type: "progress", at_s: at, accepted: at, lead: 50 });
  assert.ok(leadLine(run, 600).length <= 3 * 402);
  assert.equal(leadLine(run, 600).at(-1)[0], 600);
});

test("B is asked for until the move is decided", () => {
  assert.deepEqual(needLines(moved(), 5), [[[1.5, 6], [2, 6], [2, 6], [3, 6]]]);
});

test("what comes before the last turn has most of the room, and time never runs back", () => {
  const run = moved();
  assert.equal(timeScale(run, 5).bend, null);
  const { bend, at } = timeScale(run, 100);
  assert.ok(bend > 3);
  assert.ok(at(3) > 0.4);
  assert.equal(at(0), 0);
  assert.ok(Math.abs(at(100) - 1) < 1e-9);
  for (let moment = 0; moment < 100; moment += 0.5) assert.ok(at(moment + 0.5) > at(moment));
});

test("ticks are round, from 0, and within the limit", () => {
  assert.deepEqual(ticks(3, 6), [0, 0.5, 1, 1.5, 2, 2.5, 3]);
  assert.deepEqual(ticks(0), [0]);
  for (const limit of [0.07, 1, 9.5, 123, 600]) {
    const found = ticks(limit);
    assert.ok(found.length >= 3 && found.length <= 8 && found[0] === 0 && found.at(-1) <= limit * 1.01, String(found));
  }
});
