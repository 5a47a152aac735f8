// The answer's text as it comes: one span for each stretch that an endpoint wrote, written once a frame.

import { colourOf, el } from "./dom.mjs";

const LONGEST_NODE = 1000;
const NEAR_THE_END = 48;

export class Answer {
  #box;
  #queue = [];
  #frame = 0;
  #span = null;
  #node = null;
  #writer = "";

  constructor(box) {
    this.#box = box;
  }

  clear() {
    this.#queue = [];
    this.#span = this.#node = null;
    this.#writer = "";
    this.#box.replaceChildren();
    this.#box.setAttribute("aria-busy", "true");
  }

  write(text, endpoint) {
    this.#queue.push([text, endpoint]);
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** The answer is over, whole or not. */
  end(complaint = "") {
    this.flush();
    if (complaint) this.#box.append(el("span", { class: "broken" }, ` ✗ ${complaint}`));
    this.#box.removeAttribute("aria-busy");
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const box = this.#box;
    const follow = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_THE_END;
    for (const [text, endpoint] of joined(this.#queue)) this.#append(text, endpoint);
    this.#queue = [];
    if (follow) box.scrollTop = box.scrollHeight;
  }

  #append(text, endpoint) {
    if (!this.#span || (endpoint && endpoint !== this.#writer)) {
      if (this.#writer) {
        this.#box.append(el("span", { class: `seam ${colourOf(endpoint)}` }, `→ ${endpoint}`));
      }
      this.#writer = endpoint || this.#writer;
      this.#span = el("span", { class: `piece ${colourOf(this.#writer)}`, "data-endpoint": this.#writer });
      this.#node = null;
      this.#box.append(this.#span);
    }
    if (!this.#node || this.#node.length > LONGEST_NODE) {
      this.#node = document.createTextNode("");
      this.#span.append(this.#node);
    }
    this.#node.appendData(text);
  }
}

/** Neighbours by the same endpoint, as one. */
function joined(pieces) {
  const runs = [];
  for (const [text, endpoint] of pieces) {
    const last = runs.at(-1);
    if (last && last[1] === endpoint) last[0] += text;
    else runs.push([text, endpoint]);
  }
  return runs;
}
