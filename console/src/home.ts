// The home that all pages share: its last facts, and the small lines of its nodes.

import { useEffect, useRef, useState } from "preact/hooks";
import { link } from "./address";
import type { HomeFacts, HomeNode } from "./api";
import { ask, type Problem, problemFrom } from "./ask";
import { useStatus, useStream } from "./live";
import type { Health, Kind, MapEdge, MapNode } from "./map/home_map";
import { ago, count, counted, instant, rate, span } from "./words";

const TREND = 30;

export interface Home {
  facts: HomeFacts | null;
  problem: Problem | null;
  trends: Map<string, number[]>;
}

export function useHome(): Home {
  const [facts, setFacts] = useState<HomeFacts | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const trends = useRef(new Map<string, number[]>());
  const status = useStatus();
  const take = (content: HomeFacts) => {
    for (const node of content.nodes) {
      if (node.rows_per_second === undefined) continue;
      trends.current.set(node.id, [...(trends.current.get(node.id) ?? []), node.rows_per_second].slice(-TREND));
    }
    setFacts(content);
    setProblem(null);
  };
  useStream("home", ({ content }) => {
    const said = content as HomeFacts;
    if (said?.nodes) take(said);
  });
  // The stream brings it too; without it the page must say why there is nothing.
  useEffect(() => {
    if (facts) return;
    const asked = new AbortController();
    ask<HomeFacts>("api/home", { signal: asked.signal }).then(take, (error) => !asked.signal.aborted && setProblem(problemFrom(error)));
    return () => asked.abort();
  }, [status.state]);
  return { facts, problem, trends: trends.current };
}

const PAGE_OF: Partial<Record<Kind, string>> = { topic: "topics", flow: "flows", view: "views", queue: "queues" };

export function addressOf(node: { kind: Kind; name: string }): string | null {
  const page = PAGE_OF[node.kind];
  if (!page) return null;
  return node.kind === "queue" ? link(page, ...queueParts(node.name)) : link(page, node.name);
}

/** A queue is named "topic/queue"; neither part has a "/". */
export function queueParts(name: string): [string, string] {
  const cut = name.indexOf("/");
  return cut < 0 ? [name, ""] : [name.slice(0, cut), name.slice(cut + 1)];
}

export function shownName(node: { kind: Kind; name: string }): string {
  return node.kind === "queue" ? queueParts(node.name).join(" / ") : node.name;
}

export function healthOf(node: HomeNode): Health {
  if (node.state === "failed" || node.state === "killed" || node.state === "unreadable" || (node.rejected ?? 0) > 0) return "bad";
  if (node.waits_for || node.state === "waiting" || (node.lag_seconds ?? 0) > 60) return "held";
  return node.state === "stopped" || node.state === "not kept" ? "still" : "well";
}

export function behind(node: HomeNode): string {
  const seconds = node.lag_seconds ?? 0;
  return Number(node.lag_records ?? 0) === 0 || seconds === 0 ? "up to date" : `${span(seconds)} behind`;
}

export function mapOf(facts: HomeFacts, trends: Map<string, number[]>): { nodes: MapNode[]; edges: MapEdge[] } {
  const now = instant(facts.home.at);
  // Rejected messages and rows that were too late are on the card and page of their queue and flow: a topic for each would
  // make the map half again as wide.
  const flows = new Set(facts.nodes.filter((node) => node.kind === "flow").map((node) => node.name));
  const shown = (id: string) => !(id.startsWith("topic:") && (id.endsWith(".rejected") || (id.endsWith(".late") && flows.has(id.slice(6, -5)))));
  return {
    nodes: facts.nodes.filter((node) => shown(node.id)).map((node) => {
      const [first, second] = linesOf(node, now);
      return {
        id: node.id,
        kind: node.kind,
        name: shownName(node),
        address: addressOf(node),
        first,
        second,
        health: healthOf(node),
        trend: trends.get(node.id) ?? [],
      };
    }),
    edges: facts.edges.filter(({ from, to }) => shown(from) && shown(to)).map(({ from, to, rows_per_second }) => ({ from, to, rows: rows_per_second })),
  };
}

/** The two lines of a node. */
function linesOf(node: HomeNode, now: number): [string, string] {
  if (node.state === "unreadable") return ["cannot be read", ""];
  if (node.state === "not kept") return ["as it was: not kept", ""];
  switch (node.kind) {
    case "topic":
      return [`${rate(node.rows_per_second ?? 0)} rows/s`, counted(node.records ?? 0, "record")];
    case "flow":
      if (node.state !== "running") return [node.state, behind(node)];
      return [behind(node), node.waits_for ? "watermark held back" : node.too_late ? `${count(node.too_late)} too late` : node.late ? `${count(node.late)} late, corrected` : `batch ${node.batch ?? "none"}`];
    case "view":
      return [counted(node.rows ?? 0, "row"), node.applied_at ? `changed ${ago(instant(node.applied_at), now)}` : "no rows yet"];
    case "queue":
      return [`${count(node.waiting ?? 0)} waiting, ${count(node.held ?? 0)} held`, node.rejected ? `${count(node.rejected)} rejected` : "none rejected"];
    default:
      return [node.state, node.sentence];
  }
}
