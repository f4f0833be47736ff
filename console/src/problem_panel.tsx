// What went wrong, in three sentences: what, the facts, what to do.

import type { Problem } from "./ask";
import { Value } from "./value";

/** `whole`: it is all that the page has. */
export function ProblemPanel({ problem, whole = false }: { problem: Problem; whole?: boolean }) {
  const Heading = whole ? "h1" : "h2";
  return (
    <section class="panel problem" role="alert">
      <Heading>
        <span class="tag t-gone">problem</span> <Value value={problem.what} short={400} />
      </Heading>
      {problem.detail && (
        <p>
          <Value value={problem.detail} short={1000} />
        </p>
      )}
      {problem.hint && (
        <p class="hint">
          <Value value={problem.hint} short={1000} />
        </p>
      )}
    </section>
  );
}
