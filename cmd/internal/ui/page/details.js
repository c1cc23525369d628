// The details of one allocation, beside the picture.

import { byID, duration, html, moment, replace, table } from "./dom.js";
import { symbol } from "./health.js";
import { ofHistory, waterfall } from "./operations.js";

/** show shows an allocation with its history. allocation is undefined after its teardown. */
export function show(id, allocation, drift, history, close) {
  const element = byID("details");
  element.hidden = false;
  replace(element,
    html("div", { class: "title" },
      html("h2", { id: "details-title", tabindex: "-1", "data-item": "title" }, id),
      html("button", { type: "button", "data-item": "close", "aria-label": "Close the details", onclick: close }, "Close")),
    allocation ? facts(allocation, drift) : html("p", { class: "none" }, "It has been torn down; this is its history."),
    allocation && portTable(allocation),
    allocation && interfaceTable(allocation),
    allocation && routeTable(allocation),
    historyList(history));
}

function facts(a, drift) {
  const rows = [
    ["Health", html("span", { class: `word ${a.health.kind}` }, symbol(a.health.kind, 14), ` ${a.health.word}`)],
    ["Networks", a.networks.join(", ")],
    ["Engine", a.engine],
    ["Scope", a.scope],
    ["Namespace", html("code", {}, a.netns)],
    ["Set up", moment(a.created)],
    ...Object.entries(a.args ?? {}),
  ].filter(([, value]) => value);
  return [
    html("dl", {}, rows.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])),
    drift && html("p", { class: "error" }, drift),
    a.health.kind === "unhealthy" && html("p", { class: "fact" }, "Restore what is missing: ", html("code", {}, "allocnet repair")),
  ];
}

const heading = (words) => html("h3", {}, words);

function portTable(a) {
  if (a.portTexts.length === 0) return null;
  return html("div", {}, heading("Published ports"),
    table("Published ports", ["On the host", "Leads to", "Label"], a.portTexts.map((p) => [p.from, p.waits ? `${p.waits}, then ${p.into}` : p.into, p.label])),
    html("p", { class: "fact" }, "Follow each one to the process that answers: ", html("code", {}, `allocnet trace ${a.id}`)));
}

function interfaceTable(a) {
  const rows = (a.interfaces ?? []).map((i) => [
    html("span", {}, i.name, html("div", { class: "fact" }, i.sandbox ? `network ${i.network}` : "on the host")),
    [(i.addresses ?? []).map((one) => html("div", {}, one.address, one.gateway ? html("span", { class: "fact" }, ` via ${one.gateway}`) : "")),
      html("div", { class: "fact" }, [i.mac, i.mtu ? `MTU ${i.mtu}` : ""].filter(Boolean).join(", "))],
  ]);
  return rows.length > 0 && html("div", {}, heading("Interfaces"), table("Interfaces", ["Name", "Addresses"], rows));
}

/** gatewayOf returns the gateway of a route: its own, or that of its network's addresses. */
function gatewayOf(a, route) {
  if (route.gateway) return route.gateway;
  const isIPv6 = (text) => text.includes(":");
  const addresses = (a.interfaces ?? []).filter((i) => i.network === route.network).flatMap((i) => i.addresses ?? []);
  return addresses.find((one) => one.gateway && isIPv6(one.gateway) === isIPv6(route.destination))?.gateway;
}

function routeTable(a) {
  const rows = (a.routes ?? []).map((r) => [r.destination, gatewayOf(a, r) ?? "none", r.network]);
  return rows.length > 0 && html("div", {}, heading("Routes"), table("Routes", ["To", "Gateway", "Network"], rows));
}

function historyList(history) {
  if (!history) return html("p", { class: "none" }, "Reading its history.");
  if (history.length === 0) return html("p", { class: "none" }, "The history has no operation on it.");
  return html("div", {}, heading("History"), html("ol", { class: "history" }, history.toReversed().map((one) => {
    const entry = ofHistory(one);
    return html("li", { class: entry.ok ? "ok" : "failed" },
      html("div", { class: "line" }, symbol(entry.ok ? "healthy" : "unhealthy", 14), html("span", {}, one.operation), html("span", { class: "took" }, duration(entry.seconds))),
      html("div", { class: "fact" }, `${moment(entry.time)}, by ${one.program}${entry.ok ? "" : `, ${entry.outcome}`}`),
      one.cause && html("p", { class: "fact" }, `cause: ${one.cause}`),
      entry.steps.length > 0 && waterfall(entry),
      entry.error && html("p", { class: "error" }, entry.error),
      (entry.forced ?? []).map((l) => html("p", { class: "error" }, `removed by force: ${l.kind} ${l.object}`)));
  })));
}

/** hide hides the details. */
export function hide() {
  byID("details").hidden = true;
  byID("details").replaceChildren();
}
