"""The stage: where an engine of ours runs in a flow, and how its state is kept."""
