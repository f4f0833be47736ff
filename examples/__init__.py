"""The field's ideas as programs: one short, self-checking file each. `make tour` runs them all."""
