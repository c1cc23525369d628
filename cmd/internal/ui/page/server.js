// Requests to the server that this page came from.

import { byID, clock } from "./dom.js";

const key = "allocnet-token";
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { // the address bar and the history keep no token
  sessionStorage.setItem(key, given);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem(key) ?? "";

/** answered replaces the error of a connection that failed. */
const answered = (promise) => promise.catch((error) => {
  throw error instanceof TypeError ? new Error("The program that serves this page does not answer. Start it again, and open the URL that it prints.") : error;
});

async function request(path, signal) {
  const answer = await answered(fetch(`api/${path}`, { headers: { Authorization: `Bearer ${token}` }, signal, cache: "no-store" }));
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
  throw new Error(error);
}

const faults = new Map();
let readAt = ""; // when the state was last read

/** fault shows or removes the error of one source. */
export function fault(source, error) {
  if (error) faults.set(source, error instanceof TypeError ? `This page has a fault: ${error.message}` : String(error.message ?? error));
  else faults.delete(source);
  if (source === "state" && !error) readAt = clock(Date.now());
  const texts = [...new Set(faults.values())], element = byID("fault");
  element.hidden = texts.length === 0;
  if (faults.has("state") && readAt) texts.push(`The page shows the state of ${readAt}.`);
  if (element.textContent !== texts.join("\n")) element.textContent = texts.join("\n");
}

/** failing reports whether the last reading of a source failed. */
export const failing = (source) => faults.has(source);

/** get reads one answer. */
export const get = async (path) => answered((await request(path, AbortSignal.timeout(70e3))).json());

/** Source reads an answer again and again: every so often, and soon after request() or a failure. It
 * leaves a pause that is longer the longer an answer takes. Hidden pages read nothing. lost is called
 * after a failure. */
export class Source {
  constructor(path, apply, { pause, every, lost }) {
    Object.assign(this, { path, apply, pause, every, lost, next: 0, timer: 0, running: false, again: false });
    document.addEventListener("visibilitychange", () => document.hidden || this.request());
  }

  request() {
    if (this.running) this.again = true;
    else this.wait(Math.max(0, this.next - performance.now()));
  }

  wait(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), milliseconds);
  }

  async read() {
    if (document.hidden) return;
    const began = performance.now();
    let failed = false;
    Object.assign(this, { running: true, again: false });
    try {
      const answer = await get(this.path);
      fault(this.path);
      this.apply(answer);
    } catch (error) {
      fault(this.path, error);
      failed = true;
      this.lost?.();
    }
    this.running = false;
    const now = performance.now();
    this.next = now + Math.max(failed ? 2e3 : this.pause, 2 * (now - began));
    if (this.again || failed) this.wait(this.next - now);
    else if (this.every) this.wait(Math.max(this.every, this.next - now));
  }
}

/** follow calls back for the events, again after the stream was lost, and for each opening
 * with the last known event and the time. */
export async function follow(received, opened) {
  const state = byID("connection");
  let last = 0;
  for (;;) {
    const control = new AbortController(), hide = () => document.hidden && control.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await request(`events?after=${last}`, control.signal);
      state.textContent = "live";
      state.className = "live";
      for await (const event of lines(answer.body)) {
        if (event.type === "opened") {
          opened(last, event.time);
          continue;
        }
        last = event.id ?? last;
        received(event);
      }
    } catch { // the sources report why
    }
    document.removeEventListener("visibilitychange", hide);
    if (!document.hidden) {
      state.textContent = `not live since ${clock(Date.now())}`;
      state.className = "lost";
    }
    await new Promise((resolve) => setTimeout(resolve, 1500));
    while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

/** lines yields the JSON of each line; empty ones only show that the server lives. */
async function* lines(body) {
  let rest = "";
  for await (const part of body.pipeThrough(new TextDecoderStream())) {
    const all = (rest + part).split("\n");
    rest = all.pop();
    for (const line of all) if (line) yield JSON.parse(line);
  }
}
