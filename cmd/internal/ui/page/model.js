// What the parts of the page derive from the answers of the server.

import { naturally } from "./dom.js";
import { healthOf } from "./health.js";

/** waitsFor returns the ID of the older allocation that has a host port, or "". */
function waitsFor(allocation, port) {
  const same = ({ mapping: m }) => m.hostPort === port.hostPort && m.protocol === port.protocol && (m.hostIP ?? "") === (port.hostIP ?? "");
  return (allocation.waiting ?? []).find(same)?.id ?? "";
}

/** portsOf returns the published ports as texts: on the host, and where each one leads. */
export function portsOf(allocation) {
  const merged = new Map();
  for (const p of allocation.ports ?? []) {
    const host = p.hostIP ? (p.hostIP.includes(":") ? `[${p.hostIP}]` : p.hostIP) : "";
    const waits = waitsFor(allocation, p);
    const key = `${host}:${p.hostPort}:${p.containerPort}:${p.label ?? ""}:${waits}`;
    const one = merged.get(key) ?? { label: p.label ?? "", host, port: p.hostPort, to: p.containerPort, protocols: [], waits };
    one.protocols.push(p.protocol);
    merged.set(key, one);
  }
  const address = allocation.address || allocation.addressIPv6 || "";
  const target = address.includes(":") ? `[${address}]` : address;
  return [...merged.values()].map((one) => ({
    ...one,
    from: `${one.host ? `${one.host}:` : ""}${one.port}/${one.protocols.join("+")}`,
    into: `${target}:${one.to}`,
  }));
}

/** addressesOf returns all addresses of an allocation in its namespace. */
export const addressesOf = (allocation) => (allocation.interfaces ?? []).filter((i) => i.sandbox)
  .flatMap((i) => (i.addresses ?? []).map((a) => a.address.split("/")[0]));

/** arrange completes the allocations: health, ports, texts to search. They are sorted. */
export function arrange(state, status) {
  const list = state.allocations.map((a) => {
    const health = healthOf(a, status), ports = portsOf(a);
    const text = [a.id, a.scope, ...a.networks, ...addressesOf(a), ...ports.map((p) => `${p.label} ${p.from} :${p.port} → ${p.into}`),
      ...Object.entries(a.args ?? {}).map(([name, value]) => `${name}=${value}`), health.word].join(" ").toLowerCase();
    return { ...a, health, portTexts: ports, text };
  });
  return list.sort((a, b) => naturally(a.id, b.id));
}

/** filterOf returns a function that reports whether a text has all words of a query. */
export function filterOf(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => word === "healthy" ? /(^|\s)healthy/.test(text) : text.includes(word));
}

/** usage returns how many addresses of a family are leased and free. */
export function usage(network) {
  return Object.entries(network.addresses ?? {}).sort().map(([family, { used, free }]) => ({
    family: family === "ipv4" ? "IPv4" : "IPv6", used, free, part: used + free > 0 ? used / (used + free) : 0,
  }));
}

/** large returns a number of addresses, rounded if it is large. */
export const large = (n) => n < 1e6 ? Math.round(n).toLocaleString("en") : n < 1e9 ? `${(n / 1e6).toFixed(1)} million` : `about 10${String(Math.round(Math.log10(n))).replace(/./g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`;
