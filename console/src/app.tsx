// The console: which page an address means, and the home that all pages share.

import { Component, type ComponentChildren, render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { LogIn, takeToken } from "./action";
import { type Address, takeSearch, useAddress } from "./address";
import type { HomeFacts } from "./api";
import { Problem, problemFrom } from "./ask";
import { addressOf, type Home, shownName, useHome } from "./home";
import { ThenBanner, useHomeThen } from "./home_then";
import { begin } from "./live";
import { type Listed, Listing } from "./pages/listing";
import { FlowPage } from "./pages/flow";
import { Overview } from "./pages/overview";
import { QueryPage } from "./pages/query";
import { QueuePage } from "./pages/queue";
import { TopicPage } from "./pages/topic";
import { ViewPage } from "./pages/view";
import { ProblemPanel } from "./problem_panel";
import { Shell } from "./shell";
import { TimeSlider } from "./time_slider";
import { useWalk, type Walk, WalkLine } from "./walk";
import { instant } from "./words";

const TITLES: Record<string, string> = { flows: "Flows", topics: "Topics", views: "Views", queues: "Queues", query: "Query" };

function App() {
  const address = useAddress();
  const present = useHome();
  const at = address.query.get("at");
  const past = useHomeThen(at);
  const home = at ? { facts: past.content, problem: past.problem ?? present.problem, trends: new Map<string, number[]>() } : present;
  const count = useCount(present.facts);
  // The past does not change.
  const live = at ? 0 : count;
  const walk = useWalk(address, count);
  const { facts } = home;
  const [section = ""] = address.path;
  const page = section === "" ? "Overview" : (TITLES[section] ?? "");
  useEffect(() => {
    document.title = [address.path.slice(1).join(" / ") || page || "no such page", facts?.home.name ?? "Mainstem"].join(": ");
  });
  const things = (present.facts?.nodes ?? []).flatMap((node) => {
    const found = addressOf(node);
    return found ? [{ kind: node.kind, name: shownName(node), address: found, said: node.sentence }] : [];
  });
  return (
    <Shell page={page} home={present.facts?.home.name ?? ""} things={things} shown={facts?.home.at}>
      {at && present.facts && <ThenBanner at={at} now={instant(present.facts.home.at)} page={section} />}
      {walk && section !== "" && <WalkLine walk={walk} />}
      <Boundary key={`${address.path.join("/")} ${at}`}>
        {facts ? <Page address={address} home={home} facts={facts} live={live} walk={walk} /> : home.problem ? home.problem.status === 401 ? <LogIn problem={home.problem} /> : <ProblemPanel whole problem={home.problem} /> : <p class="dim">The home is being read.</p>}
      </Boundary>
      {present.facts && <TimeSlider facts={present.facts} subject={subjectOf(address.path)} at={at ? instant(at) : null} live={count} />}
    </Shell>
  );
}

/** What the slider counts: the rows of the page's own topic or flow. */
function subjectOf([section, name]: string[]): string | null {
  return name === undefined ? null : section === "topics" ? `topic:${name}` : section === "flows" ? `flow:${name}` : null;
}

/** How many facts have come: a reason to ask again for what is not in the stream. */
function useCount(value: unknown): number {
  const counter = useRef({ value, count: 0 });
  if (counter.current.value !== value) counter.current = { value, count: counter.current.count + 1 };
  return counter.current.count;
}

function Page({ address, home, facts, live, walk }: { address: Address; home: Home; facts: HomeFacts; live: number; walk: Walk | null }): ComponentChildren {
  const [section = "", name, more] = address.path;
  if (section === "") return <Overview home={home} address={address} walk={walk} />;
  if (section === "query") return <QueryPage address={address} home={facts} />;
  const kind = { flows: "flow", topics: "topic", views: "view", queues: "queue" }[section] as Listed | undefined;
  if (kind && name === undefined) return <Listing kind={kind} facts={facts} />;
  if (name !== undefined) {
    if (kind === "topic") return <TopicPage key={name} name={name} address={address} home={facts} live={live} />;
    if (kind === "view") return <ViewPage key={name} name={name} address={address} home={facts} live={live} />;
    if (kind === "flow") return <FlowPage key={name} name={name} address={address} home={facts} live={live} />;
    if (kind === "queue" && more !== undefined) return <QueuePage topic={name} queue={more} address={address} home={facts} live={live} />;
  }
  return (
    <ProblemPanel
      whole
      problem={new Problem("There is no such page.", `The address names "${address.path.join("/")}".`, "Pages are Overview, Flows, Topics, Views, Queues and Query; / finds anything by its name.")}
    />
  );
}

/** A defect of one page is said on that page; the others and the top go on. */
class Boundary extends Component<{ children: ComponentChildren }, { error: unknown }> {
  override state = { error: null as unknown };

  override componentDidCatch(error: unknown): void {
    this.setState({ error });
  }

  override render() {
    return this.state.error === null ? this.props.children : <ProblemPanel whole problem={problemFrom(this.state.error)} />;
  }
}

const root = document.getElementById("app") as HTMLElement;
root.replaceChildren();
takeSearch();
await takeToken();
begin();
render(<App />, root);
