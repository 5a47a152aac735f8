// Server-sent events out of a fetch body. EventSource cannot POST.

/** Takes text as it comes, however it is cut, and returns the events that are whole: {id, data}. */
export class EventParser {
  #rest = "";
  #data = [];
  #id = "";

  feed(text) {
    const events = [];
    const whole = this.#rest + text;
    // A CR at the very end may be half of a CRLF.
    const end = whole.endsWith("\r") ? whole.length - 1 : whole.length;
    let from = 0;
    for (let at = 0; at < end; at++) {
      const sign = whole.charCodeAt(at);
      if (sign !== 10 && sign !== 13) continue;
      this.#line(whole.slice(from, at), events);
      if (sign === 13 && whole.charCodeAt(at + 1) === 10) at++;
      from = at + 1;
    }
    this.#rest = whole.slice(from);
    return events;
  }

  #line(line, events) {
    if (line === "") {
      if (this.#data.length) events.push({ id: this.#id, data: this.#data.join("\n") });
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "id") this.#id = value;
  }
}

/** The events of a Response, as they come. */
export async function* eventsOf(response) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
