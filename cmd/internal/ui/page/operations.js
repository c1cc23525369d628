// The operations as they end, with their steps.

import { byID, clock, count, duration, html, replace, svg } from "./dom.js";
import { symbol } from "./health.js";

const kept = 60;
const list = []; // the newest first
let scheduled = false;

/** ofHistory makes an entry of the list of an operation of the history. */
export const ofHistory = (e) => ({
  time: e.time, title: [e.operation, e.id].filter(Boolean).join(" "), id: e.id, ok: !e.error, outcome: e.error ? e.kind || "failed" : "ok",
  seconds: e.seconds, steps: e.steps ?? [], error: e.error, note: [...(e.networks ?? []), e.program, e.cause].filter(Boolean).join(", "), forced: e.forced,
});

const others = {
  reload: (d) => ({
    title: d.error ? "reload refused" : d.restart ? `settings reloaded, restart needed to change ${d.restart.join(", ")}` : "settings reloaded",
    ok: !d.error, error: d.error,
  }),
  configuration: (d) => ({ title: d.primary ? `network ${d.primary} is active` : "no network is active", ok: !d.notReady, error: [d.notReady, ...(d.problems ?? [])].filter(Boolean).join("; ") }),
  heal: (d) => d.unhealthy
    ? { title: `${d.unhealthy} is unhealthy`, id: d.unhealthy, ok: false, error: d.error }
    : { title: `restored ${count(d.restored, "allocation")}`, ok: !d.error, note: d.change ?? d.cause, error: d.error, seconds: d.seconds },
  forced: (d) => ({ title: `removed leftovers of ${d.id} by force`, id: d.id, ok: false, note: d.removed.map((l) => `${l.kind} ${l.object}`).join(", ") }),
  lost: () => ({ title: "events are missing here", ok: false, note: "allocnet history shows all operations" }),
};

/** ofEvent makes an entry of the list of an event; undefined for an unknown type. */
export function ofEvent(event) {
  const d = event.data;
  if (event.type === "operation") {
    return {
      time: event.time, title: [d.operation, d.id].filter(Boolean).join(" "), id: d.id, ok: !d.error, outcome: d.outcome, seconds: d.seconds,
      steps: d.steps ?? [], error: d.error, note: [...(d.networks ?? []), d.engine].filter(Boolean).join(", "),
    };
  }
  return others[event.type] && { time: event.time, steps: [], ...others[event.type](d) };
}

/** add adds entries, unless the list has them, and announces new ones. */
export function add(entries, announced) {
  for (const entry of entries) {
    const time = Date.parse(entry.time);
    if (list.some((other) => other.title === entry.title && other.time === entry.time)) continue;
    const at = list.findIndex((other) => Date.parse(other.time) <= time);
    list.splice(at < 0 ? list.length : at, 0, entry);
    if (announced) announce(entry);
  }
  list.length = Math.min(list.length, kept);
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => { // several entries become one change of the page
    scheduled = false;
    show();
  }, 100);
}

let open; // opens the details of an allocation

/** start says how to open the details of an allocation. */
export function start(select) {
  open = select;
  show();
}

function show() {
  replace(byID("operations-list"), list.length > 0 ? list.map(entryElement) : html("li", { class: "none" }, "No operation yet."));
}

function entryElement(entry) {
  const title = entry.id
    ? html("button", { type: "button", class: "link", "data-item": `${entry.time} ${entry.title}`, onclick: () => open(entry.id) }, entry.title)
    : html("span", {}, entry.title);
  return html("li", { class: entry.ok ? "ok" : "failed" },
    html("div", { class: "line" }, symbol(entry.ok ? "healthy" : "unhealthy", 14), title,
      html("span", { class: "took" }, entry.seconds == null ? "" : duration(entry.seconds))),
    html("div", { class: "line fact" }, html("time", { datetime: entry.time }, clock(entry.time)),
      html("span", {}, [entry.ok ? "" : entry.outcome, entry.note].filter(Boolean).join(", "))),
    entry.steps.length > 0 && strip(entry),
    entry.error && html("p", { class: "error" }, entry.error));
}

/** strip draws the steps on one line, and names them. Steps can be parts of others. */
function strip(entry) {
  const total = Math.max(entry.seconds, ...entry.steps.map((s) => s.at + s.seconds), 1e-9);
  return html("div", { class: "steps" },
    svg("svg", { class: "strip", viewBox: "0 0 100 5", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 5 }),
      entry.steps.map((s, i) => svg("rect", {
        class: `step${s.error ? " failed" : ""} shade${i % 3}`, x: 100 * s.at / total, width: Math.max(0.6, 100 * s.seconds / total), height: 5,
      }))),
    html("span", { class: "fact" }, entry.steps.map((s) => `${s.step} ${duration(s.seconds)}${s.error ? " failed" : ""}`).join(" · ")));
}

/** waterfall is a table of the steps of an operation, with bars. */
export function waterfall(entry) {
  const total = Math.max(entry.seconds, ...entry.steps.map((s) => s.at + s.seconds), 1e-9);
  return html("table", { class: "waterfall" },
    html("caption", { class: "unseen" }, `Steps of ${entry.title}`),
    html("thead", { class: "unseen" }, html("tr", {}, ["Step", "When", "Duration"].map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, entry.steps.map((s) => html("tr", {},
      html("th", { scope: "row" }, s.step),
      html("td", { class: "bar" },
        html("span", { class: "unseen" }, `after ${duration(s.at)}`),
        svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("rect", { class: "track", y: 3, width: 100, height: 2 }),
          svg("rect", { class: `step${s.error ? " failed" : ""}`, x: 100 * s.at / total, width: Math.max(0.8, 100 * s.seconds / total), height: 8 }))),
      html("td", { class: "took" }, duration(s.seconds))))));
}

const unspoken = [];
let speaking = false;

/** announce tells assistive programs of operations, a few at a time. */
function announce(entry) {
  unspoken.push(entry);
  if (speaking) return;
  speaking = true;
  setTimeout(() => {
    speaking = false;
    const entries = unspoken.splice(0), failed = entries.filter((e) => !e.ok).length;
    byID("announcer").textContent = entries.length <= 2
      ? entries.map((e) => `${e.title}: ${e.ok ? "ok" : e.outcome ?? "failed"}`).join(". ")
      : `${count(entries.length, "operation")}, ${failed === 0 ? "none" : failed} failed`;
  }, 1000);
}
