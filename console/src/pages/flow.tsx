// A flow.
import type { Address } from "../address";
import type { HomeFacts } from "../api";
export function FlowPage({ name }: { name: string; address: Address; home: HomeFacts; live: number }) { return <h1>{name}</h1>; }
