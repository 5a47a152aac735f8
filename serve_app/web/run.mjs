// One request as its events tell it: plain data, no DOM, no clock. Times are seconds since the request's arrival.

export function newRun() {
  return {
    plan: null,
    legs: [],
    handoffs: [],
    verdicts: new Map(),
    samples: [],
    needs: [],
    firstToken: null,
    accepted: 0,
  };
}

/** Takes one event of the stream into the run. Types that are not known yet are passed over. */
export function tell(run, event) {
  const leg = event.attempt && run.legs.find((one) => one.attempt === event.attempt);
  switch (event.type) {
    case "plan":
      run.plan = event;
      break;
    case "leg":
      run.legs.push({
        attempt: event.attempt,
        endpoint: event.endpoint,
        reason: event.reason,
        fromToken: event.from_token,
        start: event.at_s,
        admitted: null,
        first: null,
        end: null,
        outcome: "running",
        won: false,
        error: null,
      });
      break;
    case "admitted":
      if (leg) leg.admitted = Math.max(leg.start, event.at_s);
      break;
    case "first_token":
      if (leg) Object.assign(leg, { first: event.at_s, won: event.won });
      if (event.won) run.firstToken = { at: event.at_s, endpoint: leg?.endpoint };
      break;
    case "leg_over":
      if (leg) Object.assign(leg, { end: event.at_s, outcome: event.outcome, tokens: event.tokens, error: event.error });
      break;
    case "handoff":
      run.handoffs.push({
        source: event.source,
        target: event.target,
        atToken: event.at_token,
        mode: event.mode,
        reason: event.reason,
        start: event.at_s,
        end: null,
        outcome: "pending",
        gap: null,
      });
      break;
    case "handoff_over": {
      const open = run.handoffs.findLast((one) => one.end === null);
      if (open) Object.assign(open, { end: event.at_s, outcome: event.outcome, gap: event.gap_s });
      run.needs.push({ at: event.at_s, tokens: null });
      break;
    }
    case "verdict":
      run.verdicts.set(event.target, event);
      if (event.buffer_needed !== null) {
        run.needs.push({ at: event.at_s, tokens: event.buffer_needed });
        run.samples.push({ at: event.at_s, lead: event.lead });
      }
      break;
    case "progress":
      run.accepted = event.accepted;
      run.samples.push({ at: event.at_s, lead: event.lead });
      break;
  }
}

/** Endpoints to draw, in the plan's order, each with its legs and the launches that were planned and not begun. */
export function lanes(run) {
  if (!run.plan) return [];
  return run.plan.eligible.map((place) => {
    const legs = run.legs.filter((leg) => leg.endpoint === place.endpoint);
    const due = run.plan.launches.filter((launch) => launch.endpoint === place.endpoint && !legs.length);
    return { ...place, legs, due };
  });
}

/** Unread tokens at a time: as last told, less what was read since then. */
export function leadAt(run, at) {
  const last = run.samples.findLast((sample) => sample.at <= at);
  if (!last || !run.plan?.consumption_rate) return 0;
  return Math.max(0, last.lead - (at - last.at) * run.plan.consumption_rate);
}

/** The lead as corners of a line, up to a time: it falls as the reader reads, and leaps when tokens were told. */
export function leadLine(run, until, most = 400) {
  const rate = run.plan?.consumption_rate;
  if (!rate || !run.samples.length) return [];
  const every = Math.ceil(run.samples.length / most);
  const told = run.samples.filter((_, rank) => rank % every === 0 || rank === run.samples.length - 1);
  const line = [];
  told.forEach((sample, rank) => {
    line.push([sample.at, sample.lead]);
    const next = told[rank + 1]?.at ?? until;
    const dry = sample.at + sample.lead / rate;
    if (dry < next) line.push([dry, 0]);
    line.push([next, Math.max(0, sample.lead - (next - sample.at) * rate)]);
  });
  return line;
}

/** The last moment of which anything is known. */
export function lastMoment(run) {
  const moments = [0, ...run.legs.flatMap((leg) => [leg.start, leg.first ?? 0, leg.end ?? 0])];
  return Math.max(...moments, run.samples.at(-1)?.at ?? 0);
}

/** B as stretches of corners: it is asked for until a move is decided. */
export function needLines(run, until) {
  const lines = [];
  run.needs.forEach((need, rank) => {
    if (need.tokens === null) return;
    if (!rank || run.needs[rank - 1].tokens === null) lines.push([]);
    const open = run.handoffs.find((one) => one.start >= need.at)?.end ?? until;
    lines.at(-1).push([need.at, need.tokens], [Math.min(run.needs[rank + 1]?.at ?? open, until), need.tokens]);
  });
  return lines;
}

/**
 * Where a moment lies between 0 and 1. What comes before the last turn of the story has most of the room, however long
 * the rest takes. ``bend``: the moment from which on time is squeezed, or null.
 */
export function timeScale(run, span) {
  const turns = [run.firstToken?.at ?? 0, ...run.handoffs.map((one) => one.end ?? one.start)];
  const bend = Math.max(...turns) * 1.35;
  if (!run.firstToken || bend > 0.55 * span) return { bend: null, at: (moment) => Math.min(moment, span) / span };
  const room = 0.66;
  return {
    bend,
    at: (moment) => {
      if (moment <= bend) return (moment / bend) * room;
      return room + ((Math.min(moment, span) - bend) / (span - bend)) * (1 - room);
    },
  };
}

/** Round numbers from 0 to a limit, about ``count`` of them. */
export function ticks(limit, count = 6) {
  if (!(limit > 0)) return [0];
  const rough = limit / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let rank = 0; rank * step <= limit * 1.000001; rank++) found.push(Number((rank * step).toPrecision(6)));
  return found;
}
