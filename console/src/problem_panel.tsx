// What went wrong, in three sentences: what, the facts, what to do.

import type { Problem } from "./ask";
import { Value } from "./value";

export function ProblemPanel({ problem }: { problem: Problem }) {
  return (
    <section class="panel problem" role="alert">
      <h2>
        <span class="tag t-gone">problem</span> <Value value={problem.what} short={400} />
      </h2>
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
