// The health of an allocation: always a shape and a word, not only a colour.

import { svg } from "./dom.js";

/** kinds are the kinds of health, the worst first. Shapes are paths in a square of 16. */
export const kinds = {
  unhealthy: { word: "unhealthy", shape: "M8 1.2 15.4 14.6H.6Z", mark: "M8 5.8v4.4M8 12v.8" },
  gone: { word: "namespace gone", shape: "M2 2h12v12H2Z", mark: "m5 5 6 6m0-6-6 6" },
  unchecked: { word: "not checked", shape: "M8 2.2a5.8 5.8 0 1 0 .01 0Z", mark: "" },
  busy: { word: "changing", query: "being", shape: "M8 .8 15.2 8 8 15.2.8 8Z", mark: "M5.2 8h.01M8 8h.01M10.8 8h.01" },
  healthy: { word: "healthy", shape: "M8 1.4a6.6 6.6 0 1 0 .01 0Z", mark: "m5 8.2 2.2 2.2L11 6.4" },
};

/** healthOf returns the kind of health of an allocation, and the words for it. */
export function healthOf(allocation, status) {
  if (allocation.netnsGone) return { kind: "gone", word: "network namespace gone" };
  if (allocation.acknowledged || allocation.phase === "deleting") return { kind: "busy", word: "being removed" };
  if (allocation.phase === "adding") return { kind: "busy", word: "being set up" };
  if (status?.unhealthySet.has(allocation.id)) return { kind: "unhealthy", word: "unhealthy" };
  if (status?.noCheckSet.has(allocation.id)) return { kind: "unchecked", word: "not checked: a network has no CHECK" };
  const known = status && !(status.unread ?? []).includes("allocations") && !status.uncheckedSet.has(allocation.id) && Date.parse(allocation.created) < Date.parse(status.time);
  return known ? { kind: "healthy", word: "healthy" } : { kind: "unchecked", word: "not checked" };
}

/** symbol draws the shape of a kind of health. */
export function symbol(kind, size = 16) {
  const { shape, mark } = kinds[kind];
  return svg("svg", { class: `symbol ${kind}`, width: size, height: size, viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { class: "shape", d: shape }), svg("path", { class: "mark", d: mark }));
}

/** shapeAt draws the shape inside of a picture. */
export function shapeAt(kind, x, y, size) {
  const { shape, mark } = kinds[kind];
  return svg("g", { class: `symbol ${kind}`, transform: `translate(${x} ${y}) scale(${size / 16})` },
    svg("path", { class: "shape", d: shape }), svg("path", { class: "mark", d: mark }));
}
