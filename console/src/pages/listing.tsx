// All flows, topics, views or queues of a home.

import type { HomeFacts, HomeNode } from "../api";
import { addressOf, behind, healthOf, shownName } from "../home";
import { NotKept } from "../home_then";
import { FactTable } from "../table";
import { Name, Value } from "../value";
import { ago, count, counted, instant, rate } from "../words";

export type Listed = "flow" | "topic" | "view" | "queue";

const EMPTY: Record<Listed, string> = {
  flow: "No flow ever ran in this home. Run a program: mainstem run PROGRAM.py",
  topic: "There is no topic yet. Create one: mainstem topic create NAME --schema \"...\"",
  view: "There is no view yet. A flow that runs makes one.",
  queue: "There is no queue yet. Take a message: mainstem queue take TOPIC QUEUE",
};

type Side = "left" | "right";

const STATE_TAG: Record<string, string> = { running: "t-on", stopped: "t-plain", failed: "t-gone", killed: "t-gone", unreadable: "t-gone", kept: "t-plain" };

export function Listing({ kind, facts }: { kind: Listed; facts: HomeFacts }) {
  const nodes = facts.nodes.filter((node) => node.kind === kind);
  const bad = nodes.filter((node) => healthOf(node) === "bad").length;
  const now = instant(facts.home.at);
  const [heads, cells] = COLUMNS[kind];
  return (
    <>
      <h1>
        {counted(nodes.length, kind)}
        {bad > 0 && <span class="then"> {bad === 1 ? "One wants a look." : `${count(bad)} want a look.`}</span>}
      </h1>
      <div class="body">
        <div class="gap" />
        <FactTable
          label={`All ${kind}s`}
          heads={[[kind, "left"], ...heads]}
          rows={nodes.map((node) => [
            <>
              <i class={`dot ${healthOf(node)}`} /> <a href={addressOf(node) ?? "#/"}><Name of={shownName(node)} /></a>
            </>,
            ...(node.state === "not kept" ? heads.map((_, index) => (index ? "" : <NotKept />)) : cells(node, now)),
          ])}
          empty={EMPTY[kind]}
        />
      </div>
    </>
  );
}

export function StateTag({ state }: { state: string }) {
  return <span class={`tag ${STATE_TAG[state] ?? "t-plain"}`}>{state}</span>;
}

const lagOf = (node: HomeNode) => (node.state === "unreadable" ? <Value value={node.sentence} /> : behind(node));

const COLUMNS: Record<Listed, [[string, Side][], (node: HomeNode, now: number) => preact.ComponentChildren[]]> = {
  flow: [
    [["state", "left"], ["behind", "left"], ["rows in", "right"], ["rows out", "right"], ["late", "right"], ["too late", "right"], ["batch", "right"], ["into", "left"]],
    (node) => [
      <StateTag state={node.state} />,
      lagOf(node),
      `${rate(node.rows_per_second ?? 0)} /s`,
      `${rate(node.rows_out_per_second ?? 0)} /s`,
      count(node.late ?? 0),
      count(node.too_late ?? 0),
      node.batch ?? "none",
      <Value value={node.sink ?? ""} />,
    ],
  ],
  topic: [
    [["rows", "right"], ["records", "right"]],
    (node) => [`${rate(node.rows_per_second ?? 0)} /s`, node.state === "unreadable" ? <Value value={node.sentence} /> : count(node.records ?? 0)],
  ],
  view: [
    [["rows", "right"], ["behind", "left"], ["changed", "left"], ["written by", "left"]],
    (node, now) => [count(node.rows ?? 0), lagOf(node), node.applied_at ? ago(instant(node.applied_at), now) : "never", <Value value={node.flow ?? ""} />],
  ],
  queue: [
    [["waiting", "right"], ["held", "right"], ["returned", "right"], ["parked", "right"], ["rejected", "right"], ["behind", "left"]],
    (node) => [
      count(node.waiting ?? 0),
      count(node.held ?? 0),
      count(node.returned ?? 0),
      count(node.parked ?? 0),
      node.rejected ? <span class="tag t-gone">{count(node.rejected)} rejected</span> : "0",
      lagOf(node),
    ],
  ],
};
