"""The stage: where one of our engines runs in a flow, and how its state is stored."""
