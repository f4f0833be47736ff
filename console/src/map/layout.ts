// The layout of a map, computed by a worker. The last answer stays until the next one is there.

import { useEffect, useRef, useState } from "preact/hooks";

export interface Point {
  x: number;
  y: number;
}

export interface LayoutQuestion {
  number: number;
  nodes: { id: string; width: number; height: number }[];
  edges: [string, string][];
}

export interface Layout {
  number: number;
  width: number;
  height: number;
  nodes: Record<string, Point>;
  /** The points of each edge, in the order of the question. */
  edges: Point[][];
}

interface Policy {
  createScriptURL(url: string): string;
}

/** The page's one policy of Trusted Types; it lets through the address of the worker, and nothing else. */
function workerAddress(): string {
  const address = "layout_worker.js";
  const factory = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy } }).trustedTypes;
  if (!factory) return address;
  policy ??= factory.createPolicy("mainstem", {
    createScriptURL(url) {
      if (url !== address) throw new TypeError("not a script of this page");
      return url;
    },
  });
  return policy.createScriptURL(address);
}

let policy: Policy | null = null;
let worker: Worker | null = null;
let asked = 0;

/** Null until the first answer. `nodes` and `edges` are compared by value: the same graph is laid out once. */
export function useLayout(nodes: LayoutQuestion["nodes"], edges: LayoutQuestion["edges"]): Layout | null {
  const [answer, setAnswer] = useState<Layout | null>(null);
  const key = JSON.stringify([nodes, edges]);
  const current = useRef(0);
  useEffect(() => {
    if (!nodes.length) return;
    worker ??= new Worker(workerAddress(), { type: "module" });
    const here = worker;
    const number = (current.current = ++asked);
    const heard = (event: MessageEvent<Layout>) => {
      if (event.data.number === number) setAnswer(event.data);
    };
    here.addEventListener("message", heard);
    here.postMessage({ number, nodes, edges });
    return () => here.removeEventListener("message", heard);
  }, [key]);
  return answer;
}
