// The map of a home: what keeps rows is a card, a flow is a pill, and a bead on an edge is rows that move.

import { Name } from "../value";
import { rate } from "../words";
import { type Layout, type Point, useLayout } from "./layout";

export type Kind = "topic" | "flow" | "view" | "queue" | "capture" | "store" | "folder";
export type Health = "well" | "held" | "bad" | "still";

export interface MapNode {
  id: string;
  kind: Kind;
  name: string;
  /** Where a click leads; null if the thing has no page. */
  address: string | null;
  first: string;
  second: string;
  health: Health;
  /** The last values of what it counts, for its small line. */
  trend: number[];
}

export interface MapEdge {
  from: string;
  to: string;
  /** Counted rows a second; null if they are not counted. */
  rows: number | null;
}

const WIDTH = 172;
const HEIGHT = 58;
const NODES_MAX = 40;
const STEPS = 2;

const SHAPES: Record<Kind, preact.JSX.Element> = {
  topic: <path d="M0 3h11M0 7h11M0 11h11" stroke-width="1.7" />,
  flow: <path d="M0 7h9M6 3l4 4-4 4" stroke-width="1.7" />,
  view: <path d="M2 2h8q1.5 0 1.5 1.5v7q0 1.5-1.5 1.5h-8q-1.5 0-1.5-1.5v-7q0-1.5 1.5-1.5M.5 6h11M5 6v6" stroke-width="1.4" />,
  queue: <path d="M1.5 4v6M6 4v6M10.5 4v6" stroke-width="2.4" />,
  capture: <path d="M5 1v7M2 5.5l3 3 3-3M0 12h11" stroke-width="1.6" />,
  store: <path d="M1 3.5c0-3 10-3 10 0v7c0 3-10 3-10 0zM1 3.5c0 3 10 3 10 0" stroke-width="1.4" />,
  folder: <path d="M.5 11.5v-9h4l1.500 2h5.500v7z" stroke-width="1.4" />,
};

export function KindIcon({ kind }: { kind: Kind }) {
  return (
    <svg class={`icon ${kind}`} width="13" height="14" viewBox="-1 0 14 14" aria-hidden="true">
      {SHAPES[kind]}
    </svg>
  );
}

const HEALTH_WORDS: Record<Health, string> = { well: "", held: "held back", bad: "wants a look", still: "not running" };

/** The chosen node and what is at most two steps from it; everything, or everything that has an edge, if that is not much. */
export function around(nodes: MapNode[], edges: MapEdge[], chosen: string | null): { nodes: MapNode[]; edges: MapEdge[] } {
  if (nodes.length <= NODES_MAX) return { nodes, edges };
  const ends = new Set(edges.flatMap(({ from, to }) => [from, to]));
  const joined = nodes.filter((node) => ends.has(node.id) || node.health === "bad");
  if (chosen === null && joined.length && joined.length <= NODES_MAX) return { nodes: joined, edges };
  const first = chosen ?? (nodes.find((node) => node.health === "bad") ?? nodes.find((node) => node.kind === "flow") ?? nodes[0])?.id;
  const near = new Set(first === undefined ? [] : [first]);
  for (let step = 0; step < STEPS; step++) {
    const known = new Set(near);
    for (const { from, to } of edges) {
      if (known.has(from)) near.add(to);
      if (known.has(to)) near.add(from);
    }
  }
  const kept = nodes.filter((node) => near.has(node.id)).slice(0, NODES_MAX);
  const ids = new Set(kept.map((node) => node.id));
  return { nodes: kept, edges: edges.filter(({ from, to }) => ids.has(from) && ids.has(to)) };
}

export function HomeMap({ nodes, edges, moving }: { nodes: MapNode[]; edges: MapEdge[]; moving: boolean }) {
  const layout = useLayout(
    nodes.map(({ id }) => ({ id, width: WIDTH, height: HEIGHT })),
    edges.map(({ from, to }) => [from, to]),
  );
  if (!layout) return <div class="map-wait dim">The map is being drawn.</div>;
  const head = 24;
  const placed = nodes.filter((node) => layout.nodes[node.id]);
  return (
    <svg
      class="map-picture"
      viewBox={`0 0 ${layout.width} ${layout.height + head}`}
      width={layout.width}
      height={layout.height + head}
      style={{ minWidth: `${Math.round(layout.width * 0.74)}px` }}
      role="group"
      aria-label={`Map: ${nodes.length} nodes, ${edges.length} edges`}
    >
      {columns(placed, layout).map(([x, text]) => (
        <text class="colhead" x={x + 2} y={20} key={x}>
          {text}
        </text>
      ))}
      <g transform={`translate(0 ${head - 6})`}>
        {edges.map((edge, number) => (
          <Edge edge={edge} number={number} edges={edges} nodes={nodes} layout={layout} moving={moving} key={`${edge.from} ${edge.to}`} />
        ))}
        {placed.map((node) => (
          <Node node={node} at={layout.nodes[node.id] as Point} key={node.id} />
        ))}
      </g>
    </svg>
  );
}

function columns(nodes: MapNode[], layout: Layout): [number, string][] {
  const kinds = new Map<number, Set<Kind>>();
  for (const node of nodes) {
    const x = Math.round((layout.nodes[node.id] as Point).x);
    kinds.set(x, (kinds.get(x) ?? new Set()).add(node.kind));
  }
  const first = Math.min(...kinds.keys());
  return [...kinds].map(([x, inside]) => {
    if ([...inside].every((kind) => kind === "flow")) return [x, "flows"];
    if (inside.has("flow")) return [x, ""];
    if (inside.size === 1 && inside.has("capture")) return [x, "captures"];
    return [x, x === first ? (inside.size === 1 && inside.has("topic") ? "topics" : "what is kept") : "what they keep"];
  });
}

function Edge(props: { edge: MapEdge; number: number; edges: MapEdge[]; nodes: MapNode[]; layout: Layout; moving: boolean }) {
  const { edge, number, edges, nodes, layout, moving } = props;
  const [from, to, points] = [layout.nodes[edge.from], layout.nodes[edge.to], layout.edges[number]];
  if (!from || !to || !points) return null;
  const outs = edges.filter((other) => other.from === edge.from).sort((a, b) => (layout.nodes[a.to]?.y ?? 0) - (layout.nodes[b.to]?.y ?? 0));
  const ins = edges.filter((other) => other.to === edge.to).sort((a, b) => (layout.nodes[a.from]?.y ?? 0) - (layout.nodes[b.from]?.y ?? 0));
  const begin = { x: from.x + WIDTH, y: from.y + HEIGHT / 2 + spread(outs.indexOf(edge), outs.length, 9) };
  const end = { x: to.x, y: to.y + HEIGHT / 2 + spread(ins.indexOf(edge), ins.length, 11) };
  // An edge over one column goes straight; over more it follows dagre around the nodes between.
  const far = end.x - begin.x > WIDTH;
  const way = [begin, ...(far ? points.slice(1, -1) : []), end];
  let path = `M${begin.x} ${begin.y}`;
  for (let i = 1; i < way.length; i++) {
    const [a, b] = [way[i - 1] as Point, way[i] as Point];
    const middle = (a.x + b.x) / 2;
    path += `C${middle} ${a.y} ${middle} ${b.y} ${b.x} ${b.y}`;
  }
  const rows = edge.rows ?? 0;
  const weight = Math.log10(1 + 10 * rows);
  const beads = moving && rows > 0 ? Math.min(3, Math.ceil(weight * 2)) : 0;
  const seconds = Math.max(0.8, 3.4 - weight);
  const name = (id: string) => nodes.find((node) => node.id === id)?.name ?? id;
  return (
    <g>
      <path id={`edge-${number}`} class={`edge${rows ? "" : " still"}`} d={path} stroke-width={(1.2 + weight * 1.6).toFixed(1)}>
        <title>{`${name(edge.from)} to ${name(edge.to)}: ${edge.rows === null ? "rows are not counted" : `${rate(rows)} rows/s`}`}</title>
      </path>
      {Array.from({ length: beads }, (_, bead) => (
        <circle class="bead" r="2.3" key={bead}>
          <animateMotion dur={`${seconds.toFixed(1)}s`} begin={`${(-(bead * seconds) / beads - number * 0.37).toFixed(2)}s`} repeatCount="indefinite">
            <mpath href={`#edge-${number}`} />
          </animateMotion>
        </circle>
      ))}
    </g>
  );
}

function spread(index: number, of: number, apart: number): number {
  const gap = Math.min(apart, (HEIGHT - 20) / Math.max(1, of - 1));
  return (index - (of - 1) / 2) * gap;
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function Node({ node, at }: { node: MapNode; at: Point }) {
  const pill = node.kind === "flow";
  const left = at.x + (pill ? 20 : 13);
  const right = at.x + WIDTH - (pill ? 20 : 13);
  const content = (
    <>
      <title>{`${node.kind} ${node.name}: ${[node.first, node.second, HEALTH_WORDS[node.health]].filter(Boolean).join(", ")}`}</title>
      <rect class="box" x={at.x} y={at.y} width={WIDTH} height={HEIGHT} rx={pill ? HEIGHT / 2 : 9} />
      <g class={`icon ${node.kind}`} transform={`translate(${left} ${at.y + 9})`}>
        {SHAPES[node.kind]}
      </g>
      <text class="nm" x={left + 18} y={at.y + 20.5}>
        {cut(node.name, pill ? 15 : 17)}
      </text>
      <circle class={`health ${node.health}`} cx={right} cy={at.y + 16} r="3.6" />
      <text class="v" x={left} y={at.y + 37}>
        {node.first}
      </text>
      <text class={`k ${node.health}`} x={left} y={at.y + 50.500}>
        {cut(node.second, 26)}
      </text>
      <Trend values={node.trend} x={right - 46} y={at.y + 27} />
    </>
  );
  return node.address ? (
    <a class={`node ${node.kind}`} href={node.address}>
      {content}
    </a>
  ) : (
    <g class={`node ${node.kind}`}>{content}</g>
  );
}

function Trend({ values, x, y }: { values: number[]; x: number; y: number }) {
  if (values.length < 2 || values.every((value) => value === 0)) return null;
  const top = Math.max(...values) || 1;
  const path = values.map((value, i) => `${i ? "L" : "M"}${(x + (i * 46) / (values.length - 1)).toFixed(1)} ${(y + 12 - (value / top) * 12).toFixed(1)}`);
  return <path class="spark" d={path.join("")} />;
}

/** The same for a narrow window: a flow is an entry, with what it reads and what it keeps. */
export function MapList({ nodes, edges }: { nodes: MapNode[]; edges: MapEdge[] }) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const flows = nodes.filter((node) => node.kind === "flow");
  const joined = new Set(edges.flatMap(({ from, to }) => [from, to]));
  const alone = nodes.filter((node) => node.kind !== "flow" && !joined.has(node.id));
  const ends = (ids: string[]) => ids.map((id) => byId.get(id)).filter((node) => node !== undefined);
  return (
    <ul class="maplist">
      {flows.map((flow) => {
        const reads = ends(edges.filter((edge) => edge.to === flow.id).map((edge) => edge.from));
        const keeps = ends(edges.filter((edge) => edge.from === flow.id).map((edge) => edge.to));
        return (
          <li key={flow.id}>
            <span class="dim">{reads.map((node) => node.name).join(", ") || "reads nothing"}</span>
            <a href={flow.address ?? "#"}>
              <b>
                → <Name of={flow.name} />
              </b>{" "}
              <i class={`dot ${flow.health}`} />
            </a>
            <span class="dim">{[flow.first, flow.second].filter(Boolean).join(", ")}</span>
            {keeps.map((node) => (
              <a href={node.address ?? "#"} key={node.id}>
                → <Name of={node.name} /> ({node.first})
              </a>
            ))}
          </li>
        );
      })}
      {alone.map((node) => (
        <li key={node.id}>
          <a href={node.address ?? "#"}>
            <KindIcon kind={node.kind} /> <b><Name of={node.name} /></b> <i class={`dot ${node.health}`} />
          </a>
          <span class="dim">{[node.first, node.second].filter(Boolean).join(", ")}</span>
        </li>
      ))}
    </ul>
  );
}
