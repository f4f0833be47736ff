// The console: which page an address means, and the home that all pages share.
import { render } from "preact";
function App() { return <p>hello</p>; }
const root = document.getElementById("app") as HTMLElement;
root.replaceChildren();
render(<App />, root);
