// Questions to the server. What goes wrong is a Problem: three sentences, which the page shows.

import { useEffect, useState } from "preact/hooks";

export class Problem extends Error {
  constructor(
    readonly what: string,
    readonly detail: string,
    readonly hint: string,
    readonly status = 0,
  ) {
    super(what);
  }
}

const UNREACHED = new Problem(
  "The console is not reached.",
  "Its process does not answer; what is on the page may be old.",
  "Start it again: mainstem console. The page goes on by itself.",
);

export async function ask<T>(path: string, options: RequestInit = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw UNREACHED;
  }
  const text = await answer.text();
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Problem(
      "The console's answer is not JSON.",
      `${path} answered ${answer.status}, ${text.length} characters.`,
      "Load the page again; if it stays so, look at what the process of mainstem console printed.",
      answer.status,
    );
  }
  if (!answer.ok) throw problemOf(content, path, answer.status);
  return content as T;
}

function problemOf(content: unknown, path: string, status: number): Problem {
  const said = ((content as { error?: unknown } | null)?.error ?? content ?? {}) as Record<string, unknown>;
  const part = (name: string, otherwise: string) => (typeof said[name] === "string" && said[name] ? String(said[name]) : otherwise);
  return new Problem(
    part("what", part("error", "The question was refused.")),
    part("detail", `${path} answered ${status}.`),
    part("hint", ""),
    status,
  );
}

export function problemFrom(error: unknown): Problem {
  return error instanceof Problem
    ? error
    : new Problem("The page met something that it does not know.", String(error), "Load the page again.");
}

export interface Answer<T> {
  content: T | null;
  problem: Problem | null;
  /** The content is of another question than the one that is asked now. */
  old: boolean;
}

/** The answer to a question, asked again whenever `again` changes; the last one stays until the next is there. */
export function useAnswer<T>(path: string | null, again: unknown = 0): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T> & { path: string | null }>({ content: null, problem: null, old: false, path: null });
  useEffect(() => {
    if (path === null) return;
    const asked = new AbortController();
    ask<T>(path, { signal: asked.signal }).then(
      (content) => setAnswer({ content, problem: null, old: false, path }),
      (error) => {
        if (asked.signal.aborted) return;
        setAnswer((before) => ({ content: before.path === path ? before.content : null, problem: problemFrom(error), old: true, path }));
      },
    );
    return () => asked.abort();
  }, [path, again]);
  const current = answer.path === path;
  return { content: answer.content, problem: current ? answer.problem : null, old: !current || answer.old };
}
