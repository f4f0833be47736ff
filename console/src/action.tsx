// Actions: what one will do is said first, with the command that does the same; then it is confirmed.

import { useState } from "preact/hooks";
import { ask, type Problem, problemFrom, useAnswer } from "./ask";
import { ProblemPanel } from "./problem_panel";
import { Value } from "./value";

interface Session {
  who: string;
  scope: string;
  actions: string[];
}

export function useActions(): string[] {
  return useAnswer<Session>("api/session").content?.actions ?? [];
}

const post = <T,>(path: string, body: unknown) => ask<T>(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

interface ActionProps {
  name: string;
  body: Record<string, unknown>;
  label: string;
  danger?: boolean;
  onDone?(): void;
}

export function Action({ name, body, label, danger, onDone }: ActionProps) {
  const [will, setWill] = useState<{ will: string; command: string } | null>(null);
  const [done, setDone] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const failed = (error: unknown) => setProblem(problemFrom(error));
  const begin = () => {
    setProblem(null);
    setDone("");
    post<{ will: string; command: string }>(`api/actions/${name}`, body).then(setWill, failed);
  };
  const confirm = () =>
    post<{ done: string }>(`api/actions/${name}`, { ...body, confirm: true }).then((answer) => {
      setWill(null);
      setDone(answer.done);
      onDone?.();
    }, failed);
  return (
    <span class="action">
      {!will && (
        <button type="button" class={`btn${danger ? " danger" : ""}`} onClick={begin}>
          {label}
        </button>
      )}
      {will && (
        <span class="confirm">
          <Value value={will.will} short={400} /> <code>{will.command}</code>
          <button type="button" class={`btn ${danger ? "danger" : "chief"}`} onClick={confirm}>
            Do it
          </button>
          <button type="button" class="btn" onClick={() => setWill(null)}>
            No
          </button>
        </span>
      )}
      {done && <span class="small soft" role="status"> <Value value={done} short={400} /></span>}
      {problem && <ProblemPanel problem={problem} />}
    </span>
  );
}

/** For a visitor who is not known: a token lets in. */
export function LogIn({ problem }: { problem: Problem }) {
  const [token, setToken] = useState("");
  const [refused, setRefused] = useState<Problem | null>(null);
  const submit = (event: Event) => {
    event.preventDefault();
    post("api/login", { token: token.trim() }).then(
      () => location.reload(),
      (error) => setRefused(problemFrom(error)),
    );
  };
  return (
    <>
      <ProblemPanel whole problem={refused ?? problem} />
      <form class="tools" onSubmit={submit}>
        <label>
          Token
          <input class="field" type="password" size={40} autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <button class="btn chief" type="submit" disabled={!token.trim()}>
          Log in
        </button>
      </form>
    </>
  );
}
